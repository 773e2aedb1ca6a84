//! The SQL functions that draw segment ids, and the ones that define tags.

use crate::call_site::CallSite;
use crate::error;
use crate::record::{self, Record};
use pgrx::prelude::*;

mod attach;
mod change;
pub mod define;
mod draw;
pub mod many;
mod private;
pub mod refill;
mod row;
mod slot;
pub mod stats;
pub mod trigger;

pub use row::{SEGMENT, drop_owned, reassign};
pub use slot::{LastError, Slot};

/// The next value of a tag. NULL is 22004.
#[pg_extern(sql = "CREATE FUNCTION segment_next(tag text) RETURNS bigint VOLATILE PARALLEL RESTRICTED \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn segment_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared.
    let site = unsafe { CallSite::new(fcinfo, Some(0)) };
    site.with(attach::of_call, |attached| draw::one(attached, &site))
}

/// So many values that follow each other, in one piece.
#[pg_extern(sql = "CREATE FUNCTION segment_reserve(tag text, count bigint, OUT first_id bigint, OUT last_id bigint, \
           OUT stride bigint) VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn segment_reserve(fcinfo: pg_sys::FunctionCallInfo) -> Record {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let (site, count) = unsafe { (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<i64>(fcinfo, 1)) };
    let count = count.unwrap_or_else(|| error::null_argument("count").raise());
    if !(1..=idgen_core::segment::step::MAX_STEP).contains(&count) {
        error::segment::count_out_of_range(count, idgen_core::segment::step::MAX_STEP).raise();
    }
    let run = site.with(attach::of_call, |attached| draw::block(attached, &site, count as u64));
    // SAFETY: three columns, all bigint, as declared.
    unsafe { record::form(fcinfo, [run.first.into_datum(), run.last().into_datum(), run.stride.into_datum()]) }
}
