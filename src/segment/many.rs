//! Sets of values: drawn in as few runs as the ring allows, and streamed.

use super::attach::{self, Attached};
use super::draw;
use crate::args;
use crate::pg::call_site::CallSite;
use crate::pg::srf;
use idgen_core::segment::ValueRun;
use pgrx::prelude::*;

/// A set that is being returned.
struct ValueSet {
    attached: Attached,
    /// Drawn, but not returned yet.
    run: ValueRun,
    /// Not drawn yet.
    wanted: u64,
}

/// That many values of a segment, increasing. Raises 22004 for NULL, 22023 if the count is negative; else as
/// `segment_next`.
#[pg_extern(
    sql = "CREATE FUNCTION segment_next_many(tag text, count int) RETURNS SETOF bigint VOLATILE PARALLEL RESTRICTED \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn segment_next_many(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared; the site is used for its text only.
    unsafe {
        let site = CallSite::new(fcinfo, Some(0));
        srf::next_row(fcinfo, || ValueSet::begin(fcinfo, &site), |drawing| drawing.next(&site))
    }
}

impl ValueSet {
    /// # Safety
    /// `fcinfo` is that of the running call, and its second argument is an int.
    unsafe fn begin(fcinfo: pg_sys::FunctionCallInfo, site: &CallSite) -> Self {
        // SAFETY: by the above.
        let count = unsafe { pgrx::fcinfo::pg_getarg::<i32>(fcinfo, 1) };
        let wanted = args::count(count);
        Self { attached: attach::of_call(site), run: ValueRun { first: 0, count: 0, stride: 1 }, wanted }
    }

    #[inline]
    fn next(&mut self, site: &CallSite) -> Option<i64> {
        if self.run.count == 0 {
            if self.wanted == 0 {
                return None;
            }
            self.run = draw::run(&mut self.attached, site, self.wanted);
            self.wanted -= self.run.count;
        }
        Some(self.run.split_first())
    }
}
