//! Snowflake ids: the SQL functions that issue them, and those that read them.

use crate::pg::call_site::CallSite;
use crate::shmem;
use pgrx::prelude::*;

mod decode;
mod errors;
mod issue;
mod layouts;
mod many;
pub mod node;
mod observe;
pub mod stats;
mod text;

pub use layouts::default as default_layout;

/// The next id in the layout of `idgen.layout`.
#[pg_extern(sql = "CREATE FUNCTION snowflake_next() RETURNS bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    unsafe { CallSite::new(fcinfo, None) }.with(layouts::of_call, issue::next_id)
}

/// The next id in a layout. NULL is 22004.
#[pg_extern(sql = "CREATE FUNCTION snowflake_next(layout text) RETURNS bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_next_in(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared.
    unsafe { CallSite::new(fcinfo, Some(0)) }.with(layouts::of_call, issue::next_id)
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&node::CURRENT, &stats::COUNTERS]);
}
