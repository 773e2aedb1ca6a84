//! Advisory locks of PostgreSQL's lock manager: its queue, its deadlock detector, its release at the end of a session
//! or transaction. And waits for a lock with a timeout that never leaves the lock held.
//!
//! `lock_timeout` ends a wait by an error, but a lock that was granted just before stays held: nothing releases a
//! session's lock. Here the error is caught and the lock tested. PostgreSQL can report the timeout, or a cancel, only after
//! the grant, at the next check for interrupts. So that check is part of the wait.
//!
//! The wait for a session's lock runs in no subtransaction. None is needed, because PostgreSQL has left the queue before it
//! raises an error, and nothing else belongs to the wait. And on a standby, a conflict with recovery would end the session,
//! with its other locks, where PostgreSQL cannot end the statement alone.

use super::ereport::{self, Caught, errors};
use super::session::{self, Replaced};
use super::xact;
use pgrx::prelude::*;
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// What a lock is for: a fourth field of its tag, two letters in ASCII, as `pg_locks.objsubid` shows it. PostgreSQL's
/// own functions use 1 and 2 only, so locks of an application never conflict with these. `pg_advisory_unlock_all()`
/// releases both.
#[derive(Clone, Copy)]
pub struct LockKind(u16);

impl LockKind {
    pub const fn new(letters: &[u8; 2]) -> Self {
        Self(u16::from_be_bytes(*letters))
    }

    /// As `pg_locks.objsubid` has it. The letters are ASCII, so it is positive.
    pub fn number(self) -> i16 {
        self.0 as i16
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Session,
    Transaction,
}

impl Mode {
    pub fn of(shared: bool) -> Self {
        if shared { Mode::Shared } else { Mode::Exclusive }
    }

    /// Those of PostgreSQL's own advisory locks.
    fn lockmode(self) -> pg_sys::LOCKMODE {
        match self {
            Mode::Exclusive => pg_sys::ExclusiveLock as pg_sys::LOCKMODE,
            Mode::Shared => pg_sys::ShareLock as pg_sys::LOCKMODE,
        }
    }
}

/// A lock of this database, in one mode.
#[derive(Clone, Copy)]
pub struct AdvisoryLock {
    tag: pg_sys::LOCKTAG,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// This process did not hold it before in this mode, in either scope.
    First,
    Again,
}

impl AdvisoryLock {
    pub fn new(kind: LockKind, key: i64, mode: Mode) -> Self {
        let key = key as u64;
        let tag = pg_sys::LOCKTAG {
            locktag_field1: session::database(),
            locktag_field2: (key >> 32) as u32,
            locktag_field3: key as u32,
            locktag_field4: kind.0,
            locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
            locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
        };
        Self { tag, mode }
    }

    /// Acquires it if it is free and has no waiters.
    #[inline]
    pub fn try_acquire(&self, scope: Scope) -> Option<Acquired> {
        self.lock_acquire(scope, true)
    }

    /// Acquires it, and waits as long as `lock_timeout` allows. An error can leave it held, if it was granted just
    /// before.
    pub fn acquire(&self, scope: Scope) -> Acquired {
        self.lock_acquire(scope, false).unwrap_or(Acquired::Again)
    }

    #[inline]
    fn lock_acquire(&self, scope: Scope, dont_wait: bool) -> Option<Acquired> {
        let (mode, of_session) = (self.mode.lockmode(), scope == Scope::Session);
        // SAFETY: a whole lock tag, of the lock method that it names.
        match xact::owning_locks(|| unsafe { pg_sys::LockAcquire(&self.tag, mode, of_session, dont_wait) }) {
            pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL => None,
            pg_sys::LockAcquireResult::LOCKACQUIRE_OK => Some(Acquired::First),
            _ => Some(Acquired::Again),
        }
    }

    /// Releases it once. False if it is not held in this scope; PostgreSQL's own warning, which has no name in it, is
    /// suppressed.
    #[inline]
    pub fn release(&self, scope: Scope) -> bool {
        let levels = [&raw mut pg_sys::client_min_messages, log_min_messages()];
        // SAFETY: variables of this process, which PostgreSQL reads for each message.
        let _quiet = levels.map(|level| unsafe { Replaced::new(level, PgLogLevel::ERROR as i32) });
        // SAFETY: as in `lock_acquire`.
        xact::owning_locks(|| unsafe { pg_sys::LockRelease(&self.tag, self.mode.lockmode(), scope == Scope::Session) })
    }

    /// True if this process holds it in either scope.
    pub fn is_held(&self) -> bool {
        // SAFETY: as in `lock_acquire`; reads this process's own memory.
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let is_held = unsafe { pg_sys::LockHeldByMe(&self.tag, self.mode.lockmode()) };
        // SAFETY: as above; false: not in a stronger mode.
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let is_held = unsafe { pg_sys::LockHeldByMe(&self.tag, self.mode.lockmode(), false) };
        is_held
    }

    /// Makes the session's lock the transaction's. It is never free in between.
    pub fn hand_to_transaction(&self) {
        self.acquire(Scope::Transaction);
        self.release(Scope::Session);
    }
}

/// The variable that PostgreSQL reads in this process. From version 19 on, each type of process has one.
#[inline]
fn log_min_messages() -> *mut i32 {
    let first = (&raw mut pg_sys::log_min_messages).cast::<i32>();
    #[cfg(not(feature = "pg19"))]
    return first;
    // SAFETY: an array with an element for each type.
    #[cfg(feature = "pg19")]
    unsafe {
        first.add(pg_sys::MyBackendType as usize)
    }
}

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

// Both messages are PostgreSQL's own.
errors! {
    fn timed_out() {
        ERRCODE_LOCK_NOT_AVAILABLE: "canceling statement due to lock timeout";
    }

    fn statement_timed_out() {
        ERRCODE_QUERY_CANCELED: "canceling statement due to statement timeout";
    }
}

/// Acquires a lock for the session, after an attempt that found it taken. `None` when the time is over. The lock is not
/// held after `None` or an error.
pub fn acquire_for_session(lock: &AdvisoryLock, limit: Limit) -> Option<Acquired> {
    let ms = limit.left_ms();
    if ms == Some(0) {
        return limit.time_out();
    }
    match ereport::catching(|| limited(ms, || lock.acquire(Scope::Session))) {
        Ok(acquired) => Some(acquired),
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
    lock.try_acquire(Scope::Transaction).is_some()
        || acquire_for_session(lock, limit).map(|_| lock.hand_to_transaction()).is_some()
}

unsafe extern "C-unwind" {
    /// Reads this process's own state. pgrx has no binding of it.
    safe fn get_timeout_active(timeout: c_int) -> bool;
}

/// The number of `STATEMENT_TIMEOUT` among PostgreSQL's timeouts, the same in versions 15 to 19.
const STATEMENT_TIMEOUT: c_int = 3;

/// Works in a subtransaction with this `lock_timeout`; `None` leaves the setting. A timeout or a cancel that comes
/// after the last wait still ends the work.
///
/// PostgreSQL reports the earlier one of two timeouts that have passed, and forgets the other. A caller that catches the
/// error of `lock_timeout` and goes on would never hear of the statement timeout.
pub fn with_lock_timeout<R>(ms: Option<i32>, work: impl FnOnce() -> Option<R>) -> Result<Option<R>, Caught> {
    xact::in_subtransaction(|| limited(ms, work))
}

/// As [`with_lock_timeout`], without the subtransaction: where the time is over, it calls what raises another error. For
/// functions that a parallel plan can call, which has no subtransactions.
pub fn limited_or<R>(limit: Duration, work: impl FnOnce() -> R, refuse: impl FnOnce() -> R) -> R {
    let ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).max(1);
    match ereport::catching(|| limited(Some(ms), work)) {
        Ok(result) => result,
        Err(cause) if is_lock_timeout(&cause) => refuse(),
        Err(cause) => cause.rethrow(),
    }
}

fn limited<R>(ms: Option<i32>, work: impl FnOnce() -> R) -> R {
    // SAFETY: a variable of this process. PostgreSQL reads it once for each wait.
    let _timeout = ms.map(|ms| unsafe { Replaced::new(&raw mut pg_sys::LockTimeout, ms) });
    let had_statement_timer = get_timeout_active(STATEMENT_TIMEOUT);
    let work = || {
        let result = work();
        check_for_interrupts!();
        result
    };
    let worked = ereport::catching(work);
    if worked.as_ref().is_err_and(is_lock_timeout) && had_statement_timer && !get_timeout_active(STATEMENT_TIMEOUT) {
        statement_timed_out().raise();
    }
    worked.unwrap_or_else(|cause| cause.rethrow())
}

/// Works in a subtransaction. A wait for a lock that reaches the limit ends the work: then `None`, or the error of
/// `lock_timeout`. Waits a millisecond where no time is left, because 0 would be no limit.
pub fn within<R>(limit: Limit, work: impl FnOnce() -> R) -> Option<R> {
    let ms = limit.left_ms().map(|ms| ms.max(1));
    match with_lock_timeout(ms, || Some(work())) {
        Err(cause) if is_lock_timeout(&cause) => limit.time_out(),
        worked => worked.unwrap_or_else(|cause| cause.rethrow()),
    }
}

pub fn is_lock_timeout(cause: &Caught) -> bool {
    cause.code() == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
}
