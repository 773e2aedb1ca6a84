//! `snowflake_next_many`: a set of ids, reserved in as few runs as the bounds allow, and streamed.

use super::layouts;
use super::next::{self, Attached};
use crate::args;
use crate::pg::call_site::CallSite;
use crate::pg::srf;
use idgen_core::snowflake::SlotRun;
use pgrx::prelude::*;

/// A set that is being returned.
struct IdSet {
    attached: Attached,
    /// Slots that are reserved and not returned yet.
    run: SlotRun,
    /// The number of ids that are not reserved yet.
    unreserved: u64,
}

/// `count` increasing ids in the layout of `idgen.layout`. Raises 22004 for NULL, 22023 for a negative count, and what
/// `snowflake_next()` raises.
#[pg_extern(sql = "CREATE FUNCTION snowflake_next_many(count int) RETURNS SETOF bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_next_many(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { next_row(fcinfo, None) }
}

/// `count` increasing ids in a layout. Raises 22004 for NULL, 22023 for a negative count or an invalid layout, and what
/// `snowflake_next()` raises.
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
    unsafe { srf::next_row(fcinfo, || IdSet::begin(fcinfo, layout_arg), IdSet::next) }
}

impl IdSet {
    /// # Safety
    /// See `next_row`.
    unsafe fn begin(fcinfo: pg_sys::FunctionCallInfo, layout_arg: Option<usize>) -> Self {
        // SAFETY: the first argument is an int, and the caller vouches for the layout's.
        let (count, site) = unsafe { (pgrx::fcinfo::pg_getarg::<i32>(fcinfo, 0), CallSite::new(fcinfo, layout_arg)) };
        let unreserved = args::count(count);
        Self { attached: layouts::of_call(&site), run: SlotRun { first: 0, count: 0, borrowed: 0 }, unreserved }
    }

    #[inline]
    fn next(&mut self) -> Option<i64> {
        if self.run.count == 0 {
            if self.unreserved == 0 {
                return None;
            }
            self.run = next::next_run(&mut self.attached, self.unreserved);
            self.unreserved -= self.run.count;
        }
        let id = self.attached.id(self.run.first);
        self.run.first += 1;
        self.run.count -= 1;
        Some(id)
    }
}
