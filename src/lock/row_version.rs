//! Optimistic locking of rows: the trigger function `row_version`.

use super::errors;
use crate::pg::datum;
use crate::pg::trigger::{self, TriggerRow, Tuple};
use pgrx::datum::TryFromDatumError;
use pgrx::heap_tuple::PgHeapTuple;
use pgrx::prelude::*;
use pgrx::trigger_support::{PgTriggerOperation, PgTriggerWhen};
use std::ffi::CStr;
use std::num::NonZeroUsize;

/// A trigger BEFORE UPDATE, FOR EACH ROW, on the column that is its argument. Raises 40001 if the UPDATE gives another
/// version than the row has; else increments the version. NULL counts as 0. Raises 22003 at the type's maximum, and
/// 39P01 if it is called in another way.
#[pg_extern(sql = false)]
fn row_version(fcinfo: pg_sys::FunctionCallInfo) -> Result<TriggerRow, Box<dyn std::error::Error>> {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let trigger = unsafe { trigger::of(fcinfo) }
        .unwrap_or_else(|| errors::row_version_usage("It was not called by a trigger.").raise());
    let [column] = trigger::arguments(trigger.trigger())[..] else {
        errors::row_version_usage("Its only argument is the name of a column.").raise();
    };
    let old = trigger.old().map(PgHeapTuple::into_owned);
    let new = trigger.new().map(PgHeapTuple::into_owned);
    match (trigger.when()?, trigger.op()?, old, new) {
        (PgTriggerWhen::Before, PgTriggerOperation::Update, Some(old), Some(new)) => {
            Ok(Some(incremented(column, &old, new)?).into())
        }
        _ => errors::row_version_usage("The trigger is not BEFORE UPDATE, FOR EACH ROW.").raise(),
    }
}

fn incremented<'a>(column: &CStr, old: &Tuple, mut new: Tuple<'a>) -> Result<Tuple<'a>, TryFromDatumError> {
    let Some((number, is_int)) = find(column, old) else {
        errors::row_version_usage("Its argument must name a column of type int or bigint.").raise();
    };
    let read = |tuple: &Tuple| match is_int {
        true => tuple.get_by_index::<i32>(number).map(|version| version.map(i64::from)),
        false => tuple.get_by_index::<i64>(number),
    };
    let (before, given) = (read(old)?, read(&new)?);
    if before != given {
        errors::stale_row(&datum::name(column), before, given).raise();
    }
    match (is_int, before.map_or(Some(1), |version| version.checked_add(1))) {
        (false, Some(next)) => new.set_by_index(number, next)?,
        (true, Some(next)) if i32::try_from(next).is_ok() => new.set_by_index(number, next as i32)?,
        _ => errors::row_version_ended(&datum::name(column)).raise(),
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
