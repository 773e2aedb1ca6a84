//! What operators see of the clock.

use super::{NS_PER_MS, State, read, wall_ms};
use crate::shmem::{self, Shared};
use crate::timestamp;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// One row when the library is preloaded, else none: what `idgen.stat_clock` shows.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.stat_get_clock(OUT mark timestamptz, OUT lead interval, OUT backward_steps bigint, \
           OUT largest_step interval, OUT mark_writes bigint, OUT mark_write_time interval) RETURNS SETOF record \
           VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
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
    let rows = shmem::shared().map(|shared| {
        let state = shared.clock;
        let (steps, largest_ns) = state.effective.steps();
        (
            mark_ms(state).and_then(timestamp::from_ms),
            timestamp::interval_of_us(lead_ms(shared).saturating_mul(1000)),
            steps as i64,
            timestamp::interval_of_us(largest_ns / 1000),
            state.writes.load(Relaxed) as i64,
            timestamp::interval_of_us(state.write_us.load(Relaxed) as i64),
        )
    });
    TableIterator::new(rows)
}

/// The mark; `None` before the first generation since the server started.
pub fn mark_ms(state: &State) -> Option<i64> {
    state.mark.is_known().then(|| state.mark.mark_ms())
}

/// How far ids are ahead of the wall clock: the latest one, or where they begin after a crash, a promotion or an observed id.
pub fn lead_ms(shared: &Shared) -> i64 {
    let reached_ms = shared.with_table(|table| table.reached_ms());
    reached_ms.saturating_sub(wall_ms()).max(0)
}

/// How far the wall clock is behind the time by which ids are issued. That is not lowered while none is, so ids count too.
pub fn behind_ms(shared: &Shared) -> i64 {
    let reading = read();
    let behind_ms = (shared.clock.effective.now_ns(reading) - reading.wall_ns) / NS_PER_MS;
    behind_ms.min(lead_ms(shared))
}

/// The steps far forward that the wall clock has made and not taken back: how many, and by how many days in all.
pub fn far_forward(state: &State) -> Option<(u64, i64)> {
    state.effective.far_forward(read()).map(|forward| (forward.steps, days(forward.by_ns)))
}

pub fn days(ns: i64) -> i64 {
    ns / NS_PER_MS / 86_400_000
}

/// What the system said when the mark was last written, if that went wrong.
pub fn write_error(state: &State) -> Option<io::Error> {
    match state.last_error.load(Relaxed) {
        0 => None,
        number => Some(io::Error::from_raw_os_error(number)),
    }
}

pub fn reset(state: &State) {
    state.effective.reset_steps();
    state.writes.store(0, Relaxed);
    state.write_us.store(0, Relaxed);
}
