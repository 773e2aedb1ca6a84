//! The trigger of `idgen.public_key`: announces changes to all processes.

use super::{errors, store};
use crate::pg::function::{self, TriggerRow};
use crate::pg::invalidation;
use pgrx::prelude::*;

// Always: also for rows that a restore or a subscription writes.
/// Runs after each row is written.
#[pg_extern(sql = false)]
fn public_key_row(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let table = unsafe { function::trigger_of(fcinfo) }.and_then(|trigger| trigger.relid().ok());
    let table = table.filter(|table| store::PUBLIC_KEY.find() == Some(*table));
    invalidation::announce(table.unwrap_or_else(|| errors::row_trigger_only().raise()));
    TriggerRow::from(None)
}
