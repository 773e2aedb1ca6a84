//! What PostgreSQL does not know of named locks, for the view `idgen.locks`: scope, depth, since when a process holds or
//! waits for one, and the registry of names, because PostgreSQL knows locks by their keys.
//!
//! The lock manager decides which locks are held, and the view joins with it. A hold that the lock manager has released,
//! as by `pg_advisory_unlock_all()`, is not shown. The end of the transaction removes it.

use super::errors;
use crate::pg::advisory_lock::{Acquired, AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::effects::SubxactList;
use crate::pg::session::database;
use crate::pg::{system_clock, xact};
use crate::settings;
use crate::shmem::{FixedText, Locked, Part};
use idgen_core::lock::registry::{self, LockUses, Lookup, NameEntry, NameTag};
use idgen_core::lock::{MAX_NAME_BYTES, NameHash};
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

    /// The process of the entry; `None` unless it is one of this database.
    pub fn pid_here(&self) -> Option<i32> {
        let pid = self.pid.load(Acquire);
        (pid != 0 && self.database.load(Relaxed) == database()).then_some(pid)
    }

    /// For the process of the entry.
    fn end_wait(&self) {
        if self.waiting.swap(0, Relaxed) != 0 {
            uses(database(), self.waiting_key.load(Relaxed)).end();
        }
    }

    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter(|hold| hold.is_held())
    }

    /// The lock that the process waits for.
    pub fn wait(&self) -> Option<(i64, Mode, Scope)> {
        let bits = self.waiting.load(Acquire);
        let scope = if bits & TRANSACTION != 0 { Scope::Transaction } else { Scope::Session };
        (bits != 0).then(|| (self.waiting_key.load(Relaxed), Mode::of(bits & SHARED != 0), scope))
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
        match (was_held, self.is_held()) {
            (false, true) => uses(database(), self.key()).begin(),
            (true, false) => uses(database(), self.key()).end(),
            _ => {}
        }
    }

    fn clear(&self) {
        self.set_depth(Scope::Session, 0);
        self.set_depth(Scope::Transaction, 0);
    }

    pub fn key(&self) -> i64 {
        self.key.load(Relaxed)
    }

    pub fn mode(&self) -> Mode {
        Mode::of(self.shared.load(Relaxed) > 0)
    }

    pub fn depth(&self, scope: Scope) -> &AtomicU32 {
        match scope {
            Scope::Session => &self.session,
            Scope::Transaction => &self.transaction,
        }
    }

    pub fn since_ms(&self) -> i64 {
        self.since_ms.load(Relaxed)
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
static IN_SAVEPOINTS: SubxactList<(i64, Mode)> = SubxactList::of_savepoints(|(key, mode)| {
    if let Some(hold) = claimed().and_then(|backend| backend.find(key, mode)) {
        hold.set_depth(Scope::Transaction, hold.transaction.load(Relaxed).saturating_sub(1));
    }
});

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

/// Notes that a session's lock was released once.
#[inline]
pub fn released(key: i64, mode: Mode) {
    if let Some(hold) = claimed().and_then(|backend| backend.find(key, mode)) {
        hold.set_depth(Scope::Session, hold.session.load(Relaxed).saturating_sub(1));
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

/// The uses of locks, by database and key. A search of all processes would cost more with each session.
pub static USES: Part<&'static [LockUses]> =
    Part::new(c"idgen lock uses", |block| block.array(4 * settings::max_lock_names().max(256), LockUses::default));

fn uses(database: u32, key: i64) -> &'static LockUses {
    let uses = USES.require();
    &uses[registry::home(uses.len(), database, key)]
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

/// Which name each entry has. Read without a lock.
pub static NAMES: Part<&'static [NameTag]> =
    Part::new(c"idgen lock names", |block| block.array(settings::max_lock_names(), NameTag::default));

/// The names with their texts. The exclusive lock is also for changing an entry of [`NAMES`].
pub static NAME_TEXTS: Locked<&'static mut [NameText]> =
    Locked::new(c"idgen lock name texts", 50, |block| block.array(settings::max_lock_names(), NameText::default));

#[derive(Clone, Copy, Default)]
pub struct NameText {
    /// `None` if the entry is free.
    entry: Option<NameEntry>,
    name: FixedText<MAX_NAME_BYTES>,
}

/// Registers the name of a lock that this process holds or waits for. Does nothing without preload.
#[inline]
pub fn register(hash: NameHash, name: &str) {
    let Some(names) = NAMES.get() else {
        return;
    };
    let entry = NameEntry { database: database(), hash };
    let mut candidates = registry::candidates(names.len(), entry.database, hash.key);
    if !candidates.any(|index| names[index].is(&entry)) {
        register_new(names, entry, name);
    }
}

#[cold]
fn register_new(names: &[NameTag], entry: NameEntry, name: &str) {
    let other = NAME_TEXTS.exclusive(|texts| {
        let at = |index: usize| texts[index].entry;
        let vacate = |index: usize, entry: &NameEntry| names[index].vacate(entry, uses(entry.database, entry.hash.key));
        match registry::look_up(names.len(), entry, at, vacate) {
            Lookup::Take(index) => {
                texts[index].entry = Some(entry);
                texts[index].name.set(name);
                names[index].set(&entry);
                None
            }
            Lookup::Collides(index) => Some(texts[index].name),
            Lookup::Known(_) | Lookup::Full => None,
        }
    });
    if let Some(other) = other.and_then(|other| other.text()) {
        errors::collision(name, &other).warn();
    }
}

/// The registered names of this database's locks, with their keys; `None` without preload.
pub fn registered() -> Option<impl Iterator<Item = (i64, String)>> {
    let names = NAMES.get()?;
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(names.len());
    NAME_TEXTS.shared(|texts| {
        let is_here = |text: &&NameText| text.entry.is_some_and(|entry| entry.database == database());
        found.extend(texts.iter().filter(is_here).copied());
    });
    Some(found.into_iter().filter_map(|text| Some((text.entry?.hash.key, text.name.text()?))))
}
