//! The errors of worker ids from a pool.

use super::pool::holders;
use super::state::{MEMORY_FILE, STATE, SharedLease};
use crate::args::{self, numbers_text};
use crate::pg::ereport::{Report, errors, quoted};
use crate::pg::system_clock;
use crate::settings;
use idgen_core::layout::{time_text, time_text_us};
use idgen_core::worker::{PoolBounds, Refusal};
use std::ffi::CStr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

errors! {
    fn unknown_pool(pool: &str) {
        ERRCODE_UNDEFINED_OBJECT: "worker pool \"{pool}\" does not exist";
        hint: "Check the name: worker_move() may have changed it. To define a new pool, run SELECT \
            worker_pool_define({}, first => ..., count => ...); with worker ids that nobody had.", quoted(pool);
    }

    fn not_yet(pool: &str, worker_id: i32, wait_us: i64) {
        ERRCODE_SUCCESSFUL_COMPLETION: "worker id {worker_id} of pool \"{pool}\" can be used in {}", micros_text(wait_us);
        detail: "Earlier holders may have used id times up to not_before.";
        hint: "Generate no id until your clock has passed not_before.";
    }

    fn ttl_beyond_the_pools(pool: &str, ttl_us: i64) {
        ERRCODE_INVALID_PARAMETER_VALUE: "ttl is longer than that of worker pool \"{pool}\"";
        detail: "The ttl of the pool is {}.", micros_text(ttl_us);
        hint: "Use a shorter ttl, or raise that of the pool: run SELECT worker_pool_alter({}, ttl => ...);",
            quoted(pool);
    }

    fn renewed_by_another(pool: &str, worker_id: i32, last_us: i64, not_after_us: i64) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "worker id {worker_id} of pool \"{pool}\" was renewed by another \
            holder of its token";
        detail: "Its not_after is {}, not {}.", time_text_us(not_after_us), time_text_us(last_us);
        hint: "Stop generating ids under it, and acquire a worker id with worker_acquire(). Two processes have the \
            token, or the answer to a renewal was lost.";
    }

    fn confirmed_too_early(pool: &str, worker_id: i32) {
        ERRCODE_ACTIVE_SQL_TRANSACTION: "worker id {worker_id} of pool \"{pool}\" was acquired or renewed in this \
            transaction";
        detail: "A worker id can be confirmed only after that transaction has committed.";
        hint: "Run worker_confirm() in a later transaction than worker_acquire() or worker_renew().";
    }

    fn grants_are_lost() {
        ERRCODE_WARNING: "this coordinator has lost grants of worker ids";
        detail: "A holder was told a later not_after than this database has: a backup or a snapshot was restored in \
            place.";
        hint: "Servers lease again by themselves. Other holders must acquire with worker_acquire().";
    }

    fn copy_of_the_coordinator() {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "this database is a copy of the coordinator";
        detail: "Another data directory of the same server and timeline may have granted worker ids, and may still do so.";
        hint: "Point idgen.coordinator at the origin. If the origin was moved here or grants no more, run SELECT \
            worker_begin_history();";
    }

    fn stale(pool: &str, token: i64) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "no worker id of pool \"{pool}\" is held under token {token}";
        detail: "It was released or granted again, its pool was changed, or the history of this coordinator was \
            interrupted (failover or restore).";
        hint: "Stop generating ids under it, and acquire a worker id with worker_acquire().";
    }

    fn not_the_holders_role(pool: &str, worker_id: i32, role: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "permission denied for worker id {worker_id} of pool \"{pool}\"";
        detail: "It was acquired by role \"{role}\".";
    }

    fn not_owner(pool: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "must be owner of worker pool \"{pool}\"";
    }

    fn defined_otherwise(pool: &str) {
        ERRCODE_DUPLICATE_OBJECT: "worker pool \"{pool}\" exists with another definition";
        hint: "To change it, run SELECT worker_pool_alter({}, ...); with the settings to change.", quoted(pool);
    }

    fn count_out_of_range(count: i32, most: i32) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid count \"{count}\"";
        detail: "A pool has 1 to {most} worker ids.";
    }

    fn first_out_of_range(first: i32, count: i32, most: i32) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid first worker id \"{first}\"";
        detail: "With a count of {count}, it must be 0 to {}.", most - count;
    }

    fn excludes_holders(pool: &str, old: &RangeInclusive<i32>, new: &RangeInclusive<i32>, held: &[i32]) {
        ERRCODE_OBJECT_IN_USE: "worker pool \"{pool}\" has holders outside of its new range";
        detail: "Its worker ids are {} to {}, and would be {} to {}. Held are {}.", old.start(), old.end(),
            new.start(), new.end(), numbers_text(held);
    }

    fn moved_outside(pool: &str, range: &RangeInclusive<i32>, held: &[i32]) {
        ERRCODE_SUCCESSFUL_COMPLETION: "holders of worker ids outside of pool \"{pool}\" are refused at their next renewal";
        detail: "Its worker ids are {} to {}. Held are {}.", range.start(), range.end(), numbers_text(held);
    }

    fn in_use(pool: &str, worker_id: i32) {
        ERRCODE_OBJECT_IN_USE: "cannot drop worker pool \"{pool}\": worker id {worker_id} is held";
        hint: "Stop its holder, and release it or wait until its id times are over: see idgen.workers.";
    }

    fn same_pool(pool: &str) {
        ERRCODE_INVALID_PARAMETER_VALUE: "cannot move worker pool \"{pool}\" to itself";
    }

    fn granted_from_both(worker_id: i32, from: &str, to: &str) {
        ERRCODE_OBJECT_IN_USE: "cannot move worker pool \"{from}\": worker id {worker_id} was granted from pool \
            \"{to}\" too";
        detail: "The two histories of this worker id cannot be merged.";
        hint: "Define a new pool with the same worker ids, and move \"{from}\" to it.";
    }

    fn held(pool: &str, worker_id: i32) {
        ERRCODE_OBJECT_IN_USE: "worker id {worker_id} of pool \"{pool}\" has a holder";
        detail: "Its holder has not released it, and may issue ids under it.";
        hint: "Stop its holder, then run SELECT worker_correct({}, {worker_id}, <time after its last id>, force => true); \
            without a time, the next holder begins at the end of its id times.", quoted(pool);
    }

    fn never_granted(pool: &str, worker_id: i32) {
        ERRCODE_UNDEFINED_OBJECT: "worker id {worker_id} of pool \"{pool}\" was never granted";
    }

    fn lease_file_unreadable(reason: &str) {
        ERRCODE_DATA_CORRUPTED: "could not read file \"{}\": {reason}", MEMORY_FILE;
        detail: "It records whether this server ever had a pool of worker ids. Until it can be read, worker id 0 is \
            not used by default.";
        hint: "Set idgen.worker_id, or idgen.worker_pool and idgen.coordinator. The next lease replaces the file.";
    }

    fn lease_file_not_written(error: &std::io::Error) {
        ERRCODE_IO_ERROR: "could not write file \"{}\": {error}", MEMORY_FILE;
        detail: "The file still names the last lease of this server.";
        hint: "Free disk space, or restore the permissions. Otherwise no id is issued after a restart with \
            idgen.worker_pool until a worker id is leased.";
    }

    fn exhausted(pool: &str, count: usize, holders: &str) {
        ERRCODE_CONFIGURATION_LIMIT_EXCEEDED: "all {count} worker ids of pool \"{pool}\" are taken";
        detail: "Least recently renewed: {holders}.";
        hint: "Release unused worker ids, or run SELECT worker_pool_alter({}, count => ...); to add some that no other pool \
            and no server has.", quoted(pool);
    }

    fn begins_too_far(pool: &str, worker_id: i32, not_before_us: i64, bounds: &PoolBounds) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "worker id {worker_id} of pool \"{pool}\" cannot be used before {}",
            time_text_us(not_before_us);
        detail: "Its last holder was granted id times up to then. The clock of this server says {}.",
            time_text_us(bounds.now_us);
        hint: "Wait, or add worker ids that no other pool and no server has. If a clock was wrong and no id of that time was \
            issued, run SELECT worker_correct({}, {worker_id}, <time after its last id>);", quoted(pool);
    }

    fn too_far_ahead(excess_us: i64, max_lead_us: i64) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "the caller's ids or its clock are {} ahead of the coordinator's \
            clock", micros_text(excess_us);
        detail: "Worker ids are granted to callers that are at most {} ahead.", micros_text(max_lead_us);
        hint: "Correct the clock that is wrong, or raise idgen.worker_max_lead on the coordinator.";
    }

    fn not_own_statement(function: &CStr) {
        ERRCODE_ACTIVE_SQL_TRANSACTION: "{} cannot run inside a transaction block or a function",
            function.to_string_lossy();
        detail: "A rollback would revoke id times that were already returned to the caller.";
        hint: "Run it as a statement of its own.";
    }

    /// 22023, unlike other times that are infinite: SQLSTATEs do not change between releases.
    fn used_until_not_finite() {
        ERRCODE_INVALID_PARAMETER_VALUE: "used_until must be finite";
    }

    fn no_worker_id_yet(pool: &str, reason: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "this server has no worker id yet from pool \"{pool}\"";
        detail: "{reason}";
        hint: "{IDS_RESUME}";
    }

    fn lease_ended(worker_id: u32, pool: &str, end_ms: i64, reason: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "the lease of worker id {worker_id} from pool \"{pool}\" ended at {}",
            time_text(end_ms);
        detail: "{reason}";
        hint: "{IDS_RESUME}";
    }

    fn lease_ends(worker_id: u32, pool: &str, end_ms: i64, reason: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "the lease of worker id {worker_id} from pool \"{pool}\" ends before \
            the next id, at {}", time_text(end_ms);
        detail: "{reason}";
        hint: "{IDS_RESUME}";
    }

    fn no_worker_id(is_file_unreadable: bool) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "this server no longer has a worker id";
        detail: "{} While idgen.worker_id is not set, worker id 0 may be another server's.", match is_file_unreadable {
            false => "The server had a pool, and idgen.worker_pool is now empty.".to_owned(),
            true => format!("The server may have had a pool: file \"{}\" could not be read when it started.", MEMORY_FILE),
        };
        hint: "Set idgen.worker_id and restart the server, or set idgen.worker_pool again.";
    }

    fn not_free(worker_id: u32, pool: &str) {
        ERRCODE_WARNING: "worker id {worker_id}, which idgen.worker_id sets, is not free in pool \"{pool}\": another \
            server may use it";
    }
}

/// Raises what the core has refused.
pub fn refused(pool: &str, refusal: Refusal) -> ! {
    let report = match refusal {
        Refusal::Copied => copy_of_the_coordinator(),
        Refusal::UnknownPool => unknown_pool(pool),
        Refusal::TtlOutOfRange => args::ttl_out_of_range(settings::lease_ttl_limits_us()),
        Refusal::TtlBeyondThePools { ttl_us } => ttl_beyond_the_pools(pool, ttl_us),
        Refusal::TooFarAhead { excess_us, max_lead_us } => too_far_ahead(excess_us, max_lead_us),
        Refusal::Exhausted { range } => exhausted(pool, range.clone().count(), &holders(pool, &range)),
        Refusal::BeginsTooFar { worker_id, not_before_us, bounds } => {
            begins_too_far(pool, worker_id, not_before_us, &bounds)
        }
        Refusal::Stale { token } => stale(pool, token),
        Refusal::Uncommitted { worker_id } => confirmed_too_early(pool, worker_id),
        Refusal::RenewedByAnother { worker_id, last_us, not_after_us } => {
            renewed_by_another(pool, worker_id, last_us, not_after_us)
        }
    };
    report.raise()
}

/// Rounded up, so that a caller that waits for it waits long enough.
fn micros_text(us: i64) -> String {
    let ms = us.max(0).unsigned_abs().div_ceil(1000);
    if ms < 120_000 {
        return format!("{}.{:03} s", ms / 1000, ms % 1000);
    }
    let minutes = ms.div_ceil(60_000);
    if minutes < 120 { format!("{minutes} min") } else { format!("{} h", minutes.div_ceil(60)) }
}

const IDS_RESUME: &str = "Ids resume as soon as the lease is renewed. Check idgen.worker_pool and idgen.coordinator, and \
                          run SELECT * FROM idgen.stat_worker.";

/// The error for a server that has no worker id, or whose lease does not cover the time of the next id.
pub fn not_leased(shared: &SharedLease) -> Report {
    let (state, lease) = (STATE.require(), &shared.lease);
    let Some(pool) = settings::worker_pool().map(|pool| pool.name) else {
        return no_worker_id(state.is_file_unreadable.load(Relaxed));
    };
    let now_us = system_clock::boot_us();
    // Why the lease is not renewed.
    let reason = match (lease.failing_since_ms, state.keeper.pid()) {
        (Some(since_ms), _) => {
            let error = shared.last_error.text().unwrap_or_default();
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
        (None, Some(pid)) => {
            let seconds = (now_us - lease.renewed_us).max(0) / 1_000_000;
            format!("The keeper, process {pid}, has not renewed it for {seconds} s.")
        }
    };
    let Some(current) = lease.current else { return no_worker_id_yet(&pool, &reason) };
    let end_ms = current.rectangle.end_ms();
    let has_ended = end_ms <= system_clock::wall_ms();
    (if has_ended { lease_ended } else { lease_ends })(current.worker_id, &pool, end_ms, &reason)
}
