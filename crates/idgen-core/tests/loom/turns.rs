//! The values of a fleet in one line: requests in turns, and draws between them.

use idgen_core::segment::turns::Turns;
use idgen_core::segment::{Draw, Ring, RingHandle, RingTable, TagKey};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicI64, Ordering};

/// One ring of a server, and a coordinator.
struct Fleet {
    ring: &'static Ring,
    handle: RingHandle,
    turns: Turns,
    /// The last value that the coordinator has granted.
    granted: AtomicI64,
    /// A value that another server has drawn, and told of.
    told: AtomicI64,
}

impl Fleet {
    fn new() -> Arc<Self> {
        let rings: &'static [Ring] = vec![Ring::new()].leak();
        let key = TagKey { database: 5, creation: 1 };
        let handle = RingTable { rings, tenants: vec![None].leak() }.attach(key, 1, 1, 0, &[]).handle;
        let [granted, told] = [(); 2].map(|()| AtomicI64::new(0));
        Arc::new(Self { ring: &rings[0], handle, turns: Turns::new(), granted, told })
    }

    fn grant(&self) -> i64 {
        self.granted.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// As the supply worker does.
    fn serve(&self) {
        let turn = self.turns.begin();
        let value = self.grant();
        self.ring.discard();
        self.ring.install(self.handle, value, 1, None);
        self.turns.bring(turn.number);
    }

    /// A call that finds its turn, or not.
    fn draw(&self) {
        let floor = self.told.load(Ordering::Acquire);
        let entered = self.turns.enter();
        for _ in 0..2 {
            if self.turns.is_open(entered)
                && let Ok(Draw::Drawn { run, .. }) = self.ring.draw(self.handle, 1)
            {
                assert!(run.first > floor, "{} after {floor}", run.first);
            }
        }
    }
}

/// G4, in one line: a call that begins after another server has drawn a value gets no lower one.
#[test]
fn call_draws_above_all_that_were_drawn_before() {
    loom::model(|| {
        let fleet = Fleet::new();
        // A value that nobody has drawn.
        fleet.serve();
        let other = super::spawn(&fleet, |fleet| fleet.told.store(fleet.grant(), Ordering::Release));
        let worker = super::spawn(&fleet, Fleet::serve);
        fleet.draw();
        other.join().unwrap();
        worker.join().unwrap();
    });
}

/// Each call that a turn counts may draw what it brings: no value is asked for in vain.
#[test]
fn turn_asks_for_calls_that_may_draw_its_values() {
    loom::model(|| {
        let fleet = Fleet::new();
        let call = super::spawn(&fleet, |fleet| {
            let entered = fleet.turns.enter();
            (entered, fleet.turns.lack(1))
        });
        let turn = fleet.turns.begin();
        let (entered, lack) = call.join().unwrap();
        assert!(turn.lacking == 0 || entered < turn.number);
        fleet.turns.look(lack);
        assert_eq!([fleet.turns.begin().lacking, fleet.turns.begin().lacking], [0, 0]);
    });
}
