//! Named advisory locks: the SQL functions. The waiting, the order and the freeing are PostgreSQL's own.

use crate::args;
use crate::pg::call_site::CallSite;
use crate::pg::encoding::Text;
use crate::shmem;
use acquire::Named;
use idgen_core::lock::{NameHash, in_order, is_name};
use manager::{Mode, Scope};
use parking_lot::Mutex;
use pgrx::datum::{Array, Interval};
use pgrx::prelude::*;
use wait::Limit;

pub mod acquire;
mod errors;
pub mod manager;
pub mod registry;
pub mod row_version;
pub mod wait;

/// The key of a name, as it stands in pg_locks.
#[pg_extern(immutable, strict, parallel_safe)]
fn lock_key(name: Text) -> i64 {
    checked(&name).key
}

/// Takes a lock for the session.
#[pg_extern(sql = "CREATE FUNCTION lock_acquire(name text, shared boolean DEFAULT false) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lock_acquire(fcinfo: pg_sys::FunctionCallInfo) {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { acquire_one(fcinfo, Scope::Session) }
}

/// Takes a lock for the transaction.
#[pg_extern(sql = "CREATE FUNCTION lock_acquire_xact(name text, shared boolean DEFAULT false) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lock_acquire_xact(fcinfo: pg_sys::FunctionCallInfo) {
    // SAFETY: as above.
    unsafe { acquire_one(fcinfo, Scope::Transaction) }
}

/// Takes a lock for the session, if it is to be had in time.
#[pg_extern(
    sql = "CREATE FUNCTION lock_try_acquire(name text, timeout interval DEFAULT '0', shared boolean DEFAULT false) \
           RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn lock_try_acquire(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: as above.
    unsafe { try_acquire_one(fcinfo, Scope::Session) }
}

/// Takes a lock for the transaction, if it is to be had in time.
#[pg_extern(
    sql = "CREATE FUNCTION lock_try_acquire_xact(name text, timeout interval DEFAULT '0', shared boolean DEFAULT false) \
           RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn lock_try_acquire_xact(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: as above.
    unsafe { try_acquire_one(fcinfo, Scope::Transaction) }
}

/// Lets go of a session's lock once. `shared` NULL is whichever mode is held, exclusive first.
#[pg_extern(sql = "CREATE FUNCTION lock_release(name text, shared boolean DEFAULT NULL) RETURNS boolean \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lock_release(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let (site, shared) = unsafe { (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<bool>(fcinfo, 1)) };
    let name = || site.text().unwrap_or_default().into_owned();
    site.with(hash_of, |hash| acquire::release(&Named { hash: *hash, name: &name }, shared.map(Mode::of)))
}

/// Takes several locks for the session, or none.
#[pg_extern(sql = "CREATE FUNCTION lock_acquire_many(names text[], shared boolean DEFAULT false) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lock_acquire_many(names: Option<Array<Text>>, shared: Option<bool>) {
    acquire::all(&ordered(names), mode(shared), Scope::Session, Limit::by_lock_timeout());
}

/// Takes several locks for the transaction, or none.
#[pg_extern(sql = "CREATE FUNCTION lock_acquire_many_xact(names text[], shared boolean DEFAULT false) RETURNS void \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lock_acquire_many_xact(names: Option<Array<Text>>, shared: Option<bool>) {
    acquire::all(&ordered(names), mode(shared), Scope::Transaction, Limit::by_lock_timeout());
}

/// Takes several locks for the session, if all are to be had in time, or none.
#[pg_extern(
    sql = "CREATE FUNCTION lock_try_acquire_many(names text[], timeout interval DEFAULT '0', shared boolean DEFAULT false) \
           RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn lock_try_acquire_many(names: Option<Array<Text>>, timeout: Option<Interval>, shared: Option<bool>) -> bool {
    acquire::all(&ordered(names), mode(shared), Scope::Session, Limit::answer(args::timeout(timeout)))
}

/// Takes several locks for the transaction, if all are to be had in time, or none.
#[pg_extern(sql = "CREATE FUNCTION lock_try_acquire_many_xact(names text[], timeout interval DEFAULT '0', \
           shared boolean DEFAULT false) \
           RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lock_try_acquire_many_xact(names: Option<Array<Text>>, timeout: Option<Interval>, shared: Option<bool>) -> bool {
    acquire::all(&ordered(names), mode(shared), Scope::Transaction, Limit::answer(args::timeout(timeout)))
}

/// Lets go of several of a session's locks, each once. False if one of them was not held.
#[pg_extern(sql = "CREATE FUNCTION lock_release_many(names text[], shared boolean DEFAULT NULL) RETURNS boolean \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
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
    take(&site, mode(shared), scope, Limit::Setting);
}

/// # Safety
/// `fcinfo` is that of the running call, with a text, an interval and a boolean as its arguments.
unsafe fn try_acquire_one(fcinfo: pg_sys::FunctionCallInfo, scope: Scope) -> bool {
    // SAFETY: by the above.
    let (site, timeout, shared) = unsafe {
        let shared = pgrx::fcinfo::pg_getarg::<bool>(fcinfo, 2);
        (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<Interval>(fcinfo, 1), shared)
    };
    take(&site, mode(shared), scope, Limit::answer(args::timeout(timeout)))
}

#[inline]
fn take(site: &CallSite, mode: Mode, scope: Scope, limit: Limit) -> bool {
    let name = || site.text().unwrap_or_default().into_owned();
    site.with(hash_of, |hash| acquire::one(&Named { hash: *hash, name: &name }, mode, scope, limit))
}

fn hash_of(site: &CallSite) -> NameHash {
    hash(checked_name(site.text().as_deref()))
}

fn checked(name: &str) -> NameHash {
    hash(checked_name(Some(name)))
}

/// A name that is one: not NULL, not empty, not too long.
pub fn checked_name(name: Option<&str>) -> &str {
    let name = args::required(name, "name");
    if !is_name(name) {
        errors::name_length(name).raise();
    }
    name
}

/// Whoever takes a lock lets go of the same one next, and to hash a name costs as much as to take its lock.
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
        (checked(&name), name.into())
    });
    in_order(hashed.collect())
}

fn mode(shared: Option<bool>) -> Mode {
    Mode::of(args::required(shared, "shared"))
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&registry::BACKENDS, &registry::NAMES, &registry::NAME_TEXTS]);
}
