//! lease_guard: refuses writes to a table by transactions that have not fenced.

use super::errors;
use super::pending;
use crate::pg::datum::{self, decoded};
use crate::pg::trigger::{self, TriggerRow};
use pgrx::prelude::*;
use std::ffi::CStr;

/// A trigger before writes of rows, or before statements, for TRUNCATE. Its arguments are the name of the lease, and
/// 'shared' to accept fences by shared terms too. Raises 55000 unless the transaction has fenced by the lease, and 39P01 if the trigger is not declared as it must be.
///
/// Reads the transaction's list of fences, which follows savepoints as the lock on the lease's row does. So a write
/// does not lock that row again.
#[pg_extern(sql = false)]
fn lease_guard(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let trigger =
        unsafe { trigger::of(fcinfo) }.unwrap_or_else(|| errors::guard_usage("It was called as a function.").raise());
    let (name, accepts_shared) = match trigger::arguments(trigger.trigger())[..] {
        [name] => (name, false),
        [name, mode] if mode == c"shared" => (name, true),
        _ => errors::guard_usage("Its arguments must be the name of a lease, and 'shared' or nothing.").raise(),
    };
    let call = trigger.trigger_data();
    let name = decoded(name.to_bytes());
    if call.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK != pg_sys::TRIGGER_EVENT_BEFORE {
        errors::guard_usage("It must be a BEFORE trigger.").raise();
    }
    if !pending::has_fenced(&name, accepts_shared) {
        // SAFETY: the trigger's table is open during the call.
        let table = unsafe { CStr::from_ptr((*(*call.tg_relation).rd_rel).relname.data.as_ptr()) };
        errors::not_fenced(&name, &datum::name(table), pending::has_fenced(&name, true)).raise();
    }
    let is_update = call.tg_event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_UPDATE;
    // Null for a statement.
    if is_update { call.tg_newtuple.into() } else { call.tg_trigtuple.into() }
}
