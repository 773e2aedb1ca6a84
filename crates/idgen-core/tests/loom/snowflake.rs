//! The shared word of a generator, the effective clock and the ceiling.

use super::{assert_distinct, assert_rising, spawn};
use idgen_core::clock::{Mark, Target};
use idgen_core::draws::EarliestDraw;
use idgen_core::generator::settled::settled;
use idgen_core::generator::{FLOORS, Floor, Generator, GeneratorHandle, GeneratorTable};
use idgen_core::layout::{Layout, Node};
use idgen_core::snowflake::{Bounds, IdSpace, Issue};
use idgen_core::tenancy::{Attachment, Ended};
use loom::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use loom::sync::{Arc, RwLock};

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;
const LAYOUT: &str = "time:41 tag:2=0 sequence:2 epoch:2020-01-01";
const OTHER: &str = "time:41 tag:2=1 sequence:2 epoch:2020-01-01";
const THIRD: &str = "time:41 tag:2=2 sequence:2 epoch:2020-01-01";

fn layout(text: &str) -> (IdSpace, Layout) {
    let layout = Layout::parse(text).unwrap();
    (layout.id_space(Node::default()).unwrap(), layout)
}

fn bounds(now_ms: i64) -> Bounds {
    Bounds { now_ms, limit_ms: now_ms + 1000, ceiling_ms: i64::MAX }
}

type Attached = Attachment<GeneratorHandle>;

struct Server {
    generators: &'static [Generator],
    table: RwLock<GeneratorTable<'static>>,
}

impl Server {
    /// Leaks the generators: a table in shared memory lives as long as the server.
    fn new(size: usize) -> Arc<Self> {
        let generators: &'static [Generator] = (0..size).map(|_| Generator::new()).collect::<Vec<_>>().leak();
        let floors = (0..FLOORS).map(|_| Floor::new()).collect::<Vec<_>>().leak();
        let table = GeneratorTable::new(generators, vec![None; size].leak(), floors);
        Arc::new(Self { generators, table: RwLock::new(table) })
    }

    fn attach(&self, text: &str) -> Attached {
        let (space, layout) = layout(text);
        self.table.write().unwrap().attach(space, (layout, Node::default()), None)
    }

    fn issue(&self, text: &str, attached: Attached, want: u64, bounds: &Bounds) -> Result<Issue, Ended> {
        self.generators[attached.index].issue(attached.handle, &layout(text).0, want, bounds)
    }

    /// The ids of up to `want` slots.
    fn draw(&self, text: &str, attached: Attached, want: u64, now_ms: i64) -> Result<Vec<i64>, Ended> {
        let (space, _) = layout(text);
        match self.issue(text, attached, want, &bounds(now_ms))? {
            Issue::Issued(run) => Ok((run.first..run.first + run.count).map(|slot| space.id(slot)).collect()),
            other => panic!("{other:?}"),
        }
    }
}

/// S1.
#[test]
fn three_backends_issue_one_id_each() {
    loom::model(|| {
        let server = Server::new(2);
        let attached = server.attach(LAYOUT);
        let draw = move |server: &Server| server.draw(LAYOUT, attached, 1, NOW_MS).unwrap();
        let others = [(); 2].map(|()| spawn(&server, draw));
        let mut all = draw(&server);
        others.into_iter().for_each(|t| all.extend(t.join().unwrap()));
        assert_eq!(all.len(), 3);
        assert_distinct(all);
    });
}

/// S1, S2: the clock moves on between the ids.
#[test]
fn two_backends_issue_two_ids_each() {
    loom::model(|| {
        let server = Server::new(2);
        let attached = server.attach(LAYOUT);
        let draws = move |server: &Server| {
            let mut ids = server.draw(LAYOUT, attached, 1, NOW_MS).unwrap();
            ids.extend(server.draw(LAYOUT, attached, 1, NOW_MS + 1).unwrap());
            assert_rising(&ids);
            ids
        };
        let other = spawn(&server, draws);
        let mut all = draws(&server);
        all.extend(other.join().unwrap());
        assert_eq!(all.len(), 4);
        assert_distinct(all);
    });
}

/// S1, S2: the batches span ticks.
#[test]
fn two_backends_issue_batches() {
    loom::model(|| {
        let server = Server::new(2);
        let attached = server.attach(LAYOUT);
        let other = spawn(&server, move |server| server.draw(LAYOUT, attached, 6, NOW_MS).unwrap());
        let mut all = server.draw(LAYOUT, attached, 5, NOW_MS + 1).unwrap();
        all.extend(server.draw(LAYOUT, attached, 1, NOW_MS + 1).unwrap());
        assert_rising(&all);
        let ids = other.join().unwrap();
        assert_rising(&ids);
        all.extend(ids);
        assert_eq!(all.len(), 12);
        assert_distinct(all);
    });
}

/// A backend issues by a handle whose tenancy ends. Its ids are of its own layout and below all later ids of that
/// layout, or the issue fails.
#[test]
fn issue_against_eviction() {
    loom::model(|| {
        // One generator is reserved for the default layout, so all three layouts share the other.
        let server = Server::new(2);
        let attached = server.attach(LAYOUT);
        let holder = spawn(&server, move |server| {
            let mut ids = Vec::new();
            for now_ms in [NOW_MS, NOW_MS + 1] {
                ids.extend(server.draw(LAYOUT, attached, 1, now_ms).unwrap_or_default());
            }
            assert_rising(&ids);
            ids
        });
        // Well past the ids of the holder, so that the eviction may happen at any time during its draws.
        let later_ms = NOW_MS + 10;
        let other = server.attach(OTHER);
        let mut others = server.draw(OTHER, other, 1, later_ms).unwrap();
        // The first space returns after a third one. The position has moved on, and never returns to what the holder
        // saw.
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

/// The end of the tenancy counts the ids of a concurrent draw, or the draw fails.
#[test]
fn eviction_during_a_draw() {
    loom::model(|| {
        let server = Server::new(2);
        let attached = server.attach(LAYOUT);
        let drawing = spawn(&server, move |server| server.draw(LAYOUT, attached, 6, NOW_MS).unwrap_or_default());
        server.attach(OTHER);
        let back = server.attach(LAYOUT);
        let ids = server.draw(LAYOUT, back, 1, NOW_MS).unwrap();
        let drawn = drawing.join().unwrap();
        assert!(drawn.iter().all(|id| *id < ids[0]), "{drawn:?} before {ids:?}");
    });
}

/// No id reaches the time in the file while another backend moves the mark.
#[test]
fn issue_against_a_moving_mark() {
    loom::model(|| {
        let server = Server::new(2);
        let attached = server.attach(LAYOUT);
        let mark = Arc::new(Mark::unknown());
        // The time in the file: written before the mark is published, read after the issue.
        let file_ms = Arc::new(AtomicI64::new(NOW_MS + 1));
        mark.publish(Target { mark_ms: NOW_MS + 1, due_ms: NOW_MS });
        let both = Arc::new((mark.clone(), file_ms.clone()));
        let mover = spawn(&both, |(mark, file_ms)| {
            file_ms.store(NOW_MS + 3, Ordering::Relaxed);
            mark.publish(Target { mark_ms: NOW_MS + 3, due_ms: NOW_MS + 2 });
        });
        let (space, layout) = layout(LAYOUT);
        for ceiling in [Mark::early_ceiling_ms, Mark::mark_ms] {
            let bounds = Bounds { ceiling_ms: ceiling(&mark), ..bounds(NOW_MS) };
            let issue = server.issue(LAYOUT, attached, 6, &bounds).unwrap();
            if let Issue::Issued(run) = issue {
                let last = layout.unpack(space.id(run.first + run.count - 1)).unwrap();
                assert!(last.time_ms < bounds.ceiling_ms && bounds.ceiling_ms <= file_ms.load(Ordering::Relaxed));
            }
        }
        mover.join().unwrap();
        assert_eq!(mark.mark_ms(), NOW_MS + 3);
    });
}

/// W1: the worker id changes, with a later lease end, while a backend issues by the old tenancy. Its ids are below the
/// old lease end, or the issue fails.
#[test]
fn issue_against_a_change_of_worker_id() {
    const OLD_END_MS: i64 = NOW_MS + 1;
    const NEW_FIRST_MS: i64 = NOW_MS + 2;
    loom::model(|| {
        let server = Server::new(2);
        let mark = Arc::new(Mark::unknown());
        mark.publish(Target { mark_ms: NOW_MS + 100, due_ms: NOW_MS + 100 });
        mark.set_lease_end(OLD_END_MS);
        let attached = server.attach(LAYOUT);
        let (space, _) = layout(LAYOUT);
        let holder_mark = mark.clone();
        let holder = spawn(&server, move |server| {
            for now_ms in [NOW_MS, NOW_MS + 5] {
                let bounds = Bounds { ceiling_ms: holder_mark.early_ceiling_ms(), ..bounds(now_ms) };
                if let Ok(Issue::Issued(run)) = server.issue(LAYOUT, attached, 1, &bounds) {
                    assert!(space.time_ms(run.first) < OLD_END_MS, "outside of the old lease");
                }
            }
        });
        {
            let mut table = server.table.write().unwrap();
            table.restart_at(NEW_FIRST_MS);
            mark.set_lease_end(NOW_MS + 10);
        }
        // The same space stands for that of the new worker id. Its handle is another one.
        let again = server.attach(LAYOUT);
        let first = server.draw(LAYOUT, again, 1, NOW_MS).unwrap()[0];
        let (_, layout) = layout(LAYOUT);
        assert!(layout.unpack(first).unwrap().time_ms >= NEW_FIRST_MS);
        holder.join().unwrap();
    });
}

/// S3: the layout is ahead of the limit, and several backends draw at once. They open one tick, which is enough for both,
/// and the next one when its length has passed.
#[test]
fn backends_ahead_of_the_limit_open_one_tick_in_its_length() {
    const TICK_US: i64 = 1000;
    loom::model(move || {
        let server = Server::new(2);
        server.table.write().unwrap().raise_floor(NOW_MS + 60_000);
        let attached = server.attach(LAYOUT);
        let draw = move |server: &Server| {
            let generator = &server.generators[attached.index];
            let mut opened = 0;
            let mut limit_ms = NOW_MS;
            // The tick has four slots. A backend that may not open it finds it begun, or has to ask again.
            for _ in 0..3 {
                match server.issue(LAYOUT, attached, 1, &Bounds { limit_ms, ..bounds(NOW_MS) }).unwrap() {
                    Issue::Issued(_) => break,
                    Issue::Ahead { time_ms } => {
                        if generator.open_tick(TICK_US, 5).is_ok() {
                            (opened, limit_ms) = (opened + 1, time_ms);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            opened
        };
        let other = spawn(&server, draw);
        let opened = draw(&server) + other.join().unwrap();
        assert_eq!(opened, 1, "one backend opens the tick");
        assert!(server.generators[attached.index].open_tick(TICK_US, 5 + TICK_US).is_ok());
    });
}

/// P1: a transaction draws and commits while another process draws and asks which ids are settled. If the id of the
/// transaction is, the other process sees the commit.
#[test]
fn settled_id_is_committed() {
    loom::model(|| {
        let server = Server::new(2);
        let attached = server.attach(LAYOUT);
        let (space, layout) = layout(LAYOUT);
        let transaction = Arc::new((EarliestDraw::new(), AtomicBool::new(false)));
        let shared = Arc::new((server.clone(), transaction.clone()));
        let writer = spawn(&shared, move |(server, transaction)| {
            let (earliest, is_committed) = &**transaction;
            let free = server.generators[attached.index].free_slot(attached.handle);
            earliest.lower_to(space.earliest_ms(free, &bounds(NOW_MS)));
            let id = server.draw(LAYOUT, attached, 1, NOW_MS).unwrap()[0];
            is_committed.store(true, Ordering::Relaxed);
            earliest.clear();
            id
        });
        server.draw(LAYOUT, attached, 1, NOW_MS).unwrap();
        let before_next = || (space, space.id_before(server.table.read().unwrap().free_slot(&space)));
        let (_, settled) = settled(&layout, before_next, || transaction.0.get().into_iter().collect());
        let was_committed = transaction.1.load(Ordering::Relaxed);
        let id = writer.join().unwrap();
        assert!(id > settled || was_committed, "{id} is open, {settled} settled");
    });
}
