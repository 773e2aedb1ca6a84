//! The errors of worker ids from a pool.

use super::{Failure, quoted};
use crate::lease::names::Holder;
use pgrx::prelude::*;

pub fn unknown_pool(pool: &str) -> Failure {
    Failure::new(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT, format!("worker pool \"{pool}\" does not exist"))
        .detail("A pool is a lease that is defined, with as many slots as there are numbers.")
        .hint(format!("Define it with SELECT lease_define({}, slots => 1024);", quoted(pool)))
}

pub fn exhausted(pool: &str, numbers: i32, idle: &[Holder]) -> Failure {
    let holders: Vec<String> = idle.iter().map(|holder| format!("{} by {}", holder.slot, holder.text)).collect();
    Failure::new(
        PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
        format!("all {numbers} numbers of worker pool \"{pool}\" are taken"),
    )
    .detail(format!("Not renewed for longest: {}.", holders.join("; ")))
    .hint(format!(
        "End what is not needed, or give the pool more slots, as far as the worker field of the layout has room. \
         SELECT lease_revoke({}, <number>) takes one away.",
        quoted(pool)
    ))
}

pub fn bare_lease(pool: &str, number: i32) -> Failure {
    Failure::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("number {number} of worker pool \"{pool}\" was not acquired as a number"),
    )
    .detail("With lease_acquire() its holder was allowed no id times.")
    .hint("Release it with lease_release(), and use worker_acquire().")
}
