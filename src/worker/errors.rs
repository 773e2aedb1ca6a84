//! The errors of worker ids from a pool.

use crate::lease::names::Holder;
use crate::pg::ereport::{Report, quoted};
use crate::pg::system_clock;
use crate::settings;
use crate::worker::memory;
use crate::worker::state::{Lease, State};
use idgen_core::layout::{time_text, time_text_us};
use idgen_core::worker::Bounds;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub fn unknown_pool(pool: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT, format!("worker pool \"{pool}\" does not exist"))
        .detail("A pool is a lease that is defined, with as many slots as there are worker ids.")
        .hint(format!(
            "Check its name: worker_move() may have given it another one. Define a new pool with SELECT lease_define({}, slots => 1024);",
            quoted(pool)
        ))
}

pub fn exhausted(pool: &str, numbers: i32, idle: &[Holder]) -> Report {
    let holders: Vec<String> = idle.iter().map(|holder| format!("{} by {}", holder.slot, holder.text)).collect();
    Report::new(
        PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
        format!("all {numbers} numbers of worker pool \"{pool}\" are taken"),
    )
    .detail(format!("Not renewed for longest: {}.", holders.join("; ")))
    .hint(format!(
        "Release unused worker ids, or raise the pool's slots with lease_define(), as far as the worker field of the layout has \
         room. SELECT lease_revoke({}, <worker id>) takes one away.",
        quoted(pool)
    ))
}

pub fn not_yet(pool: &str, number: i32, wait: Duration) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
        format!("worker id {number} of worker pool \"{pool}\" can be used in {}", rounded_up(wait)),
    )
    .detail("Earlier holders may have used id times up to not_before.")
    .hint("Make no id before your clock is past not_before.")
}

/// All free worker ids begin later than a holder may be ahead of the clock.
pub fn begins_too_far(pool: &str, number: i32, not_before_us: i64, bounds: &Bounds) -> Report {
    let (begin, now) = (time_text_us(not_before_us), time_text_us(bounds.now_us));
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("worker id {number} of worker pool \"{pool}\" cannot be used before {begin}"),
    )
    .detail(format!("Its last holder was allowed id times up to then; the clock here says {now}."))
    .hint(format!(
        "Wait, or give the pool more slots. If a clock was wrong and no id of that time was issued: \
         SELECT worker_correct({}, {number}, <time after its last id>);",
        quoted(pool)
    ))
}

pub fn too_far_ahead(excess_us: i64, max_lead_us: i64) -> Report {
    let (excess, lead) = (micros_text(excess_us), micros_text(max_lead_us));
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("the caller's ids or its clock are {excess} ahead of the coordinator's clock"),
    )
    .detail(format!("Worker ids are granted to callers that are at most {lead} ahead."))
    .hint("Correct the clock that is wrong, or raise idgen.worker_max_lead on the coordinator.")
}

pub fn ttl_beyond_the_pools(pool: &str, ttl_us: i64) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("ttl is longer than that of worker pool \"{pool}\""),
    )
    .detail(format!("The pool's is {}, which no interval of its worker ids may exceed.", micros_text(ttl_us)))
    .hint(format!("Use a shorter ttl, or raise the pool's with SELECT lease_define({}, ttl => ...);", quoted(pool)))
}

pub fn renewed_by_another(pool: &str, number: i32, last_us: i64, not_after_us: i64) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("worker id {number} of worker pool \"{pool}\" was renewed by another holder of its token"),
    )
    .detail(format!("Its not_after is {}, not {}.", time_text_us(not_after_us), time_text_us(last_us)))
    .hint(
        "Make no more ids under it, and acquire a worker id with worker_acquire(). Two processes have the token, or the answer to \
         a renewal was lost.",
    )
}

pub fn in_transaction_block(function: &CStr) -> Report {
    let function = function.to_string_lossy();
    Report::new(
        PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
        format!("{function} cannot run inside a transaction block or a subtransaction"),
    )
    .detail("A rollback would take back id times that the caller was told it may use.")
    .hint("Run it as a statement of its own.")
}

pub fn confirmed_too_early(pool: &str, number: i32) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
        format!("worker id {number} of worker pool \"{pool}\" was acquired or renewed in this transaction"),
    )
    .detail("Nothing of a transaction is certain before it has committed.")
    .hint("Run worker_confirm() in a transaction of its own, after that of worker_acquire() or worker_renew().")
}

pub fn token_before_interruption(pool: &str) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!(
            "the token of worker pool \"{pool}\" was granted before the history of this coordinator was interrupted \
             (failover or restore)"
        ),
    )
    .detail("Id times may have been granted since that this database does not know of.")
    .hint("Make no more ids under the worker id, and acquire one with worker_acquire().")
}

pub fn copy_of_the_coordinator() -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "this database is a copy of the coordinator",
    )
    .detail("Another data directory of the same server and timeline has granted worker ids, and may go on granting them.")
    .hint(
        "Point idgen.coordinator at the origin. If the origin grants no more, or was moved here: \
         SELECT worker_begin_history();",
    )
}

pub fn no_place(error: &std::io::Error) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_IO_ERROR, format!("could not read the file status of \"PG_VERSION\": {error}"))
        .detail("The status tells this data directory from a copy of it.")
}

pub fn not_finite(name: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW, format!("{name} must be finite"))
}

fn micros_text(us: i64) -> String {
    rounded_up(Duration::from_micros(us.max(0) as u64))
}

/// Rounded up, so that a caller that waits for as long has waited long enough.
fn rounded_up(wait: Duration) -> String {
    let ms = wait.as_micros().div_ceil(1000);
    if ms < 120_000 {
        return format!("{}.{:03} s", ms / 1000, ms % 1000);
    }
    let minutes = ms.div_ceil(60_000);
    if minutes < 120 { format!("{minutes} min") } else { format!("{} h", minutes.div_ceil(60)) }
}

pub fn bare_lease(pool: &str, number: i32) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("worker id {number} of worker pool \"{pool}\" was not acquired with worker_acquire()"),
    )
    .detail("With lease_acquire() its holder was allowed no id times.")
    .hint("Release it with lease_release(), and use worker_acquire().")
}

pub fn same_pool(pool: &str) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("cannot move worker pool \"{pool}\" to itself"),
    )
}

pub fn granted_from_both(worker_id: i32, from: &str, to: &str) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
        format!("cannot move worker pool \"{from}\": worker id {worker_id} was granted from pool \"{to}\" too"),
    )
    .detail("Each pool has a history of its own for this worker id, and the two cannot become one.")
    .hint(format!("Define a new pool with the same range, and move \"{from}\" to that one."))
}

pub fn held(pool: &str, worker_id: i32) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE, format!("worker id {worker_id} of pool \"{pool}\" is held"))
        .detail("Its holder has not released it, and may issue ids under it.")
        .hint(format!("Stop its holder, and then: SELECT lease_revoke({}, {worker_id});", quoted(pool)))
}

pub fn never_granted(pool: &str, worker_id: i32) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
        format!("worker id {worker_id} of pool \"{pool}\" was never granted"),
    )
}

pub fn used_until_not_finite() -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "used_until must be finite")
}

/// This server has no worker id now, or none for this time.
pub fn not_leased(worker: &State, lease: &Lease, now_us: i64) -> Report {
    let Some(pool) = settings::worker_pool().map(|pool| pool.name) else {
        return no_worker_id(worker.is_memory_unreadable.load(Relaxed));
    };
    let keeper = worker.keeper.pid();
    let message = match lease.term {
        Some(term) => {
            let end_ms = term.interval.end_ms();
            let ends = if end_ms <= system_clock::wall_ms() { "ended" } else { "ends before the next id," };
            format!("the lease of worker id {} from pool \"{pool}\" {ends} at {}", term.number, time_text(end_ms))
        }
        None => format!("this server has no worker id yet from pool \"{pool}\""),
    };
    Report::new(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message)
        .detail(why_not_leased(lease, keeper, now_us))
        .hint(
            "Ids go on by themselves when the lease does. idgen.worker_pool and idgen.coordinator say where it comes from, \
             and SELECT * FROM idgen.stat_worker how it stands.",
        )
}

fn no_worker_id(is_memory_unreadable: bool) -> Report {
    let detail = match is_memory_unreadable {
        false => "It had a pool, which idgen.worker_pool does not name any more, and idgen.worker_id is not set: 0 may be another server's.".to_owned(),
        true => format!("File \"{}\" could not be read when the server started, so it may have had a pool, and idgen.worker_id is not set: 0 may be another server's.", memory::PATH),
    };
    Report::new(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "this server has no worker id any more")
        .detail(detail)
        .hint("Set idgen.worker_id and restart, or set idgen.worker_pool again.")
}

/// The file that says whether this server ever had a pool.
pub fn memory_unreadable(why: &str) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_DATA_CORRUPTED,
        format!("could not read file \"{}\": {why}", memory::PATH),
    )
    .detail("It says whether this server ever had a pool of worker ids. While it cannot be read, no id is issued under a worker id that is not set.")
    .hint("Set idgen.worker_id, or idgen.worker_pool and idgen.coordinator. The next lease writes the file again.")
}

pub fn memory_not_written(error: &std::io::Error) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_IO_ERROR,
        format!("could not write file \"{}\": {error}", memory::PATH),
    )
    .detail("The file still names the last lease of this server.")
    .hint("Make room or restore the rights. After a restart with idgen.worker_pool, no id is issued before a worker id is leased.")
}

fn why_not_leased(lease: &Lease, keeper: Option<i32>, now_us: i64) -> String {
    let since = Duration::from_micros((now_us - lease.renewed_us).max(0) as u64);
    match (lease.failing_since_ms, keeper) {
        (Some(since_ms), _) => {
            let error = lease.last_error.text().unwrap_or_default();
            format!("To ask the coordinator has failed since {}: {error}", time_text(since_ms))
        }
        (None, None) => {
            "The keeper, which leases it, is not running. It is a background worker: see max_worker_processes."
                .to_owned()
        }
        (None, Some(pid)) if lease.term.is_none() => {
            format!("The keeper, process {pid}, is waiting for the coordinator's first answer.")
        }
        (None, Some(_)) if !lease.is_overdue(now_us) => format!(
            "This server's clock says {}. The clock, or ids that it has issued, are further ahead of the coordinator's clock than \
             idgen.worker_max_lead allows there.",
            time_text(system_clock::wall_ms())
        ),
        (None, Some(pid)) => format!("The keeper, process {pid}, has not renewed it for {} s.", since.as_secs()),
    }
}
