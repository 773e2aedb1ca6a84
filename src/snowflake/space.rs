//! Issuing: from the shared state of one id space, waiting where the core says so.

use super::layouts;
use crate::shmem::Shared;
use crate::{clock, error, shmem, stats, worker};
use idgen_core::generator::{Ended, Generator, Handle};
use idgen_core::layout::{Layout, time_text};
use idgen_core::snowflake::{Answer, Bounds, IdSpace, Run};
use idgen_core::table::Place;
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::time::Instant;

/// An id space and where it lives, as this process remembers it.
#[derive(Clone, Copy)]
pub struct Attached {
    shared: &'static Shared,
    generator: &'static Generator,
    handle: Handle,
    space: IdSpace,
    layout: Layout,
    pub index: usize,
}

impl Attached {
    /// Does the space still live there?
    pub fn is_current(&self) -> bool {
        self.generator.is_current(self.handle)
    }

    #[inline]
    pub fn id(&self, slot: u64) -> i64 {
        self.space.id(slot)
    }

    #[inline]
    fn try_issue(&self, want: u64, bounds: &Bounds) -> Result<Answer, Ended> {
        self.generator.issue(self.handle, &self.space, want, bounds)
    }
}

/// Finds the shared state of this server's ids in a layout, or makes it.
pub fn attach(layout: Layout) -> Attached {
    let shared = shmem::shared().unwrap_or_else(|| error::not_preloaded().raise());
    // Here and not at each issue: a server never goes back into recovery.
    refuse_on_standby();
    stats::flush_at_transaction_end();
    let (space, place) = loop {
        if let Some(found) = find(shared, layout) {
            break found;
        }
    };
    announce_end(&layout, clock::wall_ms());
    let (generator, index, handle) = (&shared.generators[place.index], place.index, place.handle);
    Attached { shared, generator, handle, space, layout, index }
}

/// Finds the place of a space under the number that this server has. `None` if it has got another one meanwhile.
fn find(shared: &Shared, layout: Layout) -> Option<(IdSpace, Place)> {
    let node = worker::state::node(shared);
    let space = layout.space(node).unwrap_or_else(|e| error::server_number(&layout, e).raise());
    begin(shared, &space);
    let kept = layouts::default().space(node).ok();
    let place = shared.with_table(|table| {
        // Numbers change under this lock: what is attached here ends when the number does.
        if !shared.worker.is(node) {
            return None;
        }
        let place = table.attach(space, (layout, node), kept);
        if place.new {
            shared.counters[place.index].reset();
        }
        Some(place)
    })?;
    Some((space, place))
}

/// Makes sure that time has begun, unless the clock is outside of the layout's time. A layout that has ended, or not begun,
/// takes no generator from one that works, and a clock by which no id is issued moves no mark.
fn begin(shared: &Shared, space: &IdSpace) {
    let bounds = clock::careful_bounds(shared);
    let answer = space.next(0, 1, &bounds);
    if answer != Answer::BeforeEpoch {
        refuse_outside(space, answer);
        clock::mark::ensure_begun(shared, Some(bounds.now_ms));
        return;
    }
    // The clock may have been set back, and ids go on from a mark past the epoch.
    clock::mark::ensure_begun(shared, None);
    refuse_outside(space, space.next(0, 1, &clock::careful_bounds(shared)));
}

pub fn refuse_on_standby() {
    if clock::recovery::is_in_progress() {
        error::standby().raise();
    }
}

/// The layouts whose end this session was warned of.
static ANNOUNCED: Mutex<Vec<Layout>> = Mutex::new(Vec::new());

/// More layouts than a schema uses. A session that makes up new ones is warned again.
const MOST_ANNOUNCED: usize = 64;

/// Warns when a layout has less than a year to go, once a session and layout. The leader of a parallel query has warned its
/// session for its workers.
fn announce_end(layout: &Layout, now_ms: i64) {
    // SAFETY: a variable of this process, set when it starts.
    if !layout.ends_within_a_year(now_ms) || unsafe { pg_sys::ParallelWorkerNumber } >= 0 || !is_news(layout) {
        return;
    }
    let ends_at = time_text(layout.ends_at_ms());
    warning!("layout \"{layout}\" has no ids from {ends_at} on");
}

/// Is this the first time in this session that the layout's end is spoken of?
fn is_news(layout: &Layout) -> bool {
    let mut announced = ANNOUNCED.lock();
    if announced.contains(layout) {
        return false;
    }
    if announced.len() >= MOST_ANNOUNCED {
        announced.clear();
    }
    announced.push(*layout);
    true
}

/// The next id. This is the hot path: no lock, no allocation, no logging, and no foreign call but the clock.
#[inline]
pub fn next_id(attached: &mut Attached) -> i64 {
    let run = issue(attached, 1);
    stats::count(attached.index, run, false);
    attached.id(run.first)
}

/// The next run of ids, at least 1 and at most `want`, as many as the bounds allow at once.
pub fn next_run(attached: &mut Attached, want: u64) -> Run {
    let run = issue(attached, want);
    stats::count(attached.index, run, true);
    run
}

#[inline]
fn issue(attached: &mut Attached, want: u64) -> Run {
    match attached.try_issue(want, &clock::quick_bounds(attached.shared)) {
        Ok(Answer::Issued(run)) => run,
        _ => issue_carefully(attached, want),
    }
}

/// Issues by the true bounds, and waits or moves the mark where they are in the way.
#[cold]
fn issue_carefully(attached: &mut Attached, want: u64) -> Run {
    // Also a statement that goes on for long comes here once a window.
    worker::state::end_unset(attached.shared);
    loop {
        let bounds = clock::careful_bounds(attached.shared);
        match attached.try_issue(want, &bounds) {
            Ok(Answer::Issued(run)) => {
                clock::issued(attached.shared, &bounds, attached.space.time_ms(run.first + run.count - 1));
                // A session may have attached long before the last year.
                announce_end(&attached.layout, bounds.now_ms);
                return run;
            }
            Ok(Answer::Wait { time_ms }) => wait(attached, time_ms),
            Ok(Answer::Reserve { first_ms, last_ms }) => {
                clock::make_room(attached.shared, &bounds, (first_ms, last_ms));
            }
            Ok(answer) => refuse_outside(&attached.space, answer),
            Err(Ended) => *attached = attach(attached.layout),
        }
    }
}

fn wait(attached: &Attached, time_ms: i64) {
    let began = Instant::now();
    // Counted before the wait, so that a wait which is cancelled shows too.
    stats::count_wait(attached.index);
    clock::wait_for_limit(attached.shared, time_ms);
    stats::count_wait_time(attached.index, began.elapsed());
}

/// An error when the clock is outside of the layout's time.
fn refuse_outside(space: &IdSpace, answer: Answer) {
    match answer {
        Answer::BeforeEpoch => error::before_epoch(space, clock::wall_ms()).raise(),
        Answer::Exhausted => error::exhausted(space).raise(),
        Answer::Issued(_) | Answer::Wait { .. } | Answer::Reserve { .. } => {}
    }
}
