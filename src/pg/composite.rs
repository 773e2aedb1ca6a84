//! Functions that return one row, with OUT parameters as its columns. pgrx supports only sets of rows and named types.

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::impl_sql_translatable;
use pgrx::prelude::*;

/// A row of the call's result type.
pub struct Composite(pg_sys::Datum);

impl_sql_translatable!(Composite, "record");

// SAFETY: a function that returns a record must return a composite datum in the memory context of the call. `form` makes
// one.
unsafe impl BoxRet for Composite {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: as above.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

/// Forms the row that the running call returns.
///
/// # Safety
/// `fcinfo` is that of the running call. The function has OUT parameters of the types of `columns`, in this order.
pub unsafe fn form<const N: usize>(fcinfo: pg_sys::FunctionCallInfo, columns: [Option<pg_sys::Datum>; N]) -> Composite {
    let mut values = columns.map(|column| column.unwrap_or(pg_sys::Datum::null()));
    let mut nulls = columns.map(|column| column.is_none());
    // SAFETY: by the above. Both arrays have one element for each column.
    unsafe {
        let mut row_type: pg_sys::TupleDesc = std::ptr::null_mut();
        pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut row_type);
        let row_type = pg_sys::BlessTupleDesc(row_type);
        let row = pg_sys::heap_form_tuple(row_type, values.as_mut_ptr(), nulls.as_mut_ptr());
        Composite(pg_sys::HeapTupleHeaderGetDatum((*row).t_data))
    }
}
