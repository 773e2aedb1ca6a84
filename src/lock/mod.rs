//! Named locks: the SQL functions. They are advisory locks: PostgreSQL's lock manager queues them, detects deadlocks,
//! and releases them when the session or transaction ends.
//!
//! All functions raise 22004 if an argument is NULL, except where they say otherwise, and 22023 for a name that is not
//! 1 to 255 bytes long. A call that fails leaves no lock held.

use crate::args;
use crate::pg::advisory_lock::Limit;
use crate::pg::advisory_lock::{Mode, Scope};
use crate::pg::call_site::CallSite;
use crate::pg::datum::Text;
use crate::shmem;
use acquire::Named;
use idgen_core::lock::{NameHash, in_lock_order};
use parking_lot::Mutex;
use pgrx::datum::{Array, Interval};
use pgrx::prelude::*;

mod acquire;
mod errors;
mod holds;
mod registry;
mod row_version;
mod view;

/// The key of a name, as `pg_locks` shows it in classid (upper half) and objid. NULL for NULL.
#[pg_extern(sql = false)]
fn lock_key(name: Text) -> i64 {
    hash(args::name(Some(&name), "name")).key
}

/// Acquires a lock for the session. Waits as long as `lock_timeout` allows, then raises 55P03.
#[pg_extern(sql = false)]
fn lock_acquire(fcinfo: pg_sys::FunctionCallInfo) {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { acquire_one(fcinfo, Scope::Session) }
}

/// Acquires a lock for the transaction, as `lock_acquire` does.
#[pg_extern(sql = false)]
fn lock_acquire_xact(fcinfo: pg_sys::FunctionCallInfo) {
    // SAFETY: as above.
    unsafe { acquire_one(fcinfo, Scope::Transaction) }
}

/// Acquires a lock for the session. False if it is not available within the timeout, 0 to 24 days; else 22023.
#[pg_extern(sql = false)]
fn lock_try_acquire(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: as above.
    unsafe { try_acquire_one(fcinfo, Scope::Session) }
}

/// Acquires a lock for the transaction, as `lock_try_acquire` does.
#[pg_extern(sql = false)]
fn lock_try_acquire_xact(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: as above.
    unsafe { try_acquire_one(fcinfo, Scope::Transaction) }
}

/// Releases a session's lock once. With `shared` NULL, releases the exclusive lock, or else the shared one. False, with
/// a warning, if the session does not hold it.
#[pg_extern(sql = false)]
fn lock_release(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let (site, shared) = unsafe { (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<bool>(fcinfo, 1)) };
    let name = || site.text().unwrap_or_default().into_owned();
    site.with(hash_of_call, |hash| acquire::release(&Named { hash: *hash, name: &name }, shared.map(Mode::of)))
}

/// Acquires several locks for the session, or none. Waits as long as `lock_timeout` allows for all of them, then raises
/// 55P03.
#[pg_extern(sql = false)]
fn lock_acquire_many(names: Option<Array<Text>>, shared: Option<bool>) {
    acquire::all(&ordered(names), mode(shared), Scope::Session, Limit::by_lock_timeout());
}

/// Acquires several locks for the transaction, as `lock_acquire_many` does.
#[pg_extern(sql = false)]
fn lock_acquire_many_xact(names: Option<Array<Text>>, shared: Option<bool>) {
    acquire::all(&ordered(names), mode(shared), Scope::Transaction, Limit::by_lock_timeout());
}

/// Acquires several locks for the session. False, with none of them held, if they are not all available within the
/// timeout.
#[pg_extern(sql = false)]
fn lock_try_acquire_many(names: Option<Array<Text>>, timeout: Option<Interval>, shared: Option<bool>) -> bool {
    acquire::all(&ordered(names), mode(shared), Scope::Session, Limit::answer(args::timeout(timeout)))
}

/// Acquires several locks for the transaction, as `lock_try_acquire_many` does.
#[pg_extern(sql = false)]
fn lock_try_acquire_many_xact(names: Option<Array<Text>>, timeout: Option<Interval>, shared: Option<bool>) -> bool {
    acquire::all(&ordered(names), mode(shared), Scope::Transaction, Limit::answer(args::timeout(timeout)))
}

/// Releases several of a session's locks, each once, as `lock_release` does. False if one of them was not held.
#[pg_extern(sql = false)]
fn lock_release_many(names: Option<Array<Text>>, shared: Option<bool>) -> bool {
    let mut all_held = true;
    for (hash, name) in ordered(names).iter().rev() {
        all_held &= acquire::release(&Named { hash: *hash, name: &|| name.clone() }, shared.map(Mode::of));
    }
    all_held
}

/// # Safety
/// `fcinfo` is that of the running call, with a text and a boolean as its arguments.
unsafe fn acquire_one(fcinfo: pg_sys::FunctionCallInfo, scope: Scope) {
    // SAFETY: by the above.
    let (site, shared) = unsafe { (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<bool>(fcinfo, 1)) };
    acquire(&site, mode(shared), scope, Limit::Setting);
}

/// # Safety
/// `fcinfo` is that of the running call, with a text, an interval and a boolean as its arguments.
unsafe fn try_acquire_one(fcinfo: pg_sys::FunctionCallInfo, scope: Scope) -> bool {
    // SAFETY: by the above.
    let (site, timeout, shared) = unsafe {
        let shared = pgrx::fcinfo::pg_getarg::<bool>(fcinfo, 2);
        (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<Interval>(fcinfo, 1), shared)
    };
    acquire(&site, mode(shared), scope, Limit::answer(args::timeout(timeout)))
}

#[inline]
fn acquire(site: &CallSite, mode: Mode, scope: Scope, limit: Limit) -> bool {
    let name = || site.text().unwrap_or_default().into_owned();
    site.with(hash_of_call, |hash| acquire::one(&Named { hash: *hash, name: &name }, mode, scope, limit))
}

fn hash_of_call(site: &CallSite) -> NameHash {
    hash(args::name(site.text().as_deref(), "name"))
}

/// A session that acquires a lock often releases the same one next, and hashing a name costs as much as acquiring its
/// lock.
fn hash(name: &str) -> NameHash {
    static LAST: Mutex<(String, NameHash)> = Mutex::new((String::new(), NameHash { key: 0, check: 0 }));
    let (last, hash) = &mut *LAST.lock();
    if last != name {
        *hash = NameHash::of(name);
        name.clone_into(last);
    }
    *hash
}

fn ordered(names: Option<Array<Text>>) -> Vec<(NameHash, String)> {
    let names = args::required(names, "names");
    let hashed = names.iter().map(|name| {
        let name = args::required(name, "a name");
        (hash(args::name(Some(&name), "a name")), name.into())
    });
    in_lock_order(hashed.collect())
}

fn mode(shared: Option<bool>) -> Mode {
    Mode::of(args::required(shared, "shared"))
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&holds::BACKENDS, &holds::USES, &registry::NAMES, &registry::NAME_TEXTS]);
}
