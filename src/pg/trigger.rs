//! Functions that only a trigger may call. pgrx's own kind of them answers anybody else with an internal error.

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::heap_tuple::PgHeapTuple;
use pgrx::impl_sql_translatable;
use pgrx::prelude::*;
use pgrx::{AllocatedByRust, PgTrigger};
use std::ffi::CStr;

pub type Tuple<'a> = PgHeapTuple<'a, AllocatedByRust>;

/// The row that a trigger lets through, or none.
pub struct Row(Option<pg_sys::Datum>);

impl_sql_translatable!(Row, "trigger");

impl From<Option<Tuple<'_>>> for Row {
    fn from(tuple: Option<Tuple>) -> Self {
        Self(tuple.and_then(PgHeapTuple::into_trigger_datum))
    }
}

impl From<pg_sys::HeapTuple> for Row {
    fn from(tuple: pg_sys::HeapTuple) -> Self {
        Self(Some(tuple.into()))
    }
}

// SAFETY: the datum is a tuple in memory of the call, or a null pointer, which is what a trigger has to return.
unsafe impl BoxRet for Row {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: as above. A trigger that returns no row returns a null pointer, and not NULL.
        unsafe { fcinfo.return_raw_datum(self.0.unwrap_or(pg_sys::Datum::null())) }
    }
}

/// What the running call is about; `None` if it is not a trigger's.
///
/// # Safety
/// `fcinfo` is that of the running call.
pub unsafe fn of<'a>(fcinfo: pg_sys::FunctionCallInfo) -> Option<PgTrigger<'a>> {
    // SAFETY: by the above. It looks whether the call is a trigger's before it looks at anything else.
    unsafe { PgTrigger::from_fcinfo(&*fcinfo) }.ok()
}

/// The arguments of a trigger's definition, in the encoding of the database.
pub fn arguments(definition: &pg_sys::Trigger) -> Vec<&CStr> {
    // SAFETY: a trigger has as many arguments as it says, all C strings that live as long as it.
    (0..definition.tgnargs as usize).map(|index| unsafe { CStr::from_ptr(*definition.tgargs.add(index)) }).collect()
}
