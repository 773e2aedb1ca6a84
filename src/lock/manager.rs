//! PostgreSQL's lock manager, as far as named locks use it: the queue, the deadlock detector and the freeing are its.

use crate::pg::compat;
use pgrx::prelude::*;

/// Where a lock of idgen is among the advisory locks: a fourth field that PostgreSQL's own functions never use (two letters
/// in ASCII). So the application's locks on bare numbers never meet ours, and `pg_advisory_unlock_all()` frees both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Space {
    /// "id": named locks.
    Name = 0x6964,
    /// "lD": shared by transactions that have acquired many leases, in intent for one that defines a name; by the key 0.
    LeaseDefinitions = 0x6c44,
    /// "ld": shared by transactions that have acquired a lease, exclusive for one that defines its name.
    LeaseDefinition = 0x6c64,
    /// "lf": shared by a lease's fence before it locks the row, exclusive for a take-over that waits for that row.
    LeaseFence = 0x6c66,
    /// "lq": where those queue who want a lease, by its name.
    LeaseQueue = 0x6c71,
    /// "ls": held by the session that a lease is bound to, by a random key.
    LeaseSession = 0x6c73,
    /// "lt": shared by those who draw a token, by the key 0.
    LeaseTokens = 0x6c74,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
    /// Conflicts with the other two, and not with itself.
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

    /// The first two as PostgreSQL's own advisory locks.
    fn number(self) -> pg_sys::LOCKMODE {
        match self {
            Mode::Exclusive => pg_sys::ExclusiveLock as pg_sys::LOCKMODE,
            Mode::Shared => pg_sys::ShareLock as pg_sys::LOCKMODE,
            Mode::Intent => pg_sys::RowExclusiveLock as pg_sys::LOCKMODE,
        }
    }
}

/// A lock of this database.
#[derive(Clone, Copy)]
pub struct Lock {
    tag: pg_sys::LOCKTAG,
    mode: Mode,
}

/// The lock is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// This process had it in no scope before, in this mode.
    First,
    Again,
}

impl Lock {
    pub fn new(space: Space, key: i64, mode: Mode) -> Self {
        let key = key as u64;
        let tag = pg_sys::LOCKTAG {
            // SAFETY: set when the process connects, and never again.
            locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
            locktag_field2: (key >> 32) as u32,
            locktag_field3: key as u32,
            locktag_field4: space as u16,
            locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
            locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
        };
        Self { tag, mode }
    }

    /// Takes it if it is free and nobody waits for it.
    #[inline]
    pub fn try_take(&self, scope: Scope) -> Option<Taken> {
        self.acquire(scope, true)
    }

    /// Takes it, and waits as long as `lock_timeout` lets it. An error may leave it held, if it was granted at the
    /// last instant.
    pub fn take(&self, scope: Scope) -> Taken {
        self.acquire(scope, false).unwrap_or(Taken::Again)
    }

    #[inline]
    fn acquire(&self, scope: Scope, at_once: bool) -> Option<Taken> {
        // SAFETY: a whole lock tag, of the lock method that it names.
        match unsafe { pg_sys::LockAcquire(&self.tag, self.mode.number(), scope == Scope::Session, at_once) } {
            pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL => None,
            pg_sys::LockAcquireResult::LOCKACQUIRE_OK => Some(Taken::First),
            _ => Some(Taken::Again),
        }
    }

    /// Lets go once. False if it is not held in the scope; whoever asked for it is told by us, and not by PostgreSQL's
    /// warning, which knows no name.
    #[inline]
    pub fn release(&self, scope: Scope) -> bool {
        let _quiet = Quiet::new();
        // SAFETY: as in `acquire`.
        unsafe { pg_sys::LockRelease(&self.tag, self.mode.number(), scope == Scope::Session) }
    }

    /// Does this process hold it, in whatever scope?
    pub fn is_held(&self) -> bool {
        // SAFETY: as in `acquire`; looks into this process's own memory.
        unsafe { compat::lock_held_by_me(&self.tag, self.mode.number()) }
    }
}

/// No warnings, neither to the client nor in the log, as long as this lives.
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
