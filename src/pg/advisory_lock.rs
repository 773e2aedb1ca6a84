//! Advisory locks of PostgreSQL's lock manager: its queue, its deadlock detector, its release at the end of a session
//! or transaction.

use super::compat;
use super::session;
use pgrx::prelude::*;

/// What a lock is for: a fourth field of its tag, two letters in ASCII, as `pg_locks.objsubid` shows it. PostgreSQL's
/// own functions use 1 and 2 only, so locks of an application never conflict with these. `pg_advisory_unlock_all()`
/// releases both.
#[derive(Clone, Copy)]
pub struct LockKind(u16);

impl LockKind {
    pub const fn new(letters: &[u8; 2]) -> Self {
        Self(u16::from_be_bytes(*letters))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
    /// Conflicts with the other two, but not with itself.
    Intent,
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

    /// The first two are those of PostgreSQL's own advisory locks.
    fn lockmode(self) -> pg_sys::LOCKMODE {
        match self {
            Mode::Exclusive => pg_sys::ExclusiveLock as pg_sys::LOCKMODE,
            Mode::Shared => pg_sys::ShareLock as pg_sys::LOCKMODE,
            Mode::Intent => pg_sys::RowExclusiveLock as pg_sys::LOCKMODE,
        }
    }
}

/// A lock of this database, in one mode.
#[derive(Clone, Copy)]
pub struct AdvisoryLock {
    tag: pg_sys::LOCKTAG,
    mode: Mode,
}

/// The lock was acquired.
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
        // SAFETY: a whole lock tag, of the lock method that it names.
        match unsafe { pg_sys::LockAcquire(&self.tag, self.mode.lockmode(), scope == Scope::Session, dont_wait) } {
            pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL => None,
            pg_sys::LockAcquireResult::LOCKACQUIRE_OK => Some(Acquired::First),
            _ => Some(Acquired::Again),
        }
    }

    /// Releases it once. False if it is not held in this scope; PostgreSQL's own warning, which has no name in it, is
    /// suppressed.
    #[inline]
    pub fn release(&self, scope: Scope) -> bool {
        let _quiet = Quiet::new();
        // SAFETY: as in `lock_acquire`.
        unsafe { pg_sys::LockRelease(&self.tag, self.mode.lockmode(), scope == Scope::Session) }
    }

    /// True if this process holds it in either scope.
    pub fn is_held(&self) -> bool {
        // SAFETY: as in `lock_acquire`; reads this process's own memory.
        unsafe { compat::lock_held_by_me(&self.tag, self.mode.lockmode()) }
    }

    /// Makes the session's lock the transaction's. It is never free in between.
    pub fn hand_to_transaction(&self) {
        self.acquire(Scope::Transaction);
        self.release(Scope::Session);
    }
}

/// While this lives, neither the client nor the log gets a warning.
struct Quiet {
    client: i32,
    log: i32,
}

impl Quiet {
    #[inline]
    fn new() -> Self {
        // SAFETY: variables of this process, which PostgreSQL reads for each message.
        unsafe {
            let before = Self { client: pg_sys::client_min_messages, log: pg_sys::log_min_messages };
            pg_sys::client_min_messages = PgLogLevel::ERROR as i32;
            pg_sys::log_min_messages = PgLogLevel::ERROR as i32;
            before
        }
    }
}

impl Drop for Quiet {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe {
            pg_sys::client_min_messages = self.client;
            pg_sys::log_min_messages = self.log;
        }
    }
}
