//! Trigger functions. pgrx's own support raises an internal error when such a function is called outside of a trigger.

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::heap_tuple::PgHeapTuple;
use pgrx::impl_sql_translatable;
use pgrx::prelude::*;
use pgrx::{AllocatedByRust, PgTrigger};
use std::ffi::CStr;

pub type Tuple<'a> = PgHeapTuple<'a, AllocatedByRust>;

/// The result of a trigger: the row to write, or none to skip it.
pub struct TriggerRow(Option<pg_sys::Datum>);

impl_sql_translatable!(TriggerRow, "trigger");

impl From<Option<Tuple<'_>>> for TriggerRow {
    fn from(tuple: Option<Tuple>) -> Self {
        Self(tuple.and_then(PgHeapTuple::into_trigger_datum))
    }
}

impl From<pg_sys::HeapTuple> for TriggerRow {
    fn from(tuple: pg_sys::HeapTuple) -> Self {
        Self(Some(tuple.into()))
    }
}

// SAFETY: a trigger must return a tuple in the memory of the call, or a null pointer.
unsafe impl BoxRet for TriggerRow {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: as above. For no row, a trigger returns a null pointer, not NULL.
        unsafe { fcinfo.return_raw_datum(self.0.unwrap_or(pg_sys::Datum::null())) }
    }
}

/// The trigger of the running call; `None` if the call is not a trigger's.
///
/// # Safety
/// `fcinfo` is that of the running call.
pub unsafe fn of<'a>(fcinfo: pg_sys::FunctionCallInfo) -> Option<PgTrigger<'a>> {
    // SAFETY: by the above. pgrx tests first that a trigger made the call.
    unsafe { PgTrigger::from_fcinfo(&*fcinfo) }.ok()
}

/// The arguments in a trigger's definition, in the encoding of the database.
pub fn arguments(definition: &pg_sys::Trigger) -> Vec<&CStr> {
    // SAFETY: `tgargs` has `tgnargs` C strings, which live as long as the trigger.
    (0..definition.tgnargs as usize).map(|index| unsafe { CStr::from_ptr(*definition.tgargs.add(index)) }).collect()
}
