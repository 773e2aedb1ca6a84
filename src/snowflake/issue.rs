//! Issuing: from the shared generator of one id space, waiting where the core says so.

use super::{errors, layouts, node, stats};
use crate::clock::{self, GENERATORS};
use crate::error;
use crate::pg::{session, system_clock};
use idgen_core::generator::{Ended, Generator, Handle};
use idgen_core::layout::{Layout, time_text};
use idgen_core::snowflake::{Answer, Bounds, IdSpace, Run};
use idgen_core::table::Place;
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::time::Instant;

/// An id space and its generator, as this process remembers them.
#[derive(Clone, Copy)]
pub struct Attached {
    clock: &'static clock::State,
    generator: &'static Generator,
    handle: Handle,
    space: IdSpace,
    layout: Layout,
    index: usize,
}

impl Attached {
    /// False if the generator has been given to another space, or the worker id has changed.
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

/// Finds or begins the generator of this server's ids in a layout. Raises 55000 without preload or without a worker id,
/// 25006 on a standby, 22003 if the layout has no room for the worker id or no ids at this time.
pub fn attach(layout: Layout) -> Attached {
    let clock = clock::STATE.require();
    error::refuse_on_standby();
    stats::flush_at_transaction_end();
    let (space, place, generator) = loop {
        if let Some(found) = find(clock, layout) {
            break found;
        }
    };
    announce_end(&layout, system_clock::wall_ms());
    Attached { clock, generator, handle: place.handle, space, layout, index: place.index }
}

/// Finds the generator of a space under this server's worker id. `None` if the worker id has changed in between.
fn find(clock: &clock::State, layout: Layout) -> Option<(IdSpace, Place, &'static Generator)> {
    let node = node::require();
    let space = layout.space(node).unwrap_or_else(|e| errors::node_too_large(&layout, e).raise());
    begin(clock, &space);
    let kept = layouts::default().space(node).ok();
    GENERATORS.exclusive(|table| {
        // Worker ids change under this lock: what attaches here ends when the worker id does.
        if node::CURRENT.require().get() != Some(node) {
            return None;
        }
        let place = table.attach(space, (layout, node), kept);
        if place.new {
            stats::COUNTERS.require()[place.index].reset();
        }
        Some((space, place, &table.generators[place.index]))
    })
}

/// Begins ids, unless the clock is outside of the layout's time. A layout that has ended, or not begun, takes no generator
/// from one that works, and a clock by which no id is issued moves no mark.
fn begin(clock: &clock::State, space: &IdSpace) {
    let bounds = clock.careful_bounds();
    let answer = space.next(0, 1, &bounds);
    if answer != Answer::BeforeEpoch {
        refuse_outside(space, answer);
        clock::ensure_begun(Some(bounds.now_ms));
        return;
    }
    // The clock may have been set back, and ids go on from a mark past the epoch.
    clock::ensure_begun(None);
    refuse_outside(space, space.next(0, 1, &clock.careful_bounds()));
}

/// The layouts whose end this session was warned about.
static ANNOUNCED: Mutex<Vec<Layout>> = Mutex::new(Vec::new());

/// More layouts than a schema uses. A session that exceeds it is warned again.
const MOST_ANNOUNCED: usize = 64;

/// Warns when a layout ends within a year, once for each session and layout. The leader of a parallel query warns for its
/// workers.
fn announce_end(layout: &Layout, now_ms: i64) {
    if !layout.ends_within_a_year(now_ms) || session::is_parallel_worker() || !is_news(layout) {
        return;
    }
    let ends_at = time_text(layout.ends_at_ms());
    warning!("layout \"{layout}\" has no ids from {ends_at} on");
}

/// True the first time in this session.
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

/// The next id. The hot path: no lock, no allocation, no logging, and no foreign call but the clock.
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
    match attached.try_issue(want, &attached.clock.quick_bounds()) {
        Ok(Answer::Issued(run)) => run,
        _ => issue_carefully(attached, want),
    }
}

/// Issues by the true bounds, and waits or moves the mark where they stop the issue.
#[cold]
fn issue_carefully(attached: &mut Attached, want: u64) -> Run {
    // A long statement comes here once a window.
    node::follow_settings();
    loop {
        let bounds = attached.clock.careful_bounds();
        match attached.try_issue(want, &bounds) {
            Ok(Answer::Issued(run)) => {
                attached.clock.issued(&bounds, attached.space.time_ms(run.first + run.count - 1));
                // A session may have attached long before the last year.
                announce_end(&attached.layout, bounds.now_ms);
                return run;
            }
            Ok(Answer::Wait { time_ms }) => wait(attached, time_ms),
            Ok(Answer::Reserve { first_ms, last_ms }) => {
                attached.clock.make_room(&bounds, (first_ms, last_ms));
            }
            Ok(answer) => refuse_outside(&attached.space, answer),
            Err(Ended) => *attached = attach(attached.layout),
        }
    }
}

fn wait(attached: &Attached, time_ms: i64) {
    let began = Instant::now();
    // Counted before the wait, so that a cancelled wait counts.
    stats::count_wait(attached.index);
    attached.clock.wait_for_limit(time_ms);
    stats::count_wait_time(attached.index, began.elapsed());
}

/// Raises 22003 if the clock is outside of the layout's time.
fn refuse_outside(space: &IdSpace, answer: Answer) {
    match answer {
        Answer::BeforeEpoch => errors::before_epoch(space, system_clock::wall_ms()).raise(),
        Answer::Exhausted => errors::exhausted(space).raise(),
        Answer::Issued(_) | Answer::Wait { .. } | Answer::Reserve { .. } => {}
    }
}
