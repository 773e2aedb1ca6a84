//! The shared word of a generator.

use super::{assert_distinct, assert_rising};
use idgen_core::clock::{EffectiveClock, Mark, Reading, Target};
use idgen_core::generator::{Ended, Generator, Handle};
use idgen_core::layout::{Layout, Node};
use idgen_core::snowflake::{Answer, Bounds, IdSpace};
use idgen_core::table::{FLOORS, Table, Tenant};
use loom::sync::atomic::{AtomicI64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;
const LAYOUT: &str = "time:41 tag:2=0 sequence:2 epoch:2020-01-01";
const OTHER: &str = "time:41 tag:2=1 sequence:2 epoch:2020-01-01";
const THIRD: &str = "time:41 tag:2=2 sequence:2 epoch:2020-01-01";

fn layout(text: &str) -> (IdSpace, Layout) {
    let layout = Layout::parse(text).unwrap();
    (layout.space(Node::default()).unwrap(), layout)
}

fn bounds(now_ms: i64) -> Bounds {
    Bounds { now_ms, limit_ms: now_ms + 1000, mark_ms: i64::MAX }
}

struct Server {
    generators: Vec<Generator>,
    /// What the lock protects.
    table: Mutex<(Vec<Option<Tenant>>, [i64; FLOORS])>,
}

impl Server {
    fn new(size: usize) -> Arc<Self> {
        let generators = (0..size).map(|_| Generator::new()).collect();
        Arc::new(Self { generators, table: Mutex::new((vec![None; size], [NOW_MS; FLOORS])) })
    }

    fn attach(&self, text: &str) -> (usize, Handle) {
        let (space, layout) = layout(text);
        let mut guard = self.table.lock().unwrap();
        let (tenants, floors_ms) = &mut *guard;
        let mut table = Table { generators: &self.generators, tenants, floors_ms };
        let place = table.attach(space, (layout, Node::default()), None);
        (place.index, place.handle)
    }

    fn settle(&self, effective: &EffectiveClock, reading: Reading) {
        if effective.is_ahead(reading) {
            let mut guard = self.table.lock().unwrap();
            let (tenants, floors_ms) = &mut *guard;
            Table { generators: &self.generators, tenants, floors_ms }.settle(effective, reading);
        }
    }

    fn raise_floor(&self, floor_ms: i64, effective: &EffectiveClock, reading: Reading) {
        let mut guard = self.table.lock().unwrap();
        let (tenants, floors_ms) = &mut *guard;
        Table { generators: &self.generators, tenants, floors_ms }.raise_floor(floor_ms, effective, reading);
    }

    /// The ids of up to `want` slots.
    fn draw(&self, text: &str, (index, handle): (usize, Handle), want: u64, now_ms: i64) -> Result<Vec<i64>, Ended> {
        let (space, _) = layout(text);
        match self.generators[index].issue(handle, &space, want, &bounds(now_ms))? {
            Answer::Issued(run) => Ok((run.first..run.first + run.count).map(|slot| space.id(slot)).collect()),
            other => panic!("{other:?}"),
        }
    }
}

/// S1: three backends issue one each.
#[test]
fn three_issue_one_each() {
    loom::model(|| {
        let server = Server::new(2);
        let place = server.attach(LAYOUT);
        let draw = move |server: &Server| server.draw(LAYOUT, place, 1, NOW_MS).unwrap();
        let others = [(); 2].map(|()| {
            let server = server.clone();
            thread::spawn(move || draw(&server))
        });
        let mut all = draw(&server);
        others.into_iter().for_each(|t| all.extend(t.join().unwrap()));
        assert_eq!(all.len(), 3);
        assert_distinct(all);
    });
}

/// S1, S2: two backends issue one after the other, while the clock moves on.
#[test]
fn two_issue_again_and_again() {
    loom::model(|| {
        let server = Server::new(2);
        let place = server.attach(LAYOUT);
        let draws = move |server: &Server| {
            let mut ids = server.draw(LAYOUT, place, 1, NOW_MS).unwrap();
            ids.extend(server.draw(LAYOUT, place, 1, NOW_MS + 1).unwrap());
            assert_rising(&ids);
            ids
        };
        let other = {
            let server = server.clone();
            thread::spawn(move || draws(&server))
        };
        let mut all = draws(&server);
        all.extend(other.join().unwrap());
        assert_eq!(all.len(), 4);
        assert_distinct(all);
    });
}

/// S1, S2: batches that span ticks, beside single ids.
#[test]
fn concurrent_issue_of_many() {
    loom::model(|| {
        let server = Server::new(2);
        let place = server.attach(LAYOUT);
        let other = {
            let server = server.clone();
            thread::spawn(move || server.draw(LAYOUT, place, 6, NOW_MS).unwrap())
        };
        let mut all = server.draw(LAYOUT, place, 5, NOW_MS + 1).unwrap();
        all.extend(server.draw(LAYOUT, place, 1, NOW_MS + 1).unwrap());
        assert_rising(&all);
        let ids = other.join().unwrap();
        assert_rising(&ids);
        all.extend(ids);
        assert_eq!(all.len(), 12);
        assert_distinct(all);
    });
}

/// A generator changes hands while a backend issues by a handle it remembers: what the backend gets is in its own
/// layout and before everything that layout issues later; or it notices.
#[test]
fn issue_against_eviction() {
    loom::model(|| {
        // One generator is kept for the default layout, so all three layouts share the other.
        let server = Server::new(2);
        let place = server.attach(LAYOUT);
        let holder = {
            let server = server.clone();
            thread::spawn(move || {
                let mut ids = Vec::new();
                for now_ms in [NOW_MS, NOW_MS + 1] {
                    ids.extend(server.draw(LAYOUT, place, 1, now_ms).unwrap_or_default());
                }
                assert_rising(&ids);
                ids
            })
        };
        // Well past what the holder draws, so that the eviction may go through at any moment of it.
        let later_ms = NOW_MS + 10;
        let other = server.attach(OTHER);
        let mut others = server.draw(OTHER, other, 1, later_ms).unwrap();
        // Back again, after yet another tenant: the position has moved on, and never returns to what the holder saw.
        let third = server.attach(THIRD);
        server.draw(THIRD, third, 1, later_ms + 10).unwrap();
        let back = server.attach(LAYOUT);
        let mut ids = server.draw(LAYOUT, back, 1, NOW_MS).unwrap();
        assert_eq!(server.draw(OTHER, other, 1, later_ms + 20), Err(Ended));

        let early = holder.join().unwrap();
        assert!(early.iter().all(|id| *id < ids[0]), "{early:?} before {ids:?}");
        ids.extend(early);
        others.extend(&ids);
        assert_distinct(others);
    });
}

/// A tenant draws at the very moment of its eviction: what it got is counted, or it got nothing.
#[test]
fn eviction_of_one_that_is_drawing() {
    loom::model(|| {
        let server = Server::new(2);
        let place = server.attach(LAYOUT);
        let drawing = {
            let server = server.clone();
            thread::spawn(move || server.draw(LAYOUT, place, 6, NOW_MS).unwrap_or_default())
        };
        server.attach(OTHER);
        let back = server.attach(LAYOUT);
        let ids = server.draw(LAYOUT, back, 1, NOW_MS).unwrap();
        let drawn = drawing.join().unwrap();
        assert!(drawn.iter().all(|id| *id < ids[0]), "{drawn:?} before {ids:?}");
    });
}

/// Nothing is issued past what the file has, whoever moves the mark and whoever issues meanwhile.
#[test]
fn issue_against_a_mark_that_moves() {
    loom::model(|| {
        let server = Server::new(2);
        let place = server.attach(LAYOUT);
        let mark = Arc::new(Mark::unknown());
        // What the file has: written before the mark is published, read after the issue.
        let file_ms = Arc::new(AtomicI64::new(NOW_MS + 1));
        mark.publish(Target { mark_ms: NOW_MS + 1, due_ms: NOW_MS });
        let mover = {
            let (mark, file_ms) = (mark.clone(), file_ms.clone());
            thread::spawn(move || {
                file_ms.store(NOW_MS + 2, Ordering::Relaxed);
                mark.publish(Target { mark_ms: NOW_MS + 2, due_ms: NOW_MS + 1 });
            })
        };
        let (space, layout) = layout(LAYOUT);
        for look in [Mark::near_ms, Mark::mark_ms] {
            let bounds = Bounds { mark_ms: look(&mark), ..bounds(NOW_MS) };
            let answer = server.generators[place.0].issue(place.1, &space, 6, &bounds).unwrap();
            if let Answer::Issued(run) = answer {
                let last = layout.unpack(space.id(run.first + run.count - 1)).unwrap();
                assert!(last.time_ms < bounds.mark_ms && bounds.mark_ms <= file_ms.load(Ordering::Relaxed));
            }
        }
        mover.join().unwrap();
        assert_eq!(mark.mark_ms(), NOW_MS + 2);
    });
}

/// W1: the server's number changes, and may go further than the old one, while a backend issues by what it remembers: what
/// it gets is inside of what the old number was allowed, or it notices.
#[test]
fn issue_against_a_change_of_number() {
    const OLD_END_MS: i64 = NOW_MS + 1;
    const NEW_FIRST_MS: i64 = NOW_MS + 2;
    loom::model(|| {
        let server = Server::new(2);
        let mark = Arc::new(Mark::unknown());
        mark.publish(Target { mark_ms: NOW_MS + 100, due_ms: NOW_MS + 100 });
        mark.end_at(OLD_END_MS);
        let place = server.attach(LAYOUT);
        let (space, _) = layout(LAYOUT);
        let holder = {
            let (server, mark) = (server.clone(), mark.clone());
            thread::spawn(move || {
                for now_ms in [NOW_MS, NOW_MS + 5] {
                    let bounds = Bounds { mark_ms: mark.near_ms(), ..bounds(now_ms) };
                    if let Ok(Answer::Issued(run)) = server.generators[place.0].issue(place.1, &space, 1, &bounds) {
                        assert!(space.time_ms(run.first) < OLD_END_MS, "outside of the old number's times");
                    }
                }
            })
        };
        {
            let mut guard = server.table.lock().unwrap();
            let (tenants, floors_ms) = &mut *guard;
            let mut table = Table { generators: &server.generators, tenants, floors_ms };
            let reading = Reading { wall_ns: NOW_MS * 1_000_000, boot_ns: 0 };
            table.begin_anew(NEW_FIRST_MS, &EffectiveClock::new(reading), reading);
            mark.end_at(NOW_MS + 10);
        }
        // The same space stands for that of the new number: its handle is another.
        let anew = server.attach(LAYOUT);
        let first = server.draw(LAYOUT, anew, 1, NOW_MS).unwrap()[0];
        let (_, layout) = layout(LAYOUT);
        assert!(layout.unpack(first).unwrap().time_ms >= NEW_FIRST_MS);
        holder.join().unwrap();
    });
}

/// S3: generation never stops. A backend looks how far ahead ids are, and lowers the effective time to there, while another
/// one observes an id and a third one issues: the effective time is not before the floor that was observed, so that the
/// next id there need not wait.
#[test]
fn settle_against_observe() {
    const OBSERVED_MS: i64 = NOW_MS + 3_600_000;
    const AHEAD_MS: i64 = NOW_MS + 7_200_000;
    // An hour was borrowed, or the clock was set back: the effective time is two hours ahead of the wall clock.
    let reading = Reading { wall_ns: NOW_MS * 1_000_000, boot_ns: 0 };
    loom::model(move || {
        let server = Server::new(2);
        let place = server.attach(LAYOUT);
        let effective = Arc::new(EffectiveClock::new(Reading { wall_ns: AHEAD_MS * 1_000_000, ..reading }));
        let sampler = {
            let (server, effective) = (server.clone(), effective.clone());
            thread::spawn(move || server.settle(&effective, reading))
        };
        let issuer = {
            let server = server.clone();
            let bounds = Bounds { limit_ms: AHEAD_MS, ..bounds(NOW_MS) };
            thread::spawn(move || server.generators[place.0].issue(place.1, &layout(LAYOUT).0, 1, &bounds).unwrap())
        };
        server.raise_floor(OBSERVED_MS, &effective, reading);
        sampler.join().unwrap();
        issuer.join().unwrap();
        let now_ms = effective.now_ms(reading);
        assert!(now_ms >= OBSERVED_MS, "ids at the floor wait for {} ms", OBSERVED_MS - now_ms);
    });
}
