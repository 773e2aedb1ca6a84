//! The trigger on `idgen.segment`: keeps what a hand could get wrong, and tells every process of a change.

use super::errors;
use super::{change, row};
use crate::pg::encoding::Text;
use crate::pg::session;
use crate::pg::trigger::{self, Row, Tuple};
use pgrx::datum::TryFromDatumError;
use pgrx::heap_tuple::PgHeapTuple;
use pgrx::prelude::*;
use pgrx::trigger_support::PgTriggerOperation;

/// A row comes, changes or goes. A new one gets a creation number that no other ever had. An old one keeps it, lets `max_id`
/// only rise, and counts its version up when its numbers change; who may draw them wastes no range.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.segment_row() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn segment_row(fcinfo: pg_sys::FunctionCallInfo) -> Result<Row, Box<dyn std::error::Error>> {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let trigger = unsafe { trigger::of(fcinfo) }.unwrap_or_else(|| errors::row_trigger_only().raise());
    if !row::is_allocation() {
        // SAFETY: the table the trigger is on. Sent to all when the transaction commits.
        unsafe { pg_sys::CacheInvalidateRelcacheByRelid(trigger.relid()?) };
    }
    let old = trigger.old().map(PgHeapTuple::into_owned);
    let new = trigger.new().map(PgHeapTuple::into_owned);
    let row = match (trigger.op()?, old, new) {
        (PgTriggerOperation::Insert, _, Some(new)) => Some(inserted(new)?),
        (PgTriggerOperation::Update, Some(old), Some(new)) => Some(updated(&old, new)?),
        (PgTriggerOperation::Delete, Some(old), _) => {
            change::dropped(number(&old, "creation")?);
            Some(old)
        }
        (_, old, _) => old,
    };
    Ok(row.into())
}

/// What values are made from. The step is not among them: it holds from the next range on, and wastes none.
const NUMBERS: [&str; 4] = ["max_id", "stride", "residue", "upper_bound"];

fn inserted(mut new: Tuple) -> Result<Tuple, TryFromDatumError> {
    let transaction = own_transaction();
    new.set_by_name("creation", session::random_i64())?;
    new.set_by_name("version", 1i64)?;
    new.set_by_name("created_in", transaction)?;
    new.set_by_name("changed_in", transaction)?;
    Ok(new)
}

fn updated<'a>(old: &Tuple, mut new: Tuple<'a>) -> Result<Tuple<'a>, TryFromDatumError> {
    let (max_id, wish) = (number(old, "max_id")?, number(&new, "max_id")?);
    if wish < max_id {
        let tag = old.get_by_name::<Text>("tag")?.map(String::from).unwrap_or_default();
        errors::lowered(&tag, max_id, wish).raise();
    }
    new.set_by_name("creation", number(old, "creation")?)?;
    new.set_by_name("created_in", number(old, "created_in")?)?;
    let mut keeps_its_numbers = true;
    for name in NUMBERS {
        keeps_its_numbers &= number(old, name)? == number(&new, name)?;
    }
    let is_allocation = row::is_allocation();
    let is_new_version = !is_allocation && !keeps_its_numbers;
    let version = number(old, "version")? + i64::from(is_new_version);
    new.set_by_name("version", version)?;
    if is_new_version {
        change::altered(number(old, "creation")?, version, number(&new, "stride")?);
    }
    new.set_by_name("changed_in", if is_allocation { number(old, "changed_in")? } else { own_transaction() })?;
    Ok(new)
}

fn number(tuple: &Tuple, name: &str) -> Result<i64, TryFromDatumError> {
    Ok(tuple.get_by_name::<i64>(name)?.unwrap_or_default())
}

/// The number of this transaction, which writes and so has one.
fn own_transaction() -> i64 {
    // SAFETY: in a transaction, as every trigger.
    unsafe { pg_sys::GetTopFullTransactionId() }.value as i64
}
