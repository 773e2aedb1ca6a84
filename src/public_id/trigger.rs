//! The trigger of `idgen.public_key`: announces changes to all processes.

use super::{errors, store};
use crate::pg::invalidation;
use crate::pg::trigger::{self, TriggerRow};
use pgrx::prelude::*;

// Always: also for rows that a restore or a subscription writes.
extension_sql!(
    r#"CREATE TRIGGER public_key_row AFTER INSERT OR UPDATE OR DELETE ON idgen.public_key
FOR EACH ROW EXECUTE FUNCTION idgen.public_key_row();
ALTER TABLE idgen.public_key ENABLE ALWAYS TRIGGER public_key_row;"#,
    name = "public_key_row_trigger",
    requires = [public_key_row]
);

/// Runs after each row is written.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.public_key_row() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn public_key_row(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let table = unsafe { trigger::of(fcinfo) }.and_then(|trigger| trigger.relid().ok());
    let table = table.filter(|table| store::PUBLIC_KEY.find() == Some(*table));
    invalidation::announce(table.unwrap_or_else(|| errors::row_trigger_only().raise()));
    TriggerRow::from(None)
}
