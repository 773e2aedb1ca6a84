//! The time of ids: read from the clocks, and bounded by the mark in the high-water file and by the lease end.
//!
//! The clock imports no other room. Callers set the lease end ([`confine`]) and register a function to call when ids reach
//! it ([`on_lease_end_reached`]).

use crate::pg::wait_event::WaitEvent;
use crate::pg::{latch, system_clock, xact};
use crate::settings;
use crate::shmem;
use idgen_core::clock::{Obstacle, US_PER_MS};
use idgen_core::snowflake::Bounds;
use pgrx::prelude::*;
use state::FILE;
use std::sync::OnceLock;
use std::time::Duration;

mod bounds;
mod errors;
mod file;
mod label;
mod mark;
mod recovery;
mod state;
pub mod stats;
mod status;

pub use mark::{ensure_begun, raise_to};
pub use state::{GENERATORS, STATE, State};
pub use status::checks;

impl State {
    /// Called after ids up to `last_ms` were issued within these bounds: moves the mark if it is due and no other process
    /// is moving it.
    pub fn issued(&self, bounds: &Bounds, last_ms: i64) {
        mark::tend(self, next_limit_ms(bounds, last_ms));
    }

    /// Makes room for ids of these times, the first of which was at or past the mark of these bounds: moves the mark, or
    /// calls the function of [`on_lease_end_reached`].
    pub fn make_room(&self, bounds: &Bounds, (first_ms, last_ms): (i64, i64)) {
        match self.mark.obstacle(bounds.ceiling_ms, last_ms) {
            Obstacle::Gone => {}
            Obstacle::Mark { reserve_ms } => mark::reserve(self, reserve_ms, next_limit_ms(bounds, reserve_ms)),
            Obstacle::LeaseEnd => ON_LEASE_END_REACHED.get().into_iter().for_each(|wait| wait(first_ms)),
        }
    }

    pub fn lease_end_ms(&self) -> i64 {
        self.mark.lease_end_ms()
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

/// The wait of ids that have reached the limit ahead of the clock.
static LIMIT_WAIT: WaitEvent = WaitEvent::new(c"IdgenClock");

static ON_LEASE_END_REACHED: OnceLock<fn(i64)> = OnceLock::new();

/// Registers a function that is called when ids reach the lease end, with the time of the next one. It returns when the end
/// has moved, or raises. While the postmaster preloads libraries.
pub fn on_lease_end_reached(wait: fn(i64)) {
    let _ = ON_LEASE_END_REACHED.set(wait);
}

/// From now on ids of this server have times from `first_ms` up to but not including `lease_end_ms`, under a worker id that
/// `publish` stores. All earlier issuing has ended when this returns. `None`, and nothing changes, if the condition is false
/// under the generators' lock.
pub fn confine<R>(
    condition: impl FnOnce() -> bool,
    first_ms: i64,
    lease_end_ms: i64,
    publish: impl FnOnce() -> R,
) -> Option<R> {
    let state = STATE.require();
    GENERATORS.exclusive(|table| {
        if !condition() {
            return None;
        }
        // First: a process that sees the new end must see that tenancies under the old worker id have ended.
        table.restart_at(first_ms);
        state.mark.set_lease_end(lease_end_ms);
        // Last: a process that waits for another end reads what is published.
        Some(publish())
    })
}

/// Moves the lease end only: the lease was extended.
pub fn extend_to(lease_end_ms: i64) {
    let state = STATE.require();
    GENERATORS.exclusive(|_| state.mark.set_lease_end(lease_end_ms));
}

/// Before the first lease of a worker id: nothing can be issued. In the postmaster at the start.
pub fn confine_to_nothing_at_start() {
    STATE.require().mark.set_lease_end(i64::MIN);
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&STATE, &FILE, &GENERATORS]);
    shmem::at_startup(|| {
        recovery::begin();
        xact::at_exit(mark::at_exit);
    });
    // In the postmaster, from which all processes inherit it.
    xact::on_xact_event(|_| label::at_xact_event());
}
