//! The SQL functions that issue ids, and the ones that read them.

use crate::call_site::CallSite;
use pgrx::prelude::*;

mod decode;
pub mod layouts;
mod many;
mod observe;
pub mod space;
mod text;

/// The next id in the layout of `idgen.layout`.
#[pg_extern(sql = "CREATE FUNCTION snowflake_next() RETURNS bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    unsafe { CallSite::new(fcinfo, None) }.with(layouts::of_call, space::next_id)
}

/// The next id in a layout. NULL is 22004.
#[pg_extern(sql = "CREATE FUNCTION snowflake_next(layout text) RETURNS bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_next_in(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared.
    unsafe { CallSite::new(fcinfo, Some(0)) }.with(layouts::of_call, space::next_id)
}
