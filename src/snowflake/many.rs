//! snowflake_next_many: a set of ids, drawn as few reservations as the bounds allow and streamed.

use super::call_site::CallSite;
use super::space::{self, Attached};
use crate::error;
use idgen_core::snowflake::Run;
use pgrx::PgMemoryContexts;
use pgrx::prelude::*;

/// A set in the middle of being returned.
struct Drawing {
    attached: Attached,
    /// What is reserved and not yet returned.
    run: Run,
    /// What is not yet reserved.
    wanted: u64,
}

/// Ids in the layout of `idgen.layout`, increasing.
#[pg_extern(sql = "CREATE FUNCTION snowflake_next_many(count int) RETURNS SETOF bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_next_many(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { next_row(fcinfo, None) }
}

/// Ids in a layout, increasing.
#[pg_extern(
    sql = "CREATE FUNCTION snowflake_next_many(count int, layout text) RETURNS SETOF bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn snowflake_next_many_in(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { next_row(fcinfo, Some(1)) }
}

/// One row of the set. PostgreSQL's protocol of one value a call, without its helper functions where they would only
/// read `fn_extra`: a guarded call a row would cost more than the id.
///
/// # Safety
/// `fcinfo` is that of a running call whose arguments are a count and, at `layout_arg`, a text.
unsafe fn next_row(fcinfo: pg_sys::FunctionCallInfo, layout_arg: Option<usize>) -> Option<i64> {
    // SAFETY: `fn_extra` of a function that returns a set is null, or what `init_MultiFuncCall` put there; PostgreSQL
    // sets it back to null when the set ends or is abandoned. `user_fctx` is ours, set right after.
    unsafe {
        let flinfo = (*fcinfo).flinfo;
        if (*flinfo).fn_extra.is_null() {
            let drawing = Drawing::begin(fcinfo, layout_arg);
            let context = pg_sys::init_MultiFuncCall(fcinfo);
            let kept = PgMemoryContexts::For((*context).multi_call_memory_ctx).palloc_struct::<Drawing>();
            kept.write(drawing);
            (*context).user_fctx = kept.cast();
        }
        let context = (*flinfo).fn_extra.cast::<pg_sys::FuncCallContext>();
        let result = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        let id = (*(*context).user_fctx.cast::<Drawing>()).next();
        if id.is_some() {
            (*result).isDone = pg_sys::ExprDoneCond::ExprMultipleResult;
        } else {
            pg_sys::end_MultiFuncCall(fcinfo, context);
            (*result).isDone = pg_sys::ExprDoneCond::ExprEndResult;
        }
        id
    }
}

impl Drawing {
    /// # Safety
    /// See `next_row`.
    unsafe fn begin(fcinfo: pg_sys::FunctionCallInfo, layout_arg: Option<usize>) -> Self {
        // SAFETY: the first argument is an int, and the caller vouches for the layout's.
        let (count, site) = unsafe { (pgrx::fcinfo::pg_getarg::<i32>(fcinfo, 0), CallSite::new(fcinfo, layout_arg)) };
        let count = count.unwrap_or_else(|| error::null_argument("count").raise());
        let wanted = u64::try_from(count).unwrap_or_else(|_| error::negative_count(count).raise());
        Self { attached: site.attach(), run: Run { first: 0, count: 0, borrowed: 0 }, wanted }
    }

    #[inline]
    fn next(&mut self) -> Option<i64> {
        if self.run.count == 0 {
            if self.wanted == 0 {
                return None;
            }
            self.run = space::next_run(&mut self.attached, self.wanted);
            self.wanted -= self.run.count;
        }
        let id = self.attached.id(self.run.first);
        self.run.first += 1;
        self.run.count -= 1;
        Some(id)
    }
}
