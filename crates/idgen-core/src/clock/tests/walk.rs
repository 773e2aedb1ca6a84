//! A server's whole life over any walk of the clock, with crashes and restarts at any point.

use super::*;
use crate::layout::Node;
use crate::snowflake::{Answer, Bounds, IdSpace};

/// A machine with a wall clock that anything may happen to, and a server on it.
struct Machine {
    boot_ms: i64,
    wall_ms: i64,
    disk: Option<Vec<u8>>,
    space: IdSpace,
    server: Option<Server>,
}

struct Server {
    clock: EffectiveClock,
    mark: Mark,
    turn: u64,
    free: u64,
    /// When the clocks were last looked at together.
    looked_ms: i64,
}

#[derive(Debug, Clone)]
enum Event {
    Pass(i64),
    Step(i64),
    Draw(u64),
    Crash { while_writing: bool },
    CleanRestart,
}

impl Machine {
    fn read(&self) -> Reading {
        reading(self.wall_ms, self.boot_ms)
    }

    /// What the first generation after a start does.
    fn start(&mut self) {
        let found = self.disk.as_deref().map(|bytes| Record::newest(bytes).expect("one record is whole"));
        // Without a file it is the first start; this machine has no checkpoints of later than that.
        let at_start = Evidence { checkpoint_ms: self.wall_ms, ..evidence(self.wall_ms) };
        let floor_ms = at_start.floor_ms(found.as_ref());
        let clock = EffectiveClock::new(self.read());
        clock.raise(floor_ms, self.read());
        let turn = found.map_or(0, |found| found.record.turn);
        let free = self.space.first_slot_from(floor_ms);
        self.server = Some(Server { clock, mark: Mark::unknown(), turn, free, looked_ms: self.boot_ms });
    }

    fn write(&mut self, mark_ms: i64) {
        let server = self.server.as_mut().unwrap();
        server.turn += 1;
        let record = record(server.turn, mark_ms);
        let bytes = self.disk.get_or_insert_with(|| vec![0; FILE]);
        put(bytes, &record);
    }

    /// One issue as the extension does it. Returns the first and last id, or `None` where it would have to wait.
    fn issue(&mut self, want: u64) -> Option<(u64, u64)> {
        for _ in 0..3 {
            let now = self.read();
            let server = self.server.as_mut().unwrap();
            let next_ms = self.space.time_ms(server.free);
            if server.clock.is_stale(now.wall_ms()) {
                server.clock.sample(|| Some(now));
                server.looked_ms = self.boot_ms;
                if server.clock.is_ahead(now) {
                    server.clock.settle(next_ms, now);
                }
            }
            let limit_ms = (now.wall_ms() + DRIFT_MS).max(server.clock.now_ms(now));
            let bounds = Bounds { now_ms: now.wall_ms(), limit_ms, mark_ms: server.mark.mark_ms() };
            match self.space.next(server.free, want, &bounds) {
                Answer::Issued(run) => {
                    let last = run.first + run.count - 1;
                    // S3: no further ahead of the wall clock than the drift, or than ids are already; since the last
                    // look as much time has passed.
                    let since_ms = self.boot_ms - server.looked_ms;
                    let most_ms = next_ms.max(now.wall_ms() + DRIFT_MS) + SAMPLE_EVERY_MS + since_ms;
                    assert!(self.space.time_ms(last) <= most_ms, "S3");
                    server.free = last + 1;
                    return Some((run.first, last));
                }
                Answer::Reserve { .. } => {
                    let target = Target::past(limit_ms, WINDOW_MS);
                    self.write(target.mark_ms);
                    self.server.as_ref().unwrap().mark.publish(target);
                }
                Answer::Wait { .. } => return None,
                other => panic!("{other:?}"),
            }
        }
        panic!("the mark was moved and is still in the way");
    }

    fn happen(&mut self, event: &Event) -> Option<(u64, u64)> {
        match *event {
            Event::Pass(ms) => {
                self.boot_ms += ms;
                self.wall_ms += ms;
            }
            Event::Step(ms) => self.wall_ms += ms,
            Event::Draw(want) => return self.issue(want),
            Event::Crash { while_writing } => {
                let server = self.server.take().unwrap();
                if let (true, Some(bytes)) = (while_writing, self.disk.as_mut()) {
                    // Torn: not whole, and so nothing was issued under it.
                    for at in record(server.turn + 1, 0).places() {
                        bytes[at as usize..][..100].fill(0x5a);
                    }
                }
                self.start();
            }
            Event::CleanRestart => {
                // Exact: what is issued ends there. Not before the floor, which is where `free` began.
                let server = self.server.as_ref().unwrap();
                if server.mark.is_known() {
                    self.write(self.space.settled_ms(server.free));
                }
                self.start();
            }
        }
        None
    }
}

fn machine(layout: &str) -> Machine {
    let space = Layout::parse(layout).unwrap().space(Node::default()).unwrap();
    let mut machine = Machine { boot_ms: 1000, wall_ms: NOW_MS, disk: None, space, server: None };
    machine.start();
    machine
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0i64..50).prop_map(Event::Pass),
        1 => (0i64..10_000).prop_map(Event::Pass),
        2 => prop_oneof![-20i64..20, -5_000i64..5_000, -4_000_000i64..4_000_000].prop_map(Event::Step),
        12 => prop_oneof![3 => Just(1u64), 1 => 1u64..20_000].prop_map(Event::Draw),
        1 => any::<bool>().prop_map(|while_writing| Event::Crash { while_writing }),
        1 => Just(Event::CleanRestart),
    ]
}

proptest! {
    /// S1, S2 and S3 over any walk of the clock, with crashes and restarts at any point.
    #[test]
    fn no_id_comes_again_whatever_happens(
        events in prop::collection::vec(any_event(), 1..300),
        layout in prop::sample::select(vec!["snowflake", "sonyflake", "seconds", "js53"]),
    ) {
        let mut machine = machine(layout);
        let mut last_slot = None;
        for event in &events {
            if let Some((first, last)) = machine.happen(event) {
                prop_assert!(last_slot.is_none_or(|slot| slot < first), "{:?}", event);
                last_slot = Some(last);
            }
        }
    }

    /// Generation goes on: drawn slowly, there is always an id, whatever the clock did before.
    #[test]
    fn slow_drawing_never_waits(steps in prop::collection::vec(prop_oneof![8 => Just(0i64), 1 => -4_000_000i64..4_000_000], 1..300)) {
        let mut machine = machine("snowflake");
        for step in steps {
            machine.happen(&Event::Step(step));
            machine.happen(&Event::Pass(1));
            prop_assert!(machine.happen(&Event::Draw(1)).is_some());
        }
    }
}

/// Ids that have fallen back to the wall clock after a crash do not run ahead again, but by the drift; and one burst after
/// another, with a restart between them, is no further ahead than one.
#[test]
fn a_lead_that_is_gone_does_not_come_back() {
    let burst = |machine: &mut Machine| {
        let (_, last) = machine.happen(&Event::Draw(100_000_000)).unwrap();
        machine.space.time_ms(last) - machine.wall_ms
    };
    let mut crashed = machine("js53");
    crashed.happen(&Event::Draw(1)).unwrap();
    crashed.happen(&Event::Crash { while_writing: false });
    assert!(burst(&mut crashed) > DRIFT_MS, "right after the crash ids are ahead");
    for _ in 0..100 {
        crashed.happen(&Event::Pass(100));
        crashed.happen(&Event::Draw(1)).unwrap();
    }
    assert_eq!(burst(&mut crashed), DRIFT_MS);

    let mut restarted = machine("js53");
    for _ in 0..5 {
        // A tick for each restart: it begins after the last one.
        assert!(burst(&mut restarted) <= DRIFT_MS + 5);
        restarted.happen(&Event::CleanRestart);
    }
}

/// While the clock is behind, the lead of ids over it does not grow, and shrinks when they are drawn slowly.
#[test]
fn the_lead_after_a_backward_step_shrinks() {
    let mut machine = machine("snowflake");
    machine.happen(&Event::Draw(1)).unwrap();
    machine.happen(&Event::Step(-60_000));
    let mut lead_ms = i64::MAX;
    for _ in 0..60_000 {
        machine.happen(&Event::Pass(1));
        let (_, last) = machine.happen(&Event::Draw(4)).unwrap();
        let now_ms = machine.space.time_ms(last) - machine.wall_ms;
        assert!(now_ms <= lead_ms);
        lead_ms = now_ms;
    }
    assert!(lead_ms <= 60, "{lead_ms}");
}
