//! lease_guard: refuses writes to a table by transactions that have not fenced.

use super::transaction;
use crate::error;
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::impl_sql_translatable;
use pgrx::prelude::*;
use std::ffi::CStr;

/// The row that a trigger lets be written, or null for a statement.
struct Written(pg_sys::Datum);

impl_sql_translatable!(Written, "trigger");

// SAFETY: a pointer to the row that PostgreSQL has given, or null, which is what a trigger has to return.
unsafe impl BoxRet for Written {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: as above.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

/// A trigger before writes to rows, or before statements and so for TRUNCATE. Its argument is the lease's name.
///
/// A transaction has fenced while its list of fences says so: the list follows its savepoints as the lock on the lease's row
/// does, so the row need not be locked again for each row that is written.
#[pg_extern(sql = "CREATE FUNCTION lease_guard() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_guard(fcinfo: pg_sys::FunctionCallInfo) -> Written {
    // SAFETY: `context` is null or a node; a trigger's is a TriggerData, whose trigger and table are there for the call.
    let trigger = unsafe {
        let context = (*fcinfo).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            error::lease::guard_usage("It was called as a function.").raise();
        }
        &*context.cast::<pg_sys::TriggerData>()
    };
    // SAFETY: a trigger has as many arguments as it says, all C strings in the server's encoding.
    let name = unsafe {
        let definition = &*trigger.tg_trigger;
        if definition.tgnargs != 1 {
            error::lease::guard_usage("It takes the name of one lease.").raise();
        }
        CStr::from_ptr(*definition.tgargs).to_string_lossy()
    };
    if trigger.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK != pg_sys::TRIGGER_EVENT_BEFORE {
        error::lease::guard_usage("It is for BEFORE, so that nothing is written.").raise();
    }
    if !transaction::has_fenced(&name) {
        // SAFETY: the trigger's table is open during the call.
        let table = unsafe { CStr::from_ptr((*(*trigger.tg_relation).rd_rel).relname.data.as_ptr()) };
        error::lease::not_fenced(&name, &table.to_string_lossy()).raise();
    }
    let is_update = trigger.tg_event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_UPDATE;
    Written(if is_update { trigger.tg_newtuple.into() } else { trigger.tg_trigtuple.into() })
}
