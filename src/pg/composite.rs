//! One row with OUT parameters as its columns, as a function's result. pgrx makes sets of rows or named types only.

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::impl_sql_translatable;
use pgrx::prelude::*;

/// A composite datum of the call's own result type.
pub struct Composite(pg_sys::Datum);

impl_sql_translatable!(Composite, "record");

// SAFETY: the datum is a composite one, made by `form` in the memory context of the call, which is what a function
// that returns a record has to return.
unsafe impl BoxRet for Composite {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: as above.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

/// Forms the row that the running call returns.
///
/// # Safety
/// `fcinfo` is that of the running call, which is declared with OUT parameters of the types of `columns`, in order.
pub unsafe fn form<const N: usize>(fcinfo: pg_sys::FunctionCallInfo, columns: [Option<pg_sys::Datum>; N]) -> Composite {
    let mut values = columns.map(|column| column.unwrap_or(pg_sys::Datum::null()));
    let mut nulls = columns.map(|column| column.is_none());
    // SAFETY: the caller vouches for fcinfo and types; both arrays have as many elements as the row has columns.
    unsafe {
        let mut row_type: pg_sys::TupleDesc = std::ptr::null_mut();
        pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut row_type);
        let row_type = pg_sys::BlessTupleDesc(row_type);
        let row = pg_sys::heap_form_tuple(row_type, values.as_mut_ptr(), nulls.as_mut_ptr());
        Composite(pg_sys::HeapTupleHeaderGetDatum((*row).t_data))
    }
}
