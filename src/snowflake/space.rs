//! Issuing: from the shared state of one id space, waiting where the core says so.

use super::layouts;
use crate::shmem::Shared;
use crate::{clock, error, shmem, stats, worker};
use idgen_core::generator::{Ended, Generator, Handle};
use idgen_core::layout::{Layout, time_text};
use idgen_core::snowflake::{Answer, Bounds, IdSpace, Run};
use idgen_core::table::Place;
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
    clock::mark::ensure_known(shared);
    stats::flush_at_transaction_end();
    let (space, place) = loop {
        if let Some(found) = find(shared, layout) {
            break found;
        }
    };
    if place.new {
        announce_end(&layout);
    }
    let (generator, index, handle) = (&shared.generators[place.index], place.index, place.handle);
    Attached { shared, generator, handle, space, layout, index }
}

/// Finds the place of a space under the number that this server has. `None` if it has got another one meanwhile.
fn find(shared: &Shared, layout: Layout) -> Option<(IdSpace, Place)> {
    let node = worker::state::node(shared);
    let space = layout.space(node).unwrap_or_else(|e| error::server_number(&layout, e).raise());
    // A layout that has ended, or not begun, takes no generator from one that works.
    refuse_outside(&space, space.next(0, 1, &clock::careful_bounds(shared)));
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

pub fn refuse_on_standby() {
    if clock::recovery::is_in_progress() {
        error::standby().raise();
    }
}

/// Says so when a layout has less than a year to go. Once for each start of the server and use of the layout.
fn announce_end(layout: &Layout) {
    if layout.ends_within_a_year(clock::wall_ms()) {
        let ends_at = time_text(layout.ends_at_ms());
        warning!("layout \"{layout}\" has no ids from {ends_at} on");
    }
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
    worker::keeper::ensure_running();
    loop {
        let bounds = clock::careful_bounds(attached.shared);
        match attached.try_issue(want, &bounds) {
            Ok(Answer::Issued(run)) => return run,
            Ok(Answer::Wait { time_ms }) => wait(attached, time_ms),
            Ok(Answer::Reserve { first_ms, last_ms }) => {
                clock::make_room(attached.shared, bounds.mark_ms, (first_ms, last_ms));
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
