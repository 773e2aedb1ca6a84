//! Waiting for a lock with a timeout that never leaves the lock held.
//!
//! `lock_timeout` ends the wait by an error, but a lock that was granted just before stays held: nothing releases a
//! session's lock. Here the wait runs in a subtransaction, so that the error can be caught and the lock tested.
//! PostgreSQL can report the timeout, or a cancel, only after the grant, at the next check for interrupts. So that
//! check is part of the wait.

use super::advisory_lock::{Acquired, AdvisoryLock, Scope};
use super::ereport::Report;
use super::xact;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

/// How long a call waits, and what happens then.
#[derive(Clone, Copy)]
pub enum Limit {
    /// Until then; the call answers.
    Answer(Instant),
    /// Until then; the call raises the error of `lock_timeout`.
    Error(Instant),
    /// Each wait as long as `lock_timeout` allows.
    Setting,
}

impl Limit {
    /// For functions that answer. A part of a millisecond counts as a whole one: it is a wait, too.
    pub fn answer(timeout: Duration) -> Self {
        Limit::Answer(Instant::now() + Duration::from_millis(timeout.as_micros().div_ceil(1000) as u64))
    }

    /// For functions that wait as long as `lock_timeout` allows, for all locks of the call together.
    pub fn by_lock_timeout() -> Self {
        // SAFETY: reads a variable of this process.
        match unsafe { pg_sys::LockTimeout } {
            0 => Limit::Setting,
            ms => Limit::Error(Instant::now() + Duration::from_millis(ms as u64)),
        }
    }

    /// The time that is left; `None` if only the setting limits it.
    pub fn left(&self) -> Option<Duration> {
        let (Limit::Answer(until) | Limit::Error(until)) = self else {
            return None;
        };
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// As [`Limit::left`], in milliseconds, rounded up.
    pub fn left_ms(&self) -> Option<i32> {
        let us = self.left()?.as_micros();
        Some(i32::try_from(us.div_ceil(1000)).unwrap_or(i32::MAX))
    }

    /// The result of a call whose time is over: `None`, or the error of `lock_timeout`.
    pub fn time_out<R>(&self) -> Option<R> {
        match self {
            Limit::Answer(_) => None,
            Limit::Error(_) | Limit::Setting => timed_out().raise(),
        }
    }
}

/// The message is PostgreSQL's own.
fn timed_out() -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, "canceling statement due to lock timeout")
}

/// Acquires a lock for the session, after an attempt that found it taken. `None` when the time is over. The lock is not
/// held after `None` or an error.
pub fn acquire_for_session(lock: &AdvisoryLock, limit: Limit) -> Option<Acquired> {
    let ms = limit.left_ms();
    if ms == Some(0) {
        return limit.time_out();
    }
    match with_lock_timeout(ms, || Some(lock.acquire(Scope::Session))) {
        Ok(acquired) => acquired,
        Err(cause) => {
            // Before the wait it was not held in this mode: otherwise there would have been no wait.
            let is_held = lock.is_held();
            if is_lock_timeout(&cause) {
                return if is_held { Some(Acquired::First) } else { limit.time_out() };
            }
            if is_held {
                lock.release(Scope::Session);
            }
            cause.rethrow()
        }
    }
}

/// Acquires a lock for the transaction. False when the time is over.
pub fn acquire_for_transaction(lock: &AdvisoryLock, limit: Limit) -> bool {
    if lock.try_acquire(Scope::Transaction).is_some() {
        return true;
    }
    let is_acquired = acquire_for_session(lock, limit).is_some();
    if is_acquired {
        lock.hand_to_transaction();
    }
    is_acquired
}

/// Works in a subtransaction with this `lock_timeout`; `None` leaves the setting. A timeout or a cancel that comes
/// after the last wait still ends the work.
pub fn with_lock_timeout<R>(ms: Option<i32>, work: impl FnOnce() -> Option<R>) -> Result<Option<R>, Box<CaughtError>> {
    xact::in_subtransaction(|| {
        // SAFETY: a variable of this process. PostgreSQL reads it once for each wait.
        let before = unsafe { pg_sys::LockTimeout };
        // SAFETY: as above.
        unsafe { pg_sys::LockTimeout = ms.unwrap_or(before) };
        let work = || {
            let result = work();
            check_for_interrupts!();
            result
        };
        PgTryBuilder::new(AssertUnwindSafe(work))
            // SAFETY: as above; also when the wait ends by an error.
            .finally(move || unsafe { pg_sys::LockTimeout = before })
            .execute()
    })
}

/// True for the error of a lock that was not available in time.
pub fn is_lock_timeout(cause: &CaughtError) -> bool {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = cause;
    report.sql_error_code() == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
}
