//! Set-returning functions that stream one bigint a call.

use pgrx::PgMemoryContexts;
use pgrx::prelude::*;

/// Returns the next row of a set; `None` ends it. PostgreSQL's protocol of one value a call, without its helper functions
/// where they only read `fn_extra`: a guarded call for each row would cost more than an id.
///
/// # Safety
/// `fcinfo` is that of a running call of a function that returns a set, and that keeps nothing else in `fn_extra`. A `T`
/// needs no drop.
#[inline]
pub unsafe fn next_row<T>(
    fcinfo: pg_sys::FunctionCallInfo,
    begin: impl FnOnce() -> T,
    next: impl FnOnce(&mut T) -> Option<i64>,
) -> Option<i64> {
    // SAFETY: `fn_extra` of a function that returns a set is null, or what `init_MultiFuncCall` put there; PostgreSQL
    // sets it back to null when the set ends or is abandoned. `user_fctx` is ours, set right after.
    unsafe {
        let flinfo = (*fcinfo).flinfo;
        if (*flinfo).fn_extra.is_null() {
            let begun = begin();
            let context = pg_sys::init_MultiFuncCall(fcinfo);
            let kept = PgMemoryContexts::For((*context).multi_call_memory_ctx).palloc_struct::<T>();
            kept.write(begun);
            (*context).user_fctx = kept.cast();
        }
        let context = (*flinfo).fn_extra.cast::<pg_sys::FuncCallContext>();
        let result = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        let id = next(&mut *(*context).user_fctx.cast::<T>());
        if id.is_some() {
            (*result).isDone = pg_sys::ExprDoneCond::ExprMultipleResult;
        } else {
            pg_sys::end_MultiFuncCall(fcinfo, context);
            (*result).isDone = pg_sys::ExprDoneCond::ExprEndResult;
        }
        id
    }
}
