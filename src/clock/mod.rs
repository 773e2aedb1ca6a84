//! The time of ids: read from the clocks, and bounded by the mark in the high-water file and by the lease end. With the
//! view `idgen.stat_clock`, and the checks of the clock.

use crate::error::Check;
use crate::pg::datum::{self, Composite};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::{recovery, system_clock, xact};
use crate::settings;
use crate::shmem;
use idgen_core::clock::{Obstacle, US_PER_MS, labelling, moves};
use idgen_core::layout::time_text;
use idgen_core::snowflake::Bounds;
use pgrx::prelude::*;
use state::{FILE, days, read};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

mod file;
mod mark;
mod state;

pub use mark::{ensure_begun, raise_to};
pub use state::{GENERATORS, STATE, State};

impl State {
    /// Called after ids up to `last_ms` were issued within these bounds: moves the mark if it is due and no other process
    /// is moving it.
    pub fn issued(&self, bounds: &Bounds, last_ms: i64) {
        moves::move_if_due(self, next_limit_ms(bounds, last_ms));
    }

    /// Raises the ceiling for ids of these times, the first of which was at or past the mark of these bounds: moves the mark, or
    /// calls the function of [`on_lease_end_reached`].
    pub fn raise_ceiling(&self, bounds: &Bounds, (first_ms, last_ms): (i64, i64)) {
        match self.high_water.mark.obstacle(bounds.ceiling_ms, last_ms) {
            Obstacle::Gone => {}
            Obstacle::Mark { reserve_ms: to_ms } => {
                mark::or_raise(moves::reserve(self, to_ms, next_limit_ms(bounds, to_ms)))
            }
            Obstacle::LeaseEnd => ON_LEASE_END_REACHED.get().into_iter().for_each(|wait| wait(first_ms)),
        }
    }

    pub fn lease_end_ms(&self) -> i64 {
        self.high_water.mark.lease_end_ms()
    }
}

/// Sleeps until the limit of ids is at least this, or until this time of CLOCK_BOOTTIME in microseconds, outside of any lock.
/// Raises when the statement is cancelled.
pub fn wait_for_limit(limit_ms: i64, until_us: i64) {
    loop {
        // In each turn, also in one that does not sleep: the caller asks again.
        check_for_interrupts!();
        let wanted_us = (limit_ms - settings::max_drift_ms()).saturating_mul(US_PER_MS);
        let by_wall_us = wanted_us.saturating_sub(system_clock::wall_us());
        let left_us = by_wall_us.min(until_us.saturating_sub(system_clock::boot_us()));
        if left_us <= 0 {
            return;
        }
        latch::sleep(Duration::from_micros(left_us as u64), &LIMIT_WAIT);
    }
}

/// The next limit of ids that have reached `reached_ms` within these bounds.
fn next_limit_ms(bounds: &Bounds, reached_ms: i64) -> i64 {
    reached_ms.max(bounds.now_ms + settings::max_drift_ms())
}

static LIMIT_WAIT: WaitEvent = WaitEvent::new(c"IdgenClock");

static ON_LEASE_END_REACHED: OnceLock<fn(i64)> = OnceLock::new();

/// Registers a function that is called when ids reach the lease end, with the time of the next one. It returns when the end
/// has moved, or raises. While the postmaster preloads libraries.
pub fn on_lease_end_reached(wait: fn(i64)) {
    let _ = ON_LEASE_END_REACHED.set(wait);
}

/// From now on ids of this server have times from `first_ms` up to but not including `lease_end_ms`, under a worker id that
/// `publish` stores. All earlier issuing has ended when this returns. Nothing changes if the condition is false under the
/// generators' lock.
pub fn restrict_times(condition: impl FnOnce() -> bool, first_ms: i64, lease_end_ms: i64, publish: impl FnOnce()) {
    let state = STATE.require();
    GENERATORS.exclusive(|table| {
        if condition() {
            // First: a process that sees the new end must see that tenancies under the old worker id have ended.
            table.restart_at(first_ms);
            state.high_water.mark.set_lease_end(lease_end_ms);
            // Last: a process that waits for another end reads what is published.
            publish();
        }
    });
}

/// Moves the lease end only: the lease was extended.
pub fn extend_to(lease_end_ms: i64) {
    let state = STATE.require();
    GENERATORS.exclusive(|_| state.high_water.mark.set_lease_end(lease_end_ms));
}

/// Before the first lease of a worker id: nothing can be issued. In the postmaster at the start.
pub fn restrict_to_nothing_at_start() {
    STATE.require().high_water.mark.set_lease_end(i64::MIN);
}

/// The row of `idgen.stat_clock`; none without preload.
#[pg_extern(sql = false)]
fn stat_get_clock() -> SetOfIterator<'static, Composite<6>> {
    let row = STATE.get().map(|state| {
        let (steps, largest_us) = state.steps.backward();
        Composite([
            state.high_water.mark.known_ms().and_then(datum::from_ms).into(),
            datum::interval_of_us(lead_ms().saturating_mul(1000)).into(),
            (steps as i64).into(),
            datum::interval_of_us(largest_us).into(),
            (state.writes.load(Relaxed) as i64).into(),
            datum::interval_of_us(state.write_us.load(Relaxed) as i64).into(),
        ])
    });
    SetOfIterator::new(row)
}

/// How far ids are ahead of the wall clock: the latest one, or where they begin after a crash, a promotion or an observed id.
fn lead_ms() -> i64 {
    let reached_ms = GENERATORS.shared(|table| table.reached_ms());
    reached_ms.saturating_sub(system_clock::wall_ms()).max(0)
}

pub fn reset() {
    if let Some(state) = STATE.get() {
        state.steps.reset();
        state.writes.store(0, Relaxed);
        state.write_us.store(0, Relaxed);
    }
}

const IDS: &str = "snowflake ids and UUIDs";

/// Ids that are this far ahead of the clock, and further than a burst can take them, fail the check.
const BEHIND_MS: i64 = 1000;

pub fn checks() -> Vec<Check> {
    vec![layout(), clock(), mark()]
}

fn layout() -> Check {
    const NAME: &str = "idgen.layout";
    if !STATE.get().is_some_and(|state| state.is_layout_changed.load(Relaxed)) {
        return Check::ok(NAME, "idgen.layout is the same as when ids were last issued");
    }
    Check::warning(
        NAME,
        "idgen.layout was changed before this start: old and new ids of one table can be equal, and decode differently",
        "Name the layout in the defaults of tables that have ids of the old one, or set idgen.layout back. \
         The next start ends this check.",
    )
    .affects("tables whose default names no layout")
}

fn clock() -> Check {
    const NAME: &str = "clock";
    if let Some((steps, by_us)) = STATE.get().and_then(|state| state.steps.far_forward(read())) {
        let days = days(by_us);
        let steps = if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
        return Check::warning(
            NAME,
            format!("the wall clock was set forward by {days} days, in {steps}"),
            "If it is wrong, correct it before more ids are generated, because they keep its time. \
             If it is right, run SELECT idgen.reset_stats().",
        )
        .affects(IDS);
    }
    match STATE.get().map_or(0, |_| lead_ms()) {
        lead_ms if lead_ms > settings::max_drift_ms() && lead_ms >= BEHIND_MS => Check::warning(
            NAME,
            format!(
                "the wall clock is {lead_ms} ms behind the times of ids: it was set back, or ids began ahead of it after a crash, a promotion or snowflake_observe"
            ),
            "Ids go on, and the lead shrinks while fewer ids are drawn than the layout allows. If it does not, compare the \
             server's clock with that of other machines.",
        )
        .affects(IDS),
        _ => Check::ok(NAME, "ids follow the wall clock"),
    }
}

fn mark() -> Check {
    const NAME: &str = "mark";
    let errno = STATE.get().map_or(0, |state| state.last_error.load(Relaxed));
    if errno != 0 {
        return Check::error(
            NAME,
            format!(
                "high-water file \"{}\" could not be written: {}",
                file::PATH,
                io::Error::from_raw_os_error(errno)
            ),
            "Free disk space, or repair the file system. Draws fail as soon as ids reach the mark; see idgen.stat_clock.",
        )
        .affects(IDS);
    }
    if let Some(error) = unusable() {
        return Check::raising(NAME, file::high_water(error)).affects(IDS);
    }
    if STATE.get().is_some_and(|state| state.high_water.label.reach.is_passed()) {
        return Check::error(
            NAME,
            "standbys were not told the high-water mark, so a standby that is promoted now may issue ids again",
            "Promote no standby. If no background worker could be started, raise max_worker_processes; otherwise read the \
             server's log.",
        )
        .affects(IDS);
    }
    let message = STATE.get().and_then(|state| state.high_water.mark.known_ms()).map_or_else(
        || "no id was issued since the server started".to_owned(),
        |mark_ms| format!("ids are durably promised up to {}", time_text(mark_ms)),
    );
    Check::ok(NAME, message)
}

/// The reason why the file cannot be used; `None` if there is none, or once a draw has read and written the file.
fn unusable() -> Option<file::FileError> {
    STATE.get().filter(|state| !moves::is_ready(&state.high_water) && !recovery::is_in_progress())?;
    file::read(recovery::system_identifier()).err().or_else(|| file::access_error().map(file::FileError::Io))
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&STATE, &FILE, &GENERATORS]);
    shmem::at_startup(|| xact::at_exit(mark::at_exit));
    // In the postmaster, from which all processes inherit it.
    xact::on_xact_event(|_| end_wait());
    xact::on_savepoint_rollback(end_wait);
}

fn end_wait() {
    STATE.get().into_iter().for_each(labelling::end_wait_of_transaction);
}
