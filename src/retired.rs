//! C functions that only the SQL of earlier releases declares, from 0.14.0 on. Users replace the library first and run ALTER
//! EXTENSION idgen UPDATE later. A function stays here while an update starts at a release that declares it. It works as
//! before if that takes a line or two, and otherwise asks for the UPDATE.

use crate::pg::datum::{self, Composite, Text};
use crate::pg::ereport::errors;
use crate::segment::define::set_grantee;
use pgrx::prelude::*;
use std::ffi::CStr;

/// Of 0.14.0 to 0.14.1: a server that stopped gave values back. They are a gap.
#[pg_extern(sql = false)]
fn segment_return(_tag: Option<Text>, _server: Option<i64>, _first_id: Option<i64>, _last_id: Option<i64>) -> bool {
    false
}

/// Of 0.14.0 to 0.14.1: roles that may draw may also act as servers.
#[pg_extern(sql = false)]
fn segment_grant(tag: Option<Text>, role: Option<Text>) {
    set_grantee(tag, role, Some(false), true);
}

/// As [`segment_grant`].
#[pg_extern(sql = false)]
fn segment_revoke(tag: Option<Text>, role: Option<Text>) {
    set_grantee(tag, role, Some(false), false);
}

/// Declares functions that ask for the UPDATE.
macro_rules! of_earlier_versions {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[pg_extern(sql = false)]
        fn $name(fcinfo: pg_sys::FunctionCallInfo) -> Composite<0> {
            // SAFETY: PostgreSQL passes the call's own fcinfo.
            of_an_earlier_version(&unsafe { signature(fcinfo) }).raise()
        }
    )+};
}

of_earlier_versions! {
    /// Of 0.14.0 to 0.14.1.
    lease_define_watched
    /// Of 0.14.2 to 0.17.0: slots began at `first_slot`.
    lease_define_unless_harmful
    /// As [`lease_define_unless_harmful`].
    lease_alter
    /// Of 0.14.0 to 0.18.0: a statement locked the row of a slot by it.
    lease_lock_row
    /// Of 0.14.0 to 0.16.0: the end of the rectangle was not compared.
    worker_renew
    /// Of 0.14.0 to 0.17.0: a worker id that was held was always an error.
    worker_correct
}

/// The function that is called, as SQL names it.
///
/// # Safety
/// `fcinfo` is that of the running call.
unsafe fn signature(fcinfo: pg_sys::FunctionCallInfo) -> String {
    // SAFETY: by the above. The text is copied at once.
    unsafe { datum::name(CStr::from_ptr(pg_sys::format_procedure((*(*fcinfo).flinfo).fn_oid))) }
}

errors! {
    fn of_an_earlier_version(function: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "function {function} is of an earlier version of idgen";
        hint: "Run ALTER EXTENSION idgen UPDATE.";
    }
}
