//! The errors of worker ids from a pool.

use super::lease_file;
use super::state::{ServerLease, WorkerState};
use crate::lease::Holder;
use crate::pg::ereport::{Report, quoted};
use crate::pg::system_clock;
use crate::settings;
use idgen_core::layout::{time_text, time_text_us};
use idgen_core::lease::LeaseDefinition;
use idgen_core::worker::PoolBounds;
use pgrx::PgSqlErrorCode::{self, *};
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub fn unknown_pool(pool: &str) -> Report {
    Report::new(ERRCODE_UNDEFINED_OBJECT, format!("worker pool \"{pool}\" does not exist"))
        .detail("A pool is a defined lease, with one slot for each worker id.")
        .hint(format!(
            "Check the name: worker_move() may have changed it. To define a new pool, run SELECT lease_define({}, slots => 1024);",
            quoted(pool)
        ))
}

pub fn exhausted(pool: &str, slots: i32, idle: &[Holder]) -> Report {
    let holders: Vec<String> = idle.iter().map(|holder| format!("{} by {}", holder.slot, holder.text)).collect();
    Report::new(
        ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
        format!("all {slots} worker ids of pool \"{pool}\" are taken"),
    )
    .detail(format!("Least recently renewed: {}.", holders.join("; ")))
    .hint(format!(
        "Release unused worker ids, or run SELECT lease_alter({0}, slots => ...); up to the limit of the layout's worker field. \
         To take a worker id from its holder, run SELECT lease_revoke({0}, <worker id>);",
        quoted(pool)
    ))
}

pub fn not_yet(pool: &str, worker_id: i32, wait: Duration) -> Report {
    Report::new(
        ERRCODE_SUCCESSFUL_COMPLETION,
        format!("worker id {worker_id} of pool \"{pool}\" can be used in {}", rounded_up(wait)),
    )
    .detail("Earlier holders may have used id times up to not_before.")
    .hint("Generate no id until your clock has passed not_before.")
}

/// All free worker ids begin further ahead of the clock than a holder may be.
pub fn begins_too_far(pool: &str, worker_id: i32, not_before_us: i64, bounds: &PoolBounds) -> Report {
    let (begin, now) = (time_text_us(not_before_us), time_text_us(bounds.now_us));
    Report::new(
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("worker id {worker_id} of pool \"{pool}\" cannot be used before {begin}"),
    )
    .detail(format!("Its last holder was granted id times up to then. The clock of this server says {now}."))
    .hint(format!(
        "Wait, or define more slots for the pool. If a clock was wrong and no id of that time was issued, run \
         SELECT worker_correct({}, {worker_id}, <time after its last id>);",
        quoted(pool)
    ))
}

pub fn too_far_ahead(excess_us: i64, max_lead_us: i64) -> Report {
    let (excess, lead) = (micros_text(excess_us), micros_text(max_lead_us));
    Report::new(
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("the caller's ids or its clock are {excess} ahead of the coordinator's clock"),
    )
    .detail(format!("Worker ids are granted to callers that are at most {lead} ahead."))
    .hint("Correct the clock that is wrong, or raise idgen.worker_max_lead on the coordinator.")
}

pub fn ttl_beyond_the_pools(pool: &str, ttl_us: i64) -> Report {
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, format!("ttl is longer than that of worker pool \"{pool}\""))
        .detail(format!("The ttl of the pool is {}.", micros_text(ttl_us)))
        .hint(format!(
            "Use a shorter ttl, or raise that of the pool: run SELECT lease_alter({}, ttl => ...);",
            quoted(pool)
        ))
}

pub fn renewed_by_another(pool: &str, worker_id: i32, last_us: i64, not_after_us: i64) -> Report {
    Report::new(
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("worker id {worker_id} of pool \"{pool}\" was renewed by another holder of its token"),
    )
    .detail(format!("Its not_after is {}, not {}.", time_text_us(not_after_us), time_text_us(last_us)))
    .hint(
        "Stop generating ids under it, and acquire a worker id with worker_acquire(). Two processes have the token, or the \
         answer to a renewal was lost.",
    )
}

pub fn outside_of_range(pool: &str, worker_id: i32, definition: &LeaseDefinition) -> Report {
    let LeaseDefinition { first_slot, slots, .. } = definition;
    Report::new(
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("worker id {worker_id} of pool \"{pool}\" is outside of the pool's range"),
    )
    .detail(format!("The pool was changed, and now has the worker ids {first_slot} to {}.", first_slot + slots - 1))
    .hint("Stop generating ids under it, and acquire a worker id with worker_acquire().")
}

pub fn not_own_statement(function: &CStr) -> Report {
    let function = function.to_string_lossy();
    Report::new(
        ERRCODE_ACTIVE_SQL_TRANSACTION,
        format!("{function} cannot run inside a transaction block or a function"),
    )
    .detail("A rollback would revoke id times that were already returned to the caller.")
    .hint("Run it as a statement of its own.")
}

pub fn confirmed_too_early(pool: &str, worker_id: i32) -> Report {
    Report::new(
        ERRCODE_ACTIVE_SQL_TRANSACTION,
        format!("worker id {worker_id} of pool \"{pool}\" was acquired or renewed in this transaction"),
    )
    .detail("A worker id can be confirmed only after that transaction has committed.")
    .hint("Run worker_confirm() in a later transaction than worker_acquire() or worker_renew().")
}

pub fn token_before_interruption(pool: &str) -> Report {
    Report::new(
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!(
            "the token of worker pool \"{pool}\" was granted before the history of this coordinator was interrupted \
             (failover or restore)"
        ),
    )
    .detail("Id times that this database does not know of may have been granted since.")
    .hint("Stop generating ids under the worker id, and acquire one with worker_acquire().")
}

pub fn grants_are_lost() -> Report {
    Report::new(ERRCODE_WARNING, "this coordinator has lost grants of worker ids")
        .detail(
            "A holder was told a later not_after than this database has: a backup or a snapshot was restored in place.",
        )
        .hint("Servers lease again by themselves. Other holders must acquire with worker_acquire().")
}

pub fn copy_of_the_coordinator() -> Report {
    Report::new(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "this database is a copy of the coordinator")
        .detail("Another data directory of the same server and timeline has granted worker ids, and may still do so.")
        .hint(
            "Point idgen.coordinator at the origin. If the origin was moved here or grants no more, run \
         SELECT worker_begin_history();",
        )
}

pub fn not_finite(name: &str) -> Report {
    infinite(ERRCODE_DATETIME_FIELD_OVERFLOW, name)
}

/// 22023, unlike [`not_finite`]: SQLSTATEs do not change between releases.
pub fn used_until_not_finite() -> Report {
    infinite(ERRCODE_INVALID_PARAMETER_VALUE, "used_until")
}

fn infinite(code: PgSqlErrorCode, name: &str) -> Report {
    Report::new(code, format!("{name} must be finite"))
}

fn micros_text(us: i64) -> String {
    rounded_up(Duration::from_micros(us.max(0) as u64))
}

/// Rounded up, so that a caller that waits for it waits long enough.
fn rounded_up(wait: Duration) -> String {
    let ms = wait.as_micros().div_ceil(1000);
    if ms < 120_000 {
        return format!("{}.{:03} s", ms / 1000, ms % 1000);
    }
    let minutes = ms.div_ceil(60_000);
    if minutes < 120 { format!("{minutes} min") } else { format!("{} h", minutes.div_ceil(60)) }
}

pub fn bare_lease(pool: &str, worker_id: i32) -> Report {
    Report::new(
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("worker id {worker_id} of pool \"{pool}\" was not acquired with worker_acquire()"),
    )
    .detail("A lease of lease_acquire() has no id times.")
    .hint("Release it with lease_release(), and acquire a worker id with worker_acquire().")
}

pub fn same_pool(pool: &str) -> Report {
    Report::new(ERRCODE_INVALID_PARAMETER_VALUE, format!("cannot move worker pool \"{pool}\" to itself"))
}

pub fn granted_from_both(worker_id: i32, from: &str, to: &str) -> Report {
    Report::new(
        ERRCODE_OBJECT_IN_USE,
        format!("cannot move worker pool \"{from}\": worker id {worker_id} was granted from pool \"{to}\" too"),
    )
    .detail("The two histories of this worker id cannot be merged.")
    .hint(format!("Define a new pool with the same slots, and move \"{from}\" to it."))
}

pub fn shared(pool: &str, slot: i32) -> Report {
    Report::new(ERRCODE_OBJECT_IN_USE, format!("cannot move worker pool \"{pool}\": a shared term of it is held"))
        .detail(format!("It has the number {slot}."))
        .hint(format!("Wait until it is released, or run SELECT lease_revoke({}, {slot});", quoted(pool)))
}

pub fn held(pool: &str, worker_id: i32) -> Report {
    Report::new(ERRCODE_OBJECT_IN_USE, format!("worker id {worker_id} of pool \"{pool}\" is held"))
        .detail("Its holder has not released it, and may issue ids under it.")
        .hint(format!("Stop its holder, then run SELECT lease_revoke({}, {worker_id});", quoted(pool)))
}

pub fn never_granted(pool: &str, worker_id: i32) -> Report {
    Report::new(ERRCODE_UNDEFINED_OBJECT, format!("worker id {worker_id} of pool \"{pool}\" was never granted"))
}

/// This server has no worker id, or no lease for the time of the next id.
pub fn not_leased(state: &WorkerState, lease: &ServerLease, now_us: i64) -> Report {
    let Some(pool) = settings::worker_pool().map(|pool| pool.name) else {
        return no_worker_id(state.is_file_unreadable.load(Relaxed));
    };
    let keeper = state.keeper.pid();
    let message = match lease.current {
        Some(current) => {
            let end_ms = current.rectangle.end_ms();
            let ends = if end_ms <= system_clock::wall_ms() { "ended" } else { "ends before the next id," };
            format!("the lease of worker id {} from pool \"{pool}\" {ends} at {}", current.worker_id, time_text(end_ms))
        }
        None => format!("this server has no worker id yet from pool \"{pool}\""),
    };
    Report::new(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message).detail(why_not_leased(lease, keeper, now_us)).hint(
        "Ids resume as soon as the lease is renewed. Check idgen.worker_pool and idgen.coordinator, and run \
             SELECT * FROM idgen.stat_worker.",
    )
}

fn no_worker_id(is_file_unreadable: bool) -> Report {
    let detail = match is_file_unreadable {
        false => "The server had a pool, and idgen.worker_pool is now empty.".to_owned(),
        true => {
            format!("The server may have had a pool: file \"{}\" could not be read when it started.", lease_file::PATH)
        }
    };
    let detail = format!("{detail} While idgen.worker_id is not set, worker id 0 may be another server's.");
    Report::new(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "this server no longer has a worker id")
        .detail(detail)
        .hint("Set idgen.worker_id and restart the server, or set idgen.worker_pool again.")
}

pub fn lease_file_unreadable(reason: &str) -> Report {
    Report::new(
        ERRCODE_DATA_CORRUPTED,
        format!("could not read file \"{}\": {reason}", lease_file::PATH),
    )
    .detail("It records whether this server ever had a pool of worker ids. Until it can be read, worker id 0 is not used by default.")
    .hint("Set idgen.worker_id, or idgen.worker_pool and idgen.coordinator. The next lease replaces the file.")
}

pub fn lease_file_not_written(error: &std::io::Error) -> Report {
    Report::new(
        ERRCODE_IO_ERROR,
        format!("could not write file \"{}\": {error}", lease_file::PATH),
    )
    .detail("The file still names the last lease of this server.")
    .hint("Free disk space, or restore the permissions. Otherwise no id is issued after a restart with idgen.worker_pool until a worker id is leased.")
}

/// The DETAIL: why the lease is not renewed.
fn why_not_leased(lease: &ServerLease, keeper: Option<i32>, now_us: i64) -> String {
    let since = Duration::from_micros((now_us - lease.renewed_us).max(0) as u64);
    match (lease.failing_since_ms, keeper) {
        (Some(since_ms), _) => {
            let error = lease.last_error.text().unwrap_or_default();
            format!("Requests to the coordinator have failed since {}: {error}", time_text(since_ms))
        }
        (None, None) => {
            "The background worker that leases it, the keeper, is not running: see max_worker_processes.".to_owned()
        }
        (None, Some(pid)) if lease.current.is_none() => {
            format!("The keeper, process {pid}, is waiting for the coordinator's first answer.")
        }
        (None, Some(_)) if !lease.is_overdue(now_us) => format!(
            "This server's clock says {}. Its clock or its ids are further ahead of the coordinator's clock than \
             idgen.worker_max_lead allows there.",
            time_text(system_clock::wall_ms())
        ),
        (None, Some(pid)) => format!("The keeper, process {pid}, has not renewed it for {} s.", since.as_secs()),
    }
}
