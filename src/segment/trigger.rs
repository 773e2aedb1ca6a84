//! The trigger of `idgen.segment`: sets the columns that no user sets, and announces changes to all processes.

use super::{errors, pending, store};
use crate::pg::encoding::Text;
use crate::pg::session;
use crate::pg::trigger::{self, Row, Tuple};
use crate::pg::xact;
use pgrx::datum::TryFromDatumError;
use pgrx::heap_tuple::PgHeapTuple;
use pgrx::prelude::*;
use pgrx::trigger_support::PgTriggerOperation;

// Always: also for rows that a restore or a subscription writes.
extension_sql!(
    r#"CREATE TRIGGER segment_row BEFORE INSERT OR UPDATE OR DELETE ON idgen.segment
FOR EACH ROW EXECUTE FUNCTION idgen.segment_row();
ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER segment_row;"#,
    name = "segment_row_trigger",
    requires = [segment_row]
);

/// Runs before each row is written. A new row gets a random creation number. A row that changes keeps it, and `max_id`
/// never falls: that raises 22023. A change of owner or grants keeps the version, so that the ring keeps its values.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.segment_row() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn segment_row(fcinfo: pg_sys::FunctionCallInfo) -> Result<Row, Box<dyn std::error::Error>> {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let trigger = unsafe { trigger::of(fcinfo) }.unwrap_or_else(|| errors::row_trigger_only().raise());
    if !store::is_allocation() {
        // SAFETY: the trigger's table. PostgreSQL sends the invalidation when the transaction commits.
        unsafe { pg_sys::CacheInvalidateRelcacheByRelid(trigger.relid()?) };
    }
    let old = trigger.old().map(PgHeapTuple::into_owned);
    let new = trigger.new().map(PgHeapTuple::into_owned);
    let row = match (trigger.op()?, old, new) {
        (PgTriggerOperation::Insert, _, Some(new)) => Some(inserted(new)?),
        (PgTriggerOperation::Update, Some(old), Some(new)) => Some(updated(&old, new)?),
        (PgTriggerOperation::Delete, Some(old), _) => {
            pending::dropped(number(&old, "creation")?);
            Some(old)
        }
        (_, old, _) => old,
    };
    Ok(row.into())
}

/// The columns that determine the values. The step applies from the next range on, and needs no new version.
const NUMBERS: [&str; 4] = ["max_id", "stride", "residue", "upper_bound"];

fn inserted(mut new: Tuple) -> Result<Tuple, TryFromDatumError> {
    let transaction = xact::id();
    new.set_by_name("creation", session::random_i64())?;
    new.set_by_name("version", 1i64)?;
    new.set_by_name("created_in", transaction)?;
    new.set_by_name("changed_in", transaction)?;
    Ok(new)
}

fn updated<'a>(old: &Tuple, mut new: Tuple<'a>) -> Result<Tuple<'a>, TryFromDatumError> {
    let (max_id, new_max_id) = (number(old, "max_id")?, number(&new, "max_id")?);
    if new_max_id < max_id {
        let tag = old.get_by_name::<Text>("tag")?.map(String::from).unwrap_or_default();
        errors::lowered(&tag, max_id, new_max_id).raise();
    }
    new.set_by_name("creation", number(old, "creation")?)?;
    new.set_by_name("created_in", number(old, "created_in")?)?;
    let mut keeps_numbers = true;
    for name in NUMBERS {
        keeps_numbers &= number(old, name)? == number(&new, name)?;
    }
    let is_allocation = store::is_allocation();
    let is_new_version = !is_allocation && !keeps_numbers;
    let version = number(old, "version")? + i64::from(is_new_version);
    new.set_by_name("version", version)?;
    if is_new_version {
        pending::altered(number(old, "creation")?, version, number(&new, "stride")?);
    }
    new.set_by_name("changed_in", if is_allocation { number(old, "changed_in")? } else { xact::id() })?;
    Ok(new)
}

fn number(tuple: &Tuple, name: &str) -> Result<i64, TryFromDatumError> {
    Ok(tuple.get_by_name::<i64>(name)?.unwrap_or_default())
}
