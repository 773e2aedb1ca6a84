//! Waiting for a lock, with a time limit that never leaves the lock held.
//!
//! `lock_timeout` ends the wait by an error, and a lock that was granted just before stays held: nothing releases a session's
//! lock. Here the wait is in a subtransaction, so that the error can be caught, and then the lock is held or it is not.
//! PostgreSQL can even report the timeout, or a cancel, some time after the grant, at the next check for interrupts. So that
//! check is part of the wait.

use super::errors;
use super::manager::{Lock, Scope, Taken};
use crate::pg::xact;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

/// How long to wait, and what it is if that was not enough.
#[derive(Clone, Copy)]
pub enum Limit {
    /// Until then; an answer.
    Answer(Instant),
    /// Until then; an error, as of `lock_timeout`.
    Error(Instant),
    /// As long as `lock_timeout` lets it.
    Setting,
}

impl Limit {
    /// For the functions that say whether it was available. A part of a millisecond counts as one: it is a wait, too.
    pub fn answer(timeout: Duration) -> Self {
        Limit::Answer(Instant::now() + Duration::from_millis(timeout.as_micros().div_ceil(1000) as u64))
    }

    /// For the functions that wait as long as `lock_timeout` lets them, over all locks of the call.
    pub fn by_lock_timeout() -> Self {
        // SAFETY: reads a variable of this process.
        match unsafe { pg_sys::LockTimeout } {
            0 => Limit::Setting,
            ms => Limit::Error(Instant::now() + Duration::from_millis(ms as u64)),
        }
    }

    /// What is left; `None` is the setting.
    pub fn left(&self) -> Option<Duration> {
        let (Limit::Answer(until) | Limit::Error(until)) = self else {
            return None;
        };
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// What is left in whole milliseconds, a part of one counting as one; `None` is the setting.
    pub fn left_ms(&self) -> Option<i32> {
        let us = self.left()?.as_micros();
        Some(i32::try_from(us.div_ceil(1000)).unwrap_or(i32::MAX))
    }
}

/// Takes a lock in the session's scope, after an attempt that found it taken. `None` when the time is over. With an
/// error, as with `None`, it is not held.
pub fn in_session(lock: &Lock, limit: Limit) -> Option<Taken> {
    let ms = limit.left_ms();
    if ms == Some(0) {
        return time_is_over(limit);
    }
    match limited(ms, || Some(lock.take(Scope::Session))) {
        Ok(taken) => taken,
        Err(cause) => {
            // Before the wait it was not held in this mode at all, or there would have been no wait.
            let is_held = lock.is_held();
            if is_time_over(&cause) {
                return if is_held { Some(Taken::First) } else { time_is_over(limit) };
            }
            if is_held {
                lock.release(Scope::Session);
            }
            cause.rethrow()
        }
    }
}

/// Works in a subtransaction with this as PostgreSQL's own limit of each wait for a lock; `None` is what is set. A limit or a
/// cancel that ends none of these waits any more ends the work.
pub fn limited<R>(ms: Option<i32>, work: impl FnOnce() -> Option<R>) -> Result<Option<R>, Box<CaughtError>> {
    xact::in_subtransaction(|| {
        // SAFETY: a variable of this process. While a lock is waited for, PostgreSQL reads it once.
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

pub fn time_is_over<R>(limit: Limit) -> Option<R> {
    match limit {
        Limit::Answer(_) => None,
        Limit::Error(_) | Limit::Setting => errors::timed_out().raise(),
    }
}

/// Is it the error of a lock that was not to be had in time?
pub fn is_time_over(cause: &CaughtError) -> bool {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = cause;
    report.sql_error_code() == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
}
