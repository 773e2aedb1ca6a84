//! The view `idgen.stat_clock`, and what `idgen.status()` reads of the clock. All times are 0 or `None` without preload.

use super::file;
use super::state::{GENERATORS, STATE, days, read};
use crate::pg::{system_clock, timestamp};
use crate::settings;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// The row of `idgen.stat_clock`; none without preload.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity, reason = "the columns of a view")]
fn stat_get_clock() -> TableIterator<
    'static,
    (
        name!(mark, Option<TimestampWithTimeZone>),
        name!(lead, Option<Interval>),
        name!(backward_steps, i64),
        name!(largest_step, Option<Interval>),
        name!(mark_writes, i64),
        name!(mark_write_time, Option<Interval>),
    ),
> {
    let rows = STATE.get().map(|state| {
        let (steps, largest_us) = state.steps.backward();
        (
            mark_ms().and_then(timestamp::from_ms),
            timestamp::interval_of_us(lead_ms().saturating_mul(1000)),
            steps as i64,
            timestamp::interval_of_us(largest_us),
            state.writes.load(Relaxed) as i64,
            timestamp::interval_of_us(state.write_us.load(Relaxed) as i64),
        )
    });
    TableIterator::new(rows)
}

/// The mark; `None` before the first generation since the server started.
pub fn mark_ms() -> Option<i64> {
    STATE.get().filter(|state| state.mark.is_known()).map(|state| state.mark.mark_ms())
}

/// How far ids are ahead of the wall clock: the latest one, or where they begin after a crash, a promotion or an observed id.
fn lead_ms() -> i64 {
    let reached_ms = GENERATORS.shared(|table| table.reached_ms());
    reached_ms.saturating_sub(system_clock::wall_ms()).max(0)
}

/// How far the wall clock is behind the times of ids; 0 if they are ahead by no more than a burst can take them.
pub fn behind_ms() -> i64 {
    match STATE.get().map_or(0, |_| lead_ms()) {
        lead_ms if lead_ms > settings::max_drift_ms() => lead_ms,
        _ => 0,
    }
}

/// The steps far forward that the wall clock has not taken back: how many, and by how many days in all.
pub fn far_forward() -> Option<(u64, i64)> {
    let forward = STATE.get()?.steps.far_forward(read())?;
    Some((forward.steps, days(forward.by_us)))
}

/// The error of the last write of the mark, with the file's path.
pub fn write_error() -> Option<(&'static str, io::Error)> {
    match STATE.get()?.last_error.load(Relaxed) {
        0 => None,
        errno => Some((file::PATH, io::Error::from_raw_os_error(errno))),
    }
}

/// True if a standby does not know how far ids may go.
pub fn is_label_passed() -> bool {
    STATE.get().is_some_and(|state| state.label.is_passed.load(Acquire))
}

/// True if `idgen.layout` has changed since the file was written by an earlier start.
pub fn is_layout_changed() -> bool {
    STATE.get().is_some_and(|state| state.is_layout_changed.load(Relaxed))
}

pub fn reset() {
    if let Some(state) = STATE.get() {
        state.steps.reset();
        state.writes.store(0, Relaxed);
        state.write_us.store(0, Relaxed);
    }
}
