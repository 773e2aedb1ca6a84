//! C functions that only the SQL of earlier releases declares, from 0.14.0 on. Users replace the library first and run ALTER
//! EXTENSION idgen UPDATE later. A function stays here while an update starts at a release that declares it. It works as
//! before if that takes a line or two, and otherwise asks for the UPDATE.

use crate::lease;
use crate::pg::datum::{Composite, Text};
use crate::pg::ereport::errors;
use crate::segment::define::set_grantee;
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// Of 0.14.0 to 0.14.1: nothing is refused, because the caller has no argument to insist.
#[pg_extern(sql = false)]
fn lease_define_watched(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    first_slot: Option<i32>,
    notify: Option<bool>,
) {
    lease::define(name, slots, ttl, lock_delay, first_slot, notify, true);
}

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

/// Of 0.14.0 to 0.16.0: the end of the rectangle was not compared.
#[pg_extern(sql = false)]
fn worker_renew(_fcinfo: pg_sys::FunctionCallInfo) -> Composite<0> {
    of_an_earlier_version("worker_renew(text, bigint, interval)").raise()
}

errors! {
    fn of_an_earlier_version(function: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "function {function} is of an earlier version of idgen";
        hint: "Run ALTER EXTENSION idgen UPDATE.";
    }
}
