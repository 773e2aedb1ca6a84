//! The SQL functions that draw segment ids, and the ones that define tags.

use crate::args;
use crate::pg::call_site::CallSite;
use crate::pg::composite::{self, Composite};
use crate::pg::process_utility;
use crate::shmem;
use pgrx::prelude::*;

mod attach;
mod change;
pub mod define;
mod draw;
mod errors;
pub mod many;
mod private;
pub mod refill;
mod row;
mod slot;
pub mod stats;
pub mod trigger;

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
fn segment_reserve(fcinfo: pg_sys::FunctionCallInfo) -> Composite {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let (site, count) = unsafe { (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<i64>(fcinfo, 1)) };
    let count = args::required(count, "count");
    if !(1..=idgen_core::segment::step::MAX_STEP).contains(&count) {
        errors::count_out_of_range(count, idgen_core::segment::step::MAX_STEP).raise();
    }
    let run = site.with(attach::of_call, |attached| draw::block(attached, &site, count as u64));
    // SAFETY: three columns, all bigint, as declared.
    unsafe { composite::form(fcinfo, [run.first.into_datum(), run.last().into_datum(), run.stride.into_datum()]) }
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&slot::RINGS, &slot::SLOTS, &slot::SEGMENTS]);
    process_utility::follow_owners_of(process_utility::OwnedRows {
        exist: || row::SEGMENT.find().is_some(),
        reassign: row::reassign,
        drop: row::drop_owned,
    });
}
