//! Named locks: the SQL functions. Named locks are advisory locks: PostgreSQL's lock
//! manager queues them, detects deadlocks, and releases them when the session or transaction ends.
//!
//! All functions raise 22004 if an argument is NULL, except where they say otherwise, and 22023 for a name that is not
//! 1 to 255 bytes long. A call that fails leaves no lock held. The trigger function `row_version` is optimistic locking of
//! rows.

use crate::args::{self, name_hash};
use crate::pg::advisory_lock::{Limit, Mode, Scope};
use crate::pg::datum::{self, Text};
use crate::pg::ereport::errors;
use crate::pg::function::{self, TriggerRow, Tuple};
use crate::shmem;
use acquire::Named;
use idgen_core::lock::{NameHash, in_lock_order};
use pgrx::datum::{Array, Interval, TryFromDatumError};
use pgrx::heap_tuple::PgHeapTuple;
use pgrx::prelude::*;
use pgrx::trigger_support::{PgTriggerOperation, PgTriggerWhen};
use std::ffi::CStr;
use std::num::NonZeroUsize;

mod acquire;
mod holds;
mod names;

/// The key of a name, as `pg_locks` shows it in classid (upper half) and objid. NULL for NULL.
#[pg_extern(sql = false)]
fn lock_key(name: Text) -> i64 {
    name_hash(args::name(Some(&name), "name")).key
}

/// Acquires a lock for the session. Waits as long as `lock_timeout` allows, then raises 55P03.
#[pg_extern(sql = false)]
fn lock_acquire(name: Option<Text>, shared: Option<bool>) {
    acquire(name, shared, Scope::Session, Limit::Setting);
}

/// Acquires a lock for the transaction, as `lock_acquire` does.
#[pg_extern(sql = false)]
fn lock_acquire_xact(name: Option<Text>, shared: Option<bool>) {
    acquire(name, shared, Scope::Transaction, Limit::Setting);
}

/// Acquires a lock for the session. False if it is not available within the timeout, 0 to 24 days; else 22023.
#[pg_extern(sql = false)]
fn lock_try_acquire(name: Option<Text>, timeout: Option<Interval>, shared: Option<bool>) -> bool {
    acquire(name, shared, Scope::Session, Limit::answer(args::timeout(timeout)))
}

/// Acquires a lock for the transaction, as `lock_try_acquire` does.
#[pg_extern(sql = false)]
fn lock_try_acquire_xact(name: Option<Text>, timeout: Option<Interval>, shared: Option<bool>) -> bool {
    acquire(name, shared, Scope::Transaction, Limit::answer(args::timeout(timeout)))
}

#[inline]
fn acquire(name: Option<Text>, shared: Option<bool>, scope: Scope, limit: Limit) -> bool {
    let mode = mode(shared);
    let name = args::name(name.as_deref(), "name");
    acquire::one(&Named { hash: name_hash(name), name }, mode, scope, limit)
}

/// Releases a session's lock once. With `shared` NULL, releases the exclusive lock, or else the shared one. False, with
/// a warning, if the session does not hold it.
#[pg_extern(sql = false)]
fn lock_release(name: Option<Text>, shared: Option<bool>) -> bool {
    let name = args::name(name.as_deref(), "name");
    acquire::release(&Named { hash: name_hash(name), name }, shared.map(Mode::of))
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
        all_held &= acquire::release(&Named { hash: *hash, name }, shared.map(Mode::of));
    }
    all_held
}

fn ordered(names: Option<Array<Text>>) -> Vec<(NameHash, String)> {
    let names = args::required(names, "names");
    let hashed = names.iter().map(|name| {
        let name = args::required(name, "a name");
        (name_hash(args::name(Some(&name), "a name")), name.into())
    });
    in_lock_order(hashed.collect())
}

fn mode(shared: Option<bool>) -> Mode {
    Mode::of(args::required(shared, "shared"))
}

/// A trigger BEFORE UPDATE, FOR EACH ROW, on the column that is its argument. Raises 40001 if the UPDATE gives another
/// version than the row has; else increments the version. NULL counts as 0. Raises 22003 at the type's maximum, and
/// 39P01 if it is called in another way.
#[pg_extern(sql = false)]
fn row_version(fcinfo: pg_sys::FunctionCallInfo) -> Result<TriggerRow, Box<dyn std::error::Error>> {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let trigger = unsafe { function::trigger_of(fcinfo) }
        .unwrap_or_else(|| row_version_usage("It was not called by a trigger.").raise());
    let [column] = function::trigger_arguments(trigger.trigger())[..] else {
        row_version_usage("Its only argument is the name of a column.").raise();
    };
    let old = trigger.old().map(PgHeapTuple::into_owned);
    let new = trigger.new().map(PgHeapTuple::into_owned);
    match (trigger.when()?, trigger.op()?, old, new) {
        (PgTriggerWhen::Before, PgTriggerOperation::Update, Some(old), Some(new)) => {
            Ok(Some(incremented(column, &old, new)?).into())
        }
        _ => row_version_usage("The trigger is not BEFORE UPDATE, FOR EACH ROW.").raise(),
    }
}

fn incremented<'a>(column: &CStr, old: &Tuple, mut new: Tuple<'a>) -> Result<Tuple<'a>, TryFromDatumError> {
    let Some((number, is_int)) = find(column, old) else {
        row_version_usage("Its argument must name a column of type int or bigint.").raise();
    };
    let read = |tuple: &Tuple| match is_int {
        true => tuple.get_by_index::<i32>(number).map(|version| version.map(i64::from)),
        false => tuple.get_by_index::<i64>(number),
    };
    let (before, given) = (read(old)?, read(&new)?);
    if before != given {
        stale_row(&datum::name(column), before, given).raise();
    }
    match (is_int, before.map_or(Some(1), |version| version.checked_add(1))) {
        (false, Some(next)) => new.set_by_index(number, next)?,
        (true, Some(next)) if i32::try_from(next).is_ok() => new.set_by_index(number, next as i32)?,
        _ => row_version_ended(&datum::name(column)).raise(),
    }
    Ok(new)
}

/// The number of a column, and whether it is an int; `None` unless it is an int or a bigint. Tests the type itself:
/// pgrx reads a smallint as an int, and a NULL as any type. Compares the bytes of names: pgrx reads names as UTF-8.
fn find(column: &CStr, row: &Tuple) -> Option<(NonZeroUsize, bool)> {
    // SAFETY: a name is a C string, and lives as long as the row's description.
    let is_named = |name: &pg_sys::NameData| unsafe { CStr::from_ptr(name.data.as_ptr()) } == column;
    let (number, attribute) = row.attributes().find(|(_, attribute)| is_named(&attribute.attname))?;
    match attribute.atttypid {
        pg_sys::INT4OID => Some((number, true)),
        pg_sys::INT8OID => Some((number, false)),
        _ => None,
    }
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&holds::BACKENDS, &names::USES, &names::NAMES, &names::NAME_TEXTS]);
}

errors! {
    fn row_version_usage(detail: &str) {
        ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED: "row_version() must be called by a BEFORE UPDATE row trigger";
        detail: "{}", detail;
        hint: "CREATE TRIGGER ... BEFORE UPDATE ON ... FOR EACH ROW EXECUTE FUNCTION row_version('column');";
    }

    fn stale_row(column: &str, now: Option<i64>, given: Option<i64>) {
        ERRCODE_T_R_SERIALIZATION_FAILURE: "the row has changed since version {} was read", version_text(given);
        detail: "Its {column} is {} now.", version_text(now);
        hint: "Read the row again, and repeat the change.";
    }

    fn row_version_ended(column: &str) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "{column} has reached its maximum";
    }
}

fn version_text(version: Option<i64>) -> String {
    version.map_or("NULL".to_owned(), |version| version.to_string())
}
