//! Issuing: from the shared state of one id space, waiting where the core says so.

use super::layouts;
use crate::shmem::Shared;
use crate::{clock, error, settings, shmem, stats};
use idgen_core::generator::{Ended, Generator, Handle};
use idgen_core::layout::{Layout, Node, time_text};
use idgen_core::snowflake::{Answer, Bounds, IdSpace, Run};
use pgrx::prelude::*;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// An id space and where it lives, as this process remembers it.
#[derive(Clone, Copy)]
pub struct Attached {
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
}

/// Finds the shared state of this server's ids in a layout, or makes it.
pub fn attach(layout: Layout) -> Attached {
    let Some(shared) = shmem::shared() else {
        error::not_preloaded().raise();
    };
    // SAFETY: reads a flag. Checked here and not at each issue: a server never goes back into recovery.
    if unsafe { pg_sys::RecoveryInProgress() } {
        error::standby().raise();
    }
    let node = settings::node();
    let space = layout.space(node).unwrap_or_else(|e| error::server_number(&layout, e).raise());
    let now_ms = clock::now_ms();
    // A layout that has ended, or not begun, takes no generator from one that works.
    refuse_outside(&space, space.next(0, 1, &bounds(now_ms)), now_ms);
    let kept = layouts::default().space(node).ok();
    stats::flush_at_transaction_end();
    let attached = place(shared, space, (layout, node), kept, now_ms);
    attached.unwrap_or_else(|| error::table_full(shared.generators.len()).raise())
}

fn place(
    shared: &'static Shared,
    space: IdSpace,
    (layout, node): (Layout, Node),
    kept: Option<IdSpace>,
    now_ms: i64,
) -> Option<Attached> {
    let place = shared.with_table(|table| {
        let place = table.attach(space, (layout, node), kept, now_ms).ok()?;
        if place.new {
            shared.counters[place.index].reset();
        }
        Some(place)
    })?;
    let index = place.index;
    if place.new {
        announce_end(&layout, now_ms);
    }
    Some(Attached { generator: &shared.generators[index], handle: place.handle, space, layout, index })
}

/// Says so when a layout has less than a year to go. Once for each start of the server and use of the layout.
fn announce_end(layout: &Layout, now_ms: i64) {
    if layout.ends_within_a_year(now_ms) {
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
    loop {
        let bounds = bounds(clock::now_ms());
        match attached.generator.issue(attached.handle, &attached.space, want, &bounds) {
            Ok(Answer::Issued(run)) => return run,
            other => overcome(attached, other, bounds.now_ms),
        }
    }
}

#[inline]
fn bounds(now_ms: i64) -> Bounds {
    // Nothing durable bounds an issue yet; the end of what milliseconds can say does.
    Bounds { now_ms, drift_ms: settings::max_drift_ms(), mark_ms: i64::MAX }
}

/// What to do before asking again; an error where that would not help.
#[cold]
fn overcome(attached: &mut Attached, obstacle: Result<Answer, Ended>, now_ms: i64) {
    match obstacle {
        Err(Ended) => *attached = attach(attached.layout),
        Ok(Answer::Wait { until_ms }) => wait_until(attached.index, until_ms),
        Ok(answer) => refuse_outside(&attached.space, answer, now_ms),
    }
}

/// An error when the clock is outside of the layout's time.
fn refuse_outside(space: &IdSpace, answer: Answer, now_ms: i64) {
    match answer {
        Answer::BeforeEpoch => error::before_epoch(space, now_ms).raise(),
        Answer::Exhausted | Answer::Reserve { .. } => error::exhausted(space).raise(),
        Answer::Issued(_) | Answer::Wait { .. } => {}
    }
}

/// Waits for the clock, outside of any lock. Ends early, by an error, when the statement is cancelled or the session
/// terminated.
fn wait_until(index: usize, until_ms: i64) {
    let began = Instant::now();
    // Counted before the wait, so that a wait which is cancelled shows too.
    stats::count_wait(index);
    loop {
        let left_ns = until_ms.saturating_mul(1_000_000) - clock::now_ns();
        if left_ns <= 0 {
            break;
        }
        sleep(Duration::from_nanos(left_ns as u64));
        check_for_interrupts!();
    }
    stats::count_wait_time(index, began.elapsed());
}

/// Sleeps for at most so long.
fn sleep(left: Duration) {
    // The clock may step while we sleep: look at it again after a second.
    let ms = left.as_millis().min(1000) as i64;
    if ms == 0 {
        // A latch counts in milliseconds, and would sleep through a tick of the default layout. A signal ends this
        // one too; should it arrive just before, it is seen within the millisecond.
        let rest = libc::timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
        // SAFETY: the pointer is to a local that outlives the call; null: the remainder is not wanted.
        unsafe { libc::nanosleep(&rest, null_mut()) };
        return;
    }
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: every backend has its latch, and waits on it alone.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
}
