//! snowflake_next_many: a set of ids, drawn as few reservations as the bounds allow and streamed.

use super::layouts;
use super::space::{self, Attached};
use crate::call_site::CallSite;
use crate::set;
use idgen_core::snowflake::Run;
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

/// # Safety
/// `fcinfo` is that of a running call whose arguments are a count and, at `layout_arg`, a text.
unsafe fn next_row(fcinfo: pg_sys::FunctionCallInfo, layout_arg: Option<usize>) -> Option<i64> {
    // SAFETY: the caller vouches for the arguments; the functions return sets, and keep nothing else.
    unsafe { set::next_row(fcinfo, || Drawing::begin(fcinfo, layout_arg), Drawing::next) }
}

impl Drawing {
    /// # Safety
    /// See `next_row`.
    unsafe fn begin(fcinfo: pg_sys::FunctionCallInfo, layout_arg: Option<usize>) -> Self {
        // SAFETY: the first argument is an int, and the caller vouches for the layout's.
        let (count, site) = unsafe { (pgrx::fcinfo::pg_getarg::<i32>(fcinfo, 0), CallSite::new(fcinfo, layout_arg)) };
        let wanted = set::count(count);
        Self { attached: layouts::of_call(&site), run: Run { first: 0, count: 0, borrowed: 0 }, wanted }
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
