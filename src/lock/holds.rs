//! What PostgreSQL does not know of named locks, for the view `idgen.locks`: scope, depth, and since when a process holds or
//! waits for one.
//!
//! The lock manager decides which locks are held, and the view joins with it. A hold that the lock manager has released,
//! as by `pg_advisory_unlock_all()`, is not shown. The end of the transaction removes it.

use super::names::uses;
use crate::pg::advisory_lock::{Acquired, AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::datum::{self, Composite};
use crate::pg::effects::SubxactList;
use crate::pg::session::database;
use crate::pg::{system_clock, xact};
use crate::shmem::Part;
use pgrx::prelude::*;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};

/// The lock of a name. The view `idgen.locks` selects this kind by its number, 26980.
pub fn lock(key: i64, mode: Mode) -> AdvisoryLock {
    AdvisoryLock::new(LockKind::new(b"id"), key, mode)
}

/// More locks than a session holds at a time. The view shows further ones without scope and depth.
const HOLDS: usize = 16;

/// What one process holds and waits for. Only that process writes it; others read it for the view.
#[derive(Default)]
#[repr(align(64))]
pub struct Backend {
    /// 0 if the entry is free.
    pid: AtomicI32,
    database: AtomicU32,
    waiting_key: AtomicI64,
    /// 0 if the process does not wait. Else 1, plus the bits of mode and scope.
    waiting: AtomicU8,
    holds: [Hold; HOLDS],
}

/// One lock in one mode.
#[derive(Default)]
pub struct Hold {
    key: AtomicI64,
    shared: AtomicU8,
    /// The depth in each scope. If both are 0, the entry is free.
    session: AtomicU32,
    transaction: AtomicU32,
    /// Milliseconds since 1970.
    since_ms: AtomicI64,
}

const SHARED: u8 = 2;
const TRANSACTION: u8 = 4;

/// One entry for each process that can acquire a lock.
pub static BACKENDS: Part<&'static [Backend]> = Part::new(c"idgen lock holders", |block| {
    // SAFETY: fixed before PostgreSQL asks for the size of shared memory.
    block.array(unsafe { pg_sys::MaxBackends } as usize, Backend::default)
});

impl Backend {
    /// The hold of a lock. For the process of the entry.
    #[inline]
    fn find(&self, key: i64, mode: Mode) -> Option<&Hold> {
        let used = self.holds.iter().take(USED.load(Relaxed));
        used.into_iter().find(|hold| hold.key.load(Relaxed) == key && hold.mode() == mode && hold.is_held())
    }

    /// A free hold. For the process of the entry.
    #[inline]
    fn free(&self) -> Option<&Hold> {
        let is_free = |hold: &Hold| !hold.is_held();
        let index = self.holds.iter().position(is_free).or_else(|| {
            self.remove_unheld();
            self.holds.iter().position(is_free)
        })?;
        // Only this process writes it, and an atomic maximum would cost as much as everything else here.
        USED.store(USED.load(Relaxed).max(index + 1), Relaxed);
        Some(&self.holds[index])
    }

    /// Removes holds of locks that PostgreSQL has released by itself, as by `DISCARD ALL`. They would keep their names
    /// in the registry, and fill the entry of a long transaction.
    fn remove_unheld(&self) {
        let is_gone = |hold: &&Hold| hold.is_held() && !lock(hold.key.load(Relaxed), hold.mode()).is_held();
        self.holds.iter().filter(is_gone).for_each(Hold::clear);
    }

    /// For the process of the entry.
    fn end_wait(&self) {
        if self.waiting.swap(0, Relaxed) != 0 {
            uses(database(), self.waiting_key.load(Relaxed)).end();
        }
    }
}

impl Hold {
    fn is_held(&self) -> bool {
        self.session.load(Relaxed) > 0 || self.transaction.load(Relaxed) > 0
    }

    /// Changes the depth in a scope, and counts the use of the key. For the process of the entry.
    fn set_depth(&self, scope: Scope, depth: u32) {
        let was_held = self.is_held();
        // Release: the other fields were written before.
        self.depth(scope).store(depth, Release);
        let key = self.key.load(Relaxed);
        match (was_held, self.is_held()) {
            (false, true) => uses(database(), key).begin(),
            (true, false) => uses(database(), key).end(),
            _ => {}
        }
    }

    fn clear(&self) {
        self.set_depth(Scope::Session, 0);
        self.set_depth(Scope::Transaction, 0);
    }

    fn mode(&self) -> Mode {
        Mode::of(self.shared.load(Relaxed) > 0)
    }

    fn depth(&self, scope: Scope) -> &AtomicU32 {
        match scope {
            Scope::Session => &self.session,
            Scope::Transaction => &self.transaction,
        }
    }
}

/// The number of this process's holds that were ever in use. The others need no search.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The index of this process's entry, plus 1; 0 if it has none yet.
static CLAIMED: AtomicUsize = AtomicUsize::new(0);

/// This process's entry, claimed at the first call; `None` without preload.
#[inline]
fn this_backend() -> Option<&'static Backend> {
    let backends = BACKENDS.get()?;
    let claimed = match CLAIMED.load(Relaxed) {
        0 => claim(backends)?,
        claimed => claimed,
    };
    Some(&backends[claimed - 1])
}

/// This process's entry, if it has one. A process that exits in a transaction frees its entry before that transaction
/// ends. It must not claim another one then, because nothing would free that.
fn claimed() -> Option<&'static Backend> {
    let index = CLAIMED.load(Relaxed).checked_sub(1)?;
    BACKENDS.get().map(|backends| &backends[index])
}

#[cold]
fn claim(backends: &'static [Backend]) -> Option<usize> {
    // SAFETY: set when the process starts, and never again.
    let pid = unsafe { pg_sys::MyProcPid };
    let is_claimed = |backend: &Backend| backend.pid.compare_exchange(0, pid, AcqRel, Relaxed).is_ok();
    // There are as many entries as processes.
    let claimed = backends.iter().position(is_claimed)? + 1;
    backends[claimed - 1].database.store(database(), Relaxed);
    CLAIMED.store(claimed, Relaxed);
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        xact::before_exit(before_exit);
        xact::on_xact_event(at_xact_event);
        IN_SAVEPOINTS.follow();
    });
    Some(claimed)
}

/// The transaction's locks that were acquired under open savepoints: rolling back a savepoint releases its locks.
static IN_SAVEPOINTS: SubxactList<(i64, Mode)> =
    SubxactList::of_savepoints(|(key, mode)| released(key, mode, Scope::Transaction));

/// Notes that a lock was acquired. True if this process did not hold it before, so that its name must be registered.
/// False without preload.
#[inline]
pub fn acquired(key: i64, mode: Mode, scope: Scope, acquired: Acquired) -> bool {
    let Some(backend) = this_backend() else {
        return false;
    };
    if scope == Scope::Transaction {
        IN_SAVEPOINTS.push((key, mode));
    }
    let known = backend.find(key, mode);
    if let Some(hold) = known.filter(|_| acquired == Acquired::Again) {
        hold.set_depth(scope, hold.depth(scope).load(Relaxed) + 1);
        return false;
    }
    // A known hold is out of date here: PostgreSQL released that lock by itself.
    if let Some(hold) = known.or_else(|| backend.free()) {
        hold.clear();
        hold.key.store(key, Relaxed);
        hold.shared.store(u8::from(mode == Mode::Shared), Relaxed);
        hold.since_ms.store(system_clock::coarse_wall_ms(), Relaxed);
        hold.set_depth(scope, 1);
    }
    true
}

/// Notes that a lock was released once.
#[inline]
pub fn released(key: i64, mode: Mode, scope: Scope) {
    if let Some(hold) = claimed().and_then(|backend| backend.find(key, mode)) {
        hold.set_depth(scope, hold.depth(scope).load(Relaxed).saturating_sub(1));
    }
}

/// A wait, which the view shows as long as this lives.
pub struct LockWait(Option<&'static Backend>);

impl LockWait {
    pub fn begin(key: i64, mode: Mode, scope: Scope) -> Self {
        let backend = this_backend();
        if let Some(backend) = backend {
            let mode = if mode == Mode::Shared { SHARED } else { 0 };
            let scope = if scope == Scope::Transaction { TRANSACTION } else { 0 };
            backend.waiting_key.store(key, Relaxed);
            backend.waiting.store(1 | mode | scope, Release);
            uses(database(), key).begin();
        }
        Self(backend)
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        if let Some(backend) = self.0 {
            backend.end_wait();
        }
    }
}

fn before_exit(_code: i32) {
    if let Some(backend) = claimed() {
        backend.holds.iter().for_each(Hold::clear);
        backend.end_wait();
        backend.pid.store(0, Release);
        CLAIMED.store(0, Relaxed);
    }
}

fn at_xact_event(event: pg_sys::XactEvent::Type) {
    use pg_sys::XactEvent::*;
    if let (XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE, Some(backend)) = (event, claimed()) {
        IN_SAVEPOINTS.take();
        backend.remove_unheld();
        backend.holds.iter().for_each(|hold| hold.set_depth(Scope::Transaction, 0));
    }
}

/// What the processes of this database hold and wait for. A wait has a scope, but no depth.
#[pg_extern(sql = false)]
fn lock_get_holds() -> SetOfIterator<'static, Composite<7>> {
    let mut rows = Vec::new();
    for backend in BACKENDS.get().into_iter().flat_map(|backends| backends.iter()) {
        let pid = backend.pid.load(Acquire);
        if pid == 0 || backend.database.load(Relaxed) != database() {
            continue;
        }
        let row = |key: &AtomicI64,
                   mode,
                   depths: Option<(i32, i32)>,
                   since: Option<TimestampWithTimeZone>,
                   waits: Option<&str>| {
            let key = key.load(Relaxed);
            let (session, transaction) = depths.unzip();
            let is_shared = mode == Mode::Shared;
            Composite([
                pid.into(),
                key.into(),
                is_shared.into(),
                session.into(),
                transaction.into(),
                since.into(),
                waits.into(),
            ])
        };
        for hold in backend.holds.iter().filter(|hold| hold.is_held()) {
            let depth = |scope| hold.depth(scope).load(Relaxed) as i32;
            let depths = (depth(Scope::Session), depth(Scope::Transaction));
            let since = datum::from_ms(hold.since_ms.load(Relaxed));
            rows.push(row(&hold.key, hold.mode(), Some(depths), since, None));
        }
        let waiting = backend.waiting.load(Acquire);
        if waiting != 0 {
            let scope = if waiting & TRANSACTION != 0 { "transaction" } else { "session" };
            rows.push(row(&backend.waiting_key, Mode::of(waiting & SHARED != 0), None, None, Some(scope)));
        }
    }
    SetOfIterator::new(rows)
}
