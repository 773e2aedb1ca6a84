//! The ring of a tag: draws concurrent with installs, changes of the row, and other draws. The workers that fill rings:
//! sessions that request values while a worker ends.

use super::{assert_rising, spawn};
use idgen_core::draws::EarliestDraw;
use idgen_core::segment::chains::{Chains, END, TagMap};
use idgen_core::segment::refillers::{Call, Duty, Refiller, Refillers};
use idgen_core::segment::requests::Requests;
use idgen_core::segment::settled::{Reading, Scan, Settling};
use idgen_core::segment::{Draw, Ring, RingHandle, RingTable, TagKey};
use idgen_core::tenancy::Ended;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use loom::sync::{Arc, Mutex};

const KEY: TagKey = TagKey { database: 5, creation: 1 };
const OTHER: TagKey = TagKey { database: 5, creation: 2 };

/// One ring, and the table's lock.
struct Server {
    rings: &'static [Ring],
    table: Mutex<RingTable<'static>>,
}

impl Server {
    /// Leaks the ring: a table in shared memory lives as long as the server.
    fn new() -> Arc<Self> {
        let rings: &'static [Ring] = vec![Ring::new()].leak();
        let chains = || Chains { heads: vec![END].leak(), nexts: vec![END].leak() };
        let rests = TagMap { places: vec![None].leak(), chains: chains(), count: 0, hand: 0 };
        let table = RingTable { rings, tenants: vec![None].leak(), chains: chains(), hand: 0, displaced: 0, rests };
        Arc::new(Self { rings, table: Mutex::new(table) })
    }

    fn attach(&self, key: TagKey, version: i64) -> RingHandle {
        self.table.lock().unwrap().attach(key, version, 1, |_| None).handle
    }

    /// As the refill worker does: under the lock, if the tenancy has not ended and there is room. True if installed.
    fn install(&self, handle: RingHandle, first: i64, count: u64, low_water: Option<u64>) -> bool {
        let table = self.table.lock().unwrap();
        let is_tenant = table.tenants[0].is_some_and(|tenant| tenant.handle == handle);
        is_tenant && self.install_unlocked(handle, first, count, low_water)
    }

    /// For tests in which no other thread takes the lock.
    fn install_unlocked(&self, handle: RingHandle, first: i64, count: u64, low_water: Option<u64>) -> bool {
        let has_room = self.rings[0].has_room();
        if has_room {
            self.rings[0].install(handle, first, count, low_water);
        }
        has_room
    }

    /// The values of one draw, and whether to request a refill. No values if the ring is dry.
    fn draw(&self, handle: RingHandle, want: u64) -> Result<(Vec<i64>, bool), Ended> {
        Ok(match self.rings[0].draw(handle, want)? {
            Draw::Dry => (Vec::new(), false),
            Draw::Drawn { run, request } => ((run.first..run.first + run.count as i64).collect(), request),
        })
    }

    /// The values of one block. No values if the ring is dry.
    fn block(&self, handle: RingHandle, want: u64) -> Vec<i64> {
        match self.rings[0].draw_block(handle, want).unwrap() {
            Draw::Dry => Vec::new(),
            Draw::Drawn { run, .. } => (run.first..run.first + run.count as i64).collect(),
        }
    }

    /// One draw for each number wanted; the values rise.
    fn draws(&self, handle: RingHandle, wants: &[u64]) -> Vec<i64> {
        let values: Vec<i64> = wants.iter().flat_map(|want| self.draw(handle, *want).unwrap().0).collect();
        assert_rising(&values);
        values
    }
}

/// No value was drawn twice or lost: what was drawn, and what is left, are the expected values.
fn assert_exactly(server: &Server, handle: RingHandle, mut drawn: Vec<i64>, expected: &[i64]) {
    loop {
        let (more, _) = server.draw(handle, 9).unwrap();
        if more.is_empty() {
            break;
        }
        drawn.extend(more);
    }
    drawn.sort_unstable();
    assert_eq!(drawn, expected);
}

/// G1: another range follows after skipped values.
#[test]
fn draws_at_the_end_of_a_range() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 2, None);
        server.install(handle, 11, 2, None);
        let other = spawn(&server, move |server| server.draws(handle, &[1, 2]));
        let mut drawn = server.draws(handle, &[2, 1]);
        drawn.extend(other.join().unwrap());
        assert_exactly(&server, handle, drawn, &[1, 2, 11, 12]);
    });
}

/// G1: no late draw combines an old position with a new range, and none loses a value. The third range overwrites the
/// first as soon as that is used up. There is a value for each draw, so none finds the ring dry.
#[test]
fn draws_against_install_over_a_used_range() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 1, None);
        server.install(handle, 11, 1, None);
        let late = spawn(&server, move |server| server.draws(handle, &[1]));
        let worker = spawn(&server, move |server| server.install_unlocked(handle, 21, 2, None));
        let mut drawn = server.draws(handle, &[1]);
        drawn.extend(late.join().unwrap());
        assert_eq!(drawn.len(), 2);
        let expected: &[i64] = if worker.join().unwrap() { &[1, 11, 21, 22] } else { &[1, 11] };
        assert_exactly(&server, handle, drawn, expected);
    });
}

/// G1: a block passes over a range, which is drawn from and then overwritten.
#[test]
fn block_against_a_draw_and_install_over_the_range_before_it() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 2, None);
        server.install(handle, 11, 2, None);
        // So that the other draw looks at this range first, which makes the model smaller.
        assert_eq!(server.draws(handle, &[1]), [1]);
        let other = spawn(&server, move |server| server.draws(handle, &[1]));
        let worker = spawn(&server, move |server| server.install_unlocked(handle, 21, 2, None));
        assert_eq!(server.block(handle, 2), [11, 12]);
        let drawn = other.join().unwrap();
        let mut expected = if worker.join().unwrap() { vec![21, 22] } else { Vec::new() };
        // Drawn before the block, or discarded.
        if drawn == [2] {
            expected.insert(0, 2);
        }
        assert_exactly(&server, handle, drawn, &expected);
    });
}

/// G1: a draw sees all of the new range or nothing of it.
#[test]
fn draws_from_a_range_during_install() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 1, None);
        server.install(handle, 11, 1, None);
        assert_eq!(server.draws(handle, &[1]), [1]);
        let worker = spawn(&server, move |server| server.install_unlocked(handle, 21, 2, None));
        let drawn = server.draws(handle, &[1, 1]);
        assert!(worker.join().unwrap());
        assert_exactly(&server, handle, drawn, &[11, 21, 22]);
    });
}

/// G1.
#[test]
fn draws_from_a_range_that_grows() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 1, None);
        let other = spawn(&server, move |server| server.draws(handle, &[2]));
        let worker = spawn(&server, move |server| server.install_unlocked(handle, 2, 2, None));
        let mut drawn = server.draws(handle, &[1]);
        drawn.extend(other.join().unwrap());
        worker.join().unwrap();
        assert_exactly(&server, handle, drawn, &[1, 2, 3]);
    });
}

/// G1, G3: a draw by the old handle takes from the old range or fails, and never takes from the new one.
#[test]
fn draws_against_a_change_of_the_row() {
    loom::model(|| {
        let server = Server::new();
        let old = server.attach(KEY, 1);
        server.install(old, 1, 2, None);
        let late = spawn(&server, move |server| server.draw(old, 1).map(|(values, _)| values));
        let changer = spawn(&server, |server| {
            let new = server.attach(KEY, 2);
            server.install(new, 3, 2, None);
            server.draws(new, &[1])
        });
        let late = late.join().unwrap();
        let drawn = changer.join().unwrap();
        assert_eq!(drawn, [3]);
        assert!(late == Ok(vec![1]) || late == Err(Ended), "{late:?}");
        assert_exactly(&server, server.attach(KEY, 2), drawn, &[3, 4]);
    });
}

/// G1: the ring is given to another tag and returns. The first tag goes on with what no draw has taken, and nothing else.
#[test]
fn draws_against_eviction() {
    loom::model(|| {
        let server = Server::new();
        let first = server.attach(KEY, 1);
        server.install(first, 1, 2, None);
        let late = spawn(&server, move |server| server.draw(first, 1).map(|(values, _)| values));
        let other = server.attach(OTHER, 1);
        server.install(other, 100, 1, None);
        let again = server.attach(KEY, 1);
        server.install(again, 5, 1, None);
        let late = late.join().unwrap();
        assert!(late == Ok(vec![1]) || late == Err(Ended), "{late:?}");
        assert!(!server.install(other, 101, 1, None), "no late refill for an evicted tag");
        assert_exactly(&server, again, late.unwrap_or_default(), &[1, 2, 5]);
    });
}

#[test]
fn one_draw_requests_the_refill() {
    loom::model(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 3, Some(2));
        let requests = move |server: &Server| server.draw(handle, 1).unwrap().1;
        let others = [(); 2].map(|()| spawn(&server, requests));
        let requested =
            others.map(|t| t.join().unwrap()).into_iter().chain([requests(&server)]).filter(|request| *request).count();
        assert_eq!(requested, 1);
    });
}

/// A ring, its demand and the number of its refills.
struct Refilled {
    server: Arc<Server>,
    handle: RingHandle,
    demand: AtomicU64,
    refills: AtomicU64,
}

impl Refilled {
    /// As a worker with this demand, which the ring may have no room for.
    fn refill(&self, first: i64, demand: u64) {
        if demand > 0 && self.server.install_unlocked(self.handle, first, demand, None) {
            self.refills.fetch_add(1, Release);
        }
    }
}

/// The worker drops a request that it finds the ring full with. The call that has made it makes another one.
#[test]
fn block_that_waits_while_the_ring_becomes_full_is_requested() {
    request_while_the_ring_becomes_full(true);
}

/// The control.
#[test]
#[should_panic(expected = "nothing is requested")]
fn block_that_sees_refills_after_its_draw_waits_in_vain() {
    request_while_the_ring_becomes_full(false);
}

fn request_while_the_ring_becomes_full(sees_before: bool) {
    loom::model(move || {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 1, None);
        let (demand, refills) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Refilled { server, handle, demand, refills });
        let worker = spawn(&shared, |shared| {
            shared.refill(11, 1);
            shared.refill(21, shared.demand.swap(0, Acquire));
        });
        let mut requests = Requests::new(shared.refills.load(Acquire));
        if shared.server.block(handle, 2).is_empty() {
            if !sees_before {
                requests.see(shared.refills.load(Acquire));
            }
            assert!(requests.is_due());
            shared.demand.fetch_add(2, Release);
            requests.make();
            worker.join().unwrap();
            requests.see(shared.refills.load(Acquire));
            let is_served = !shared.server.block(handle, 2).is_empty();
            assert!(is_served || requests.is_due() || shared.demand.load(Relaxed) > 0, "nothing is requested");
        } else {
            worker.join().unwrap();
        }
    });
}

const DUTY: Duty = Duty { database: 5, is_attached: false };

/// The demand for the rings of one duty, and the lock of the segments.
struct Workers {
    demand: AtomicU64,
    refillers: Mutex<Refillers<'static>>,
}

impl Workers {
    fn new() -> Arc<Self> {
        let refillers = Refillers(vec![None::<Refiller>; 1].leak());
        Arc::new(Self { demand: AtomicU64::new(0), refillers: Mutex::new(refillers) })
    }

    /// Demand for some values. The session becomes the worker that it starts.
    fn request(&self, latch: usize) {
        self.demand.fetch_add(1, Relaxed);
        let call = self.refillers.lock().unwrap().call(DUTY, true, 0);
        if call == Call::Start {
            assert!(self.refillers.lock().unwrap().begin(DUTY, latch));
            self.serve(latch);
        }
    }

    /// As a worker that has waited for demand long enough.
    fn serve(&self, latch: usize) {
        loop {
            self.demand.swap(0, Relaxed);
            let mut refillers = self.refillers.lock().unwrap();
            if refillers.end(DUTY, latch, self.demand.load(Relaxed) > 0) {
                return;
            }
        }
    }
}

#[test]
fn demand_that_a_worker_leaves_starts_another_one() {
    loom::model(|| {
        let workers = Workers::new();
        let other = spawn(&workers, |workers| workers.request(2));
        workers.request(1);
        other.join().unwrap();
        assert_eq!(workers.demand.load(Relaxed), 0);
    });
}

/// A transaction, and readers of settled values.
struct Settled {
    server: Arc<Server>,
    handle: RingHandle,
    earliest: EarliestDraw,
    is_committed: AtomicBool,
    readings: AtomicI64,
    settling: Mutex<Settling>,
}

impl Settled {
    /// The value that the transaction has drawn.
    fn transaction(&self) -> i64 {
        self.earliest.lower_to(self.readings.load(Acquire));
        let value = self.server.draw(self.handle, 1).unwrap().0[0];
        self.is_committed.store(true, Relaxed);
        self.earliest.clear();
        value
    }

    /// The value that is settled, and whether the transaction has been seen to commit.
    fn read(&self) -> (i64, bool) {
        let current = self.server.rings[0].remaining(self.handle).current.expect("values are left");
        let begun = self.readings.load(Acquire);
        let scan = Scan { begun, earliest: self.earliest.get() };
        let new = Reading { value: current.first - 1, number: self.readings.fetch_add(1, AcqRel) + 1 };
        let settled = self.settling.lock().unwrap().settle(new, scan).unwrap_or(0);
        (settled, self.is_committed.load(Relaxed))
    }
}

/// P1 for values: a transaction draws and commits while two other processes ask which values are settled. If its value is,
/// they see the commit.
#[test]
fn settled_value_is_committed() {
    let mut model = loom::model::Builder::new();
    // All interleavings of three threads take minutes.
    model.preemption_bound = Some(3);
    model.check(|| {
        let server = Server::new();
        let handle = server.attach(KEY, 1);
        server.install(handle, 1, 10, None);
        let shared = Arc::new(Settled {
            server,
            handle,
            earliest: EarliestDraw::new(),
            is_committed: AtomicBool::new(false),
            readings: AtomicI64::new(0),
            settling: Mutex::new(Settling::default()),
        });
        let writer = spawn(&shared, Settled::transaction);
        let reader = spawn(&shared, Settled::read);
        let reads = [shared.read(), reader.join().unwrap()];
        let value = writer.join().unwrap();
        for (settled, was_committed) in reads {
            assert!(value > settled || was_committed, "{value} is open, {settled} settled");
        }
    });
}
