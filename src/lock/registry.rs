//! What the view `idgen.locks` shows beside what PostgreSQL knows: names, scopes, depths, and since when.
//!
//! All of it is for show. Who holds a lock is for the lock manager to say, and the view goes by that: what stands here
//! and is not held there, as after `pg_advisory_unlock_all()`, is not shown, and forgotten when the transaction ends.

use super::acquire::Named;
use super::errors;
use super::manager::{Lock, Mode, Scope, Space, Taken};
use crate::pg::encoding::Text;
use crate::pg::{session::database, system_clock, timestamp, xact};
use crate::settings;
use crate::shmem::{Locked, Part};
use idgen_core::lock::names::{self, Entry, Place};
use idgen_core::lock::{MAX_NAME_BYTES, NameHash};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// More locks than a session holds at a time. Beyond them a lock is shown without scope and depth.
const HOLDS: usize = 16;

/// What one process holds and waits for. Written by that process only; the others look, for the view.
#[repr(align(64))]
pub struct Backend {
    /// 0: the place is free.
    pid: AtomicI32,
    database: AtomicU32,
    waiting_key: AtomicI64,
    /// 0: does not wait. Else 1, plus the bits of mode and scope.
    waiting: AtomicU8,
    holds: [Hold; HOLDS],
}

/// One lock that is held, in one mode.
#[derive(Default)]
struct Hold {
    key: AtomicI64,
    /// How often, by scope, and whether shared; 0: nothing is held here.
    session: AtomicU32,
    transaction: AtomicU32,
    shared: AtomicU8,
    /// Milliseconds since 1970.
    since_ms: AtomicI64,
}

const SHARED: u8 = 2;
const TRANSACTION: u8 = 4;

impl Backend {
    pub fn new() -> Self {
        Self {
            pid: AtomicI32::new(0),
            database: AtomicU32::new(0),
            waiting_key: AtomicI64::new(0),
            waiting: AtomicU8::new(0),
            holds: std::array::from_fn(|_| Hold::default()),
        }
    }

    /// For its own process.
    #[inline]
    fn hold(&self, key: i64, mode: Mode) -> Option<&Hold> {
        let used = self.holds.iter().take(USED.load(Relaxed));
        used.into_iter().find(|hold| hold.key.load(Relaxed) == key && hold.mode() == mode && hold.is_held())
    }

    /// A place that holds nothing. For its own process.
    #[inline]
    fn free(&self) -> Option<&Hold> {
        let is_free = |hold: &Hold| !hold.is_held();
        let index = self.holds.iter().position(is_free).or_else(|| {
            self.forget_unheld();
            self.holds.iter().position(is_free)
        })?;
        // Of this process alone: an atomic maximum would cost as much as the rest.
        USED.store(USED.load(Relaxed).max(index + 1), Relaxed);
        Some(&self.holds[index])
    }

    /// What PostgreSQL has let go of unseen, as by `DISCARD ALL`, which ends no session. At the end of the transaction:
    /// it would keep its name in the registry. And when there is no place left: that may be before the transaction ends.
    fn forget_unheld(&self) {
        let is_gone =
            |hold: &&Hold| hold.is_held() && !Lock::new(Space::Name, hold.key.load(Relaxed), hold.mode()).is_held();
        self.holds.iter().filter(is_gone).for_each(Hold::clear);
    }
}

impl Hold {
    fn is_held(&self) -> bool {
        self.session.load(Relaxed) > 0 || self.transaction.load(Relaxed) > 0
    }

    fn clear(&self) {
        self.session.store(0, Relaxed);
        self.transaction.store(0, Relaxed);
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

/// One for each process that can take a lock.
pub static BACKENDS: Part<&'static [Backend]> = Part::new(c"idgen lock holders", |room| {
    // SAFETY: fixed by the time PostgreSQL asks how much memory is wanted.
    room.array(unsafe { pg_sys::MaxBackends } as usize, Backend::new)
});

/// The names of locks: which, and their texts.
pub static NAMES: Part<&'static [NameSlot]> =
    Part::new(c"idgen lock names", |room| room.array(settings::max_lock_names(), NameSlot::new));
pub static NAME_TEXTS: Locked<&'static mut [NameText]> =
    Locked::new(c"idgen lock name texts", 50, |room| room.array(settings::max_lock_names(), NameText::new));

/// Whose name is at a place of the registry. Looked at without the lock; changed by the holder of the locks' lock.
pub struct NameSlot {
    /// 0: nobody's.
    database: AtomicU32,
    key: AtomicI64,
    check: AtomicU64,
}

/// The name itself. For the holder of the locks' lock.
#[derive(Clone, Copy)]
pub struct NameText {
    length: usize,
    bytes: [u8; MAX_NAME_BYTES],
}

impl NameSlot {
    pub fn new() -> Self {
        Self { database: AtomicU32::new(0), key: AtomicI64::new(0), check: AtomicU64::new(0) }
    }

    fn entry(&self) -> Option<Entry> {
        // Acquire: key and check were written before.
        let database = self.database.load(Acquire);
        let hash = NameHash { key: self.key.load(Relaxed), check: self.check.load(Relaxed) };
        (database != 0).then_some(Entry { database, hash })
    }

    fn set(&self, entry: Entry) {
        self.database.store(0, Release);
        self.key.store(entry.hash.key, Relaxed);
        self.check.store(entry.hash.check, Relaxed);
        self.database.store(entry.database, Release);
    }
}

impl NameText {
    pub fn new() -> Self {
        Self { length: 0, bytes: [0; MAX_NAME_BYTES] }
    }

    fn set(&mut self, name: &str) {
        self.length = name.len().min(MAX_NAME_BYTES);
        self.bytes[..self.length].copy_from_slice(&name.as_bytes()[..self.length]);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.length]).into_owned()
    }
}

/// How many of this process's holds may be in use: the rest need not be looked at.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The transaction itself, among its subtransactions: a macro of PostgreSQL.
const TOP: pg_sys::SubTransactionId = 1;

/// The locks that this transaction's open subtransactions have taken, with the one each belongs to: a savepoint rolled
/// back lets go of its own. What the transaction itself has taken goes with it, and need not be listed.
static IN_TRANSACTION: Mutex<Vec<(pg_sys::SubTransactionId, i64, Mode)>> = Mutex::new(Vec::new());

/// This process's place among the backends, plus 1; 0 is not known yet.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// This process's place; `None` without preload.
#[inline]
fn own() -> Option<&'static Backend> {
    let backends = BACKENDS.get()?;
    let own = match OWN.load(Relaxed) {
        0 => claim(backends)?,
        own => own,
    };
    Some(&backends[own - 1])
}

/// This process's place, if it has one. A process that ends in a transaction gives its place back first, and then ends
/// the transaction: it must not claim another one, which nobody would give back.
fn claimed() -> Option<&'static Backend> {
    let own = OWN.load(Relaxed).checked_sub(1)?;
    BACKENDS.get().map(|backends| &backends[own])
}

#[cold]
fn claim(backends: &'static [Backend]) -> Option<usize> {
    // SAFETY: set when the process starts, and never again.
    let pid = unsafe { pg_sys::MyProcPid };
    let is_taken = |backend: &Backend| backend.pid.compare_exchange(0, pid, AcqRel, Relaxed).is_ok();
    // There are as many places as processes.
    let own = backends.iter().position(is_taken)? + 1;
    backends[own - 1].database.store(database(), Relaxed);
    OWN.store(own, Relaxed);
    static REGISTERED: Once = Once::new();
    // SAFETY: the callbacks have the signatures asked for, and live as long as the library, which is never unloaded.
    REGISTERED.call_once(|| unsafe {
        xact::before_exit(at_exit);
        xact::on_xact_event(at_transaction_end);
        pg_sys::RegisterSubXactCallback(Some(at_subtransaction_end), std::ptr::null_mut());
    });
    Some(own)
}

/// A lock was taken.
#[inline]
pub fn taken(named: &Named, mode: Mode, scope: Scope, taken: Taken) {
    let Some(own) = own() else {
        return;
    };
    if scope == Scope::Transaction {
        // SAFETY: reads this process's own state.
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        if subtransaction != TOP {
            IN_TRANSACTION.lock().push((subtransaction, named.hash.key, mode));
        }
    }
    let known = own.hold(named.hash.key, mode);
    if let Some(hold) = known.filter(|_| taken == Taken::Again) {
        let depth = hold.depth(scope);
        depth.store(depth.load(Relaxed) + 1, Relaxed);
        return;
    }
    // Where it was held before and let go of unseen, what stands there is of then.
    if let Some(hold) = known.or_else(|| own.free()) {
        hold.key.store(named.hash.key, Relaxed);
        hold.shared.store(u8::from(mode == Mode::Shared), Relaxed);
        hold.since_ms.store(system_clock::coarse_wall_ms(), Relaxed);
        hold.clear();
        hold.depth(scope).store(1, Release);
    }
    register(named);
}

/// A session's lock was let go of once.
#[inline]
pub fn released(hash: NameHash, mode: Mode) {
    if let Some(hold) = claimed().and_then(|own| own.hold(hash.key, mode)) {
        hold.session.store(hold.session.load(Relaxed).saturating_sub(1), Relaxed);
    }
}

/// A wait that is shown as long as this lives.
pub struct Waiting(Option<&'static Backend>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(own) = self.0 {
            own.waiting.store(0, Relaxed);
        }
    }
}

pub fn waiting(named: &Named, mode: Mode, scope: Scope) -> Waiting {
    let own = own().map(|own| {
        own.waiting_key.store(named.hash.key, Relaxed);
        let bits =
            if mode == Mode::Shared { SHARED } else { 0 } | if scope == Scope::Transaction { TRANSACTION } else { 0 };
        own.waiting.store(1 | bits, Release);
        register(named);
        own
    });
    Waiting(own)
}

/// Makes the name known, if it is not.
#[inline]
fn register(named: &Named) {
    let names = NAMES.require();
    let entry = Entry { database: database(), hash: named.hash };
    let mut places = names::places(names.len(), entry.database, entry.hash.key);
    if !places.any(|index| names[index].entry() == Some(entry)) {
        register_new(names, entry, named);
    }
}

#[cold]
fn register_new(names: &[NameSlot], entry: Entry, named: &Named) {
    // Before the lock is taken: nothing may allocate under it.
    let name = (named.name)();
    let mut other = NameText::new();
    let collides = NAME_TEXTS.exclusive(|texts| {
        let at = |index: usize| names[index].entry();
        match names::place(names.len(), entry, at, is_in_use) {
            Place::Take(index) => {
                texts[index].set(&name);
                names[index].set(entry);
                false
            }
            Place::Collides(index) => {
                other = texts[index];
                true
            }
            Place::Known(_) | Place::Full => false,
        }
    });
    if collides {
        errors::collision(&name, &other.text()).warn();
    }
}

/// Does anybody hold the lock, or wait for it?
fn is_in_use(entry: &Entry) -> bool {
    let key = entry.hash.key;
    BACKENDS.require().iter().any(|backend| {
        let is_there = backend.pid.load(Relaxed) != 0 && backend.database.load(Relaxed) == entry.database;
        let waits = || backend.waiting.load(Relaxed) != 0 && backend.waiting_key.load(Relaxed) == key;
        let holds = || backend.holds.iter().any(|hold| hold.is_held() && hold.key.load(Relaxed) == key);
        is_there && (waits() || holds())
    })
}

fn at_exit(_code: i32) {
    if let Some(own) = claimed() {
        own.holds.iter().for_each(Hold::clear);
        own.waiting.store(0, Relaxed);
        own.pid.store(0, Release);
        OWN.store(0, Relaxed);
    }
}

fn at_transaction_end(event: pg_sys::XactEvent::Type) {
    use pg_sys::XactEvent::*;
    if let (XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE, Some(own)) = (event, claimed()) {
        IN_TRANSACTION.lock().clear();
        own.forget_unheld();
        own.holds.iter().for_each(|hold| hold.transaction.store(0, Relaxed));
    }
}

/// A savepoint is released, and leaves its locks to what it is in; or rolled back, and lets go of them.
#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction_end(
    event: pg_sys::SubXactEvent::Type,
    ended: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    let mut taken = IN_TRANSACTION.lock();
    // Those of the innermost are the last ones.
    let begin = taken.iter().rposition(|(of, ..)| *of != ended).map_or(0, |other| other + 1);
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB if parent == TOP => {
            taken.truncate(begin);
        }
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
            taken[begin..].iter_mut().for_each(|(of, ..)| *of = parent);
        }
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            for (_, key, mode) in taken.drain(begin..) {
                if let Some(hold) = claimed().and_then(|own| own.hold(key, mode)) {
                    hold.transaction.store(hold.transaction.load(Relaxed).saturating_sub(1), Relaxed);
                }
            }
        }
        _ => {}
    }
}

/// The names that are known of this database's locks.
#[pg_extern(sql = "CREATE FUNCTION idgen.lock_get_names(OUT key bigint, OUT name text) RETURNS SETOF record \
           VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lock_get_names() -> TableIterator<'static, (name!(key, i64), name!(name, Text<'static>))> {
    let Some(names) = NAMES.get() else {
        errors::names_unknown().warn();
        return TableIterator::new(Vec::new());
    };
    // Before the lock is taken: nothing may allocate under it.
    let mut found = Vec::with_capacity(names.len());
    NAME_TEXTS.shared(|texts| {
        for (slot, text) in names.iter().zip(texts.iter()) {
            if let Some(entry) = slot.entry().filter(|entry| entry.database == database()) {
                found.push((entry.hash.key, *text));
            }
        }
    });
    TableIterator::new(found.into_iter().map(|(key, text)| (key, text.text().into())))
}

/// What the processes of this database hold and wait for. A wait has no depth.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.lock_get_holds(OUT pid int, OUT key bigint, OUT shared boolean, OUT session_depth int, \
           OUT transaction_depth int, OUT acquired_at timestamptz, OUT waits_for text) RETURNS SETOF record \
           VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a function")]
fn lock_get_holds() -> TableIterator<
    'static,
    (
        name!(pid, i32),
        name!(key, i64),
        name!(shared, bool),
        name!(session_depth, Option<i32>),
        name!(transaction_depth, Option<i32>),
        name!(acquired_at, Option<TimestampWithTimeZone>),
        name!(waits_for, Option<String>),
    ),
> {
    let mut rows = Vec::new();
    for backend in BACKENDS.get().into_iter().flat_map(|backends| backends.iter()) {
        let pid = backend.pid.load(Acquire);
        if pid == 0 || backend.database.load(Relaxed) != database() {
            continue;
        }
        for hold in backend.holds.iter().filter(|hold| hold.is_held()) {
            let depth = |scope| Some(hold.depth(scope).load(Relaxed) as i32);
            let since = timestamp::from_ms(hold.since_ms.load(Relaxed));
            let (session, transaction) = (depth(Scope::Session), depth(Scope::Transaction));
            rows.push((pid, hold.key.load(Relaxed), hold.mode() == Mode::Shared, session, transaction, since, None));
        }
        let waiting = backend.waiting.load(Acquire);
        if waiting != 0 {
            let scope = if waiting & TRANSACTION != 0 { "transaction" } else { "session" };
            let key = backend.waiting_key.load(Relaxed);
            rows.push((pid, key, waiting & SHARED != 0, None, None, None, Some(scope.to_owned())));
        }
    }
    TableIterator::new(rows)
}
