//! C functions that only the SQL of earlier releases calls. Users replace the library first and run ALTER EXTENSION idgen
//! UPDATE later. The functions stand together as the list of symbols that the library must keep. Functions of today with the
//! same SQL name have C names of their own, such as `worker_release_compared`.

use crate::args;
use crate::lease::NewColumns;
use crate::pg::datum::{Composite, Text, form_rows};
use crate::segment::define::set_grantee;
use crate::{lease, worker};
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// Of 0.6 to 0.7: slots begin at 0, and `idgen.lease_definition` has no column first_slot.
#[pg_extern(sql = false)]
fn lease_define(name: Option<Text>, slots: Option<i32>, ttl: Option<Interval>, lock_delay: Option<Interval>) {
    lease::define(name, slots, ttl, lock_delay, NewColumns::None, true);
}

/// Of 0.8 to 0.12: `idgen.lease_definition` has no column notify.
#[pg_extern(sql = false)]
fn lease_define_range(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    first_slot: Option<i32>,
) {
    let first_slot = args::required(first_slot, "first_slot");
    lease::define(name, slots, ttl, lock_delay, NewColumns::FirstSlot(first_slot), true);
}

/// Of 0.13 to 0.14.1: nothing is refused, because the caller has no argument to insist.
#[pg_extern(sql = false)]
fn lease_define_watched(
    name: Option<Text>,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    first_slot: Option<i32>,
    notify: Option<bool>,
) {
    let first_slot = args::required(first_slot, "first_slot");
    let notify = args::required(notify, "notify");
    lease::define(name, slots, ttl, lock_delay, NewColumns::Notify { first_slot, notify }, true);
}

/// Of 0.7: the end of the rectangle is not compared.
#[pg_extern(sql = false)]
fn worker_release(pool: Option<Text>, token: Option<i64>, last_time: Option<TimestampWithTimeZone>) -> bool {
    worker::release(pool, token, last_time, None)
}

/// Of 0.6 to 0.12: the view `idgen.leases` joined the states of all slots.
#[pg_extern(sql = false)]
fn lease_get_states(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite> {
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_rows(fcinfo, lease::stats::all_states()) }
}

/// Of 0.14.0 to 0.14.1: a server that stopped gave values back. They are a gap.
#[pg_extern(sql = false)]
fn segment_return(_tag: Option<Text>, _server: Option<i64>, _first_id: Option<i64>, _last_id: Option<i64>) -> bool {
    false
}

/// Of 0.4 to 0.14.1: roles that may draw may also act as servers.
#[pg_extern(sql = false)]
fn segment_grant(tag: Option<Text>, role: Option<Text>) {
    set_grantee(tag, role, Some(false), true);
}

/// As [`segment_grant`].
#[pg_extern(sql = false)]
fn segment_revoke(tag: Option<Text>, role: Option<Text>) {
    set_grantee(tag, role, Some(false), false);
}
