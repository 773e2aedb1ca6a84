//! Set-returning functions that return one value per call.

use pgrx::PgMemoryContexts;
use pgrx::prelude::*;

/// The next row of a set, in PostgreSQL's value-per-call mode; `None` ends the set. PostgreSQL's helper functions that only
/// read `fn_extra` are not called: pgrx's guard would cost more than the row.
///
/// # Safety
/// `fcinfo` is that of a running call of a set-returning function that uses `fn_extra` for nothing else.
#[inline]
pub unsafe fn next_row<T, R>(
    fcinfo: pg_sys::FunctionCallInfo,
    begin: impl FnOnce() -> T,
    next: impl FnOnce(&mut T) -> Option<R>,
) -> Option<R> {
    // PostgreSQL frees its memory, and calls no destructor.
    const { assert!(!std::mem::needs_drop::<T>()) };
    // SAFETY: `fn_extra` is null or the context that `init_MultiFuncCall` stored. PostgreSQL sets it back to null when the
    // set ends or is abandoned. `user_fctx` is set right after the context is created.
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
        let row = next(&mut *(*context).user_fctx.cast::<T>());
        if row.is_some() {
            (*result).isDone = pg_sys::ExprDoneCond::ExprMultipleResult;
        } else {
            pg_sys::end_MultiFuncCall(fcinfo, context);
            (*result).isDone = pg_sys::ExprDoneCond::ExprEndResult;
        }
        row
    }
}
