//! What the definer of a pool does: move its worker ids to another pool, and correct the end of a rectangle.

use super::errors;
use crate::args;
use crate::lease;
use crate::lease::{LEASE, LeaseState, Queue, pending};
use crate::pg::advisory_lock::Limit;
use crate::pg::datum::{self, Text};
use crate::pg::spi::{Query, value};
use crate::pg::xact;
use pgrx::prelude::*;

/// Moves the rectangles and leases of a pool to another one, and drops its definition. Returns the count of worker ids.
/// Tokens stay valid under the new name. For the definer of both pools. Raises 22023 for two equal names, 42501 for
/// another role, 42704 for an unknown pool, and 55006 if both pools have granted a worker id or a shared term is held.
#[pg_extern(sql = false)]
fn worker_move(from_pool: Option<Text>, to_pool: Option<Text>) -> i32 {
    let [from, to] = [(&from_pool, "from_pool"), (&to_pool, "to_pool")]
        .map(|(pool, argument)| args::name(pool.as_deref(), argument));
    if from == to {
        errors::same_pool(from).raise();
    }
    xact::require_read_write(c"worker_move()");
    // Before the wait, so that a call that must fail does not wait, and after it, when the pools may be gone.
    require_pools(from, to);
    // Enter the queue first, as a drop does: its head may hold precedence over fences while it waits for the
    // definition.
    Queue::of(from).enter(Limit::by_lock_timeout());
    let mut pools = [from, to];
    pools.sort_unstable();
    pools.into_iter().for_each(lease::lock_definition);
    require_pools(from, to);
    // Renewals wait for the rows, and then find no lease under the old name.
    lease::lock_slots(from);
    let pool = LeaseState::read(from);
    let now = pool.now();
    // It would exclude the holders of the other pool.
    if let Some(term) = pool.terms.iter().find(|term| term.is_shared() && term.is_held(now)) {
        errors::shared(from, term.slot).raise();
    }
    if let Some(worker_id) = granted_from_both(from, to) {
        errors::granted_from_both(worker_id, from, to).raise();
    }
    lease::rename(from, to);
    let moved = move_all(from, to);
    pending::require_durability();
    pools.into_iter().for_each(pending::wake_at_end);
    moved as i32
}

fn require_pools(from: &str, to: &str) {
    for pool in [from, to] {
        let lease = LeaseState::read(pool);
        if lease.definer.is_none() {
            errors::unknown_pool(pool).raise();
        }
        lease::require_definer(pool, &lease);
    }
}

/// Leases without a rectangle count as well.
static GRANTED_FROM_BOTH: Query = LEASE.query(
    "SELECT granted.number FROM (\
         SELECT pool, number FROM idgen.worker_number WHERE pool OPERATOR(pg_catalog.=) ANY (ARRAY[$1, $2]) \
         UNION SELECT name, slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) ANY (ARRAY[$1, $2])\
     ) AS granted (pool, number) \
     GROUP BY granted.number HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1 ORDER BY granted.number LIMIT 1",
);

/// The lowest worker id that both pools have granted.
fn granted_from_both(from: &str, to: &str) -> Option<i32> {
    GRANTED_FROM_BOTH.read_latest(&[from.into(), to.into()], |row| value(row, 1)).pop()
}

static MOVE: Query =
    LEASE.query("UPDATE idgen.worker_number SET pool = $2 WHERE pool OPERATOR(pg_catalog.=) $1 RETURNING number");

/// Moves all rectangles to another pool, and returns their count.
fn move_all(from: &str, to: &str) -> usize {
    MOVE.write_latest(&[from.into(), to.into()], |_| ()).len()
}

/// Records that no id at or after `used_until` was issued under a free worker id. Returns the time recorded before. For
/// the definer of the pool. Raises 22023 for an infinite time, 42501 for another role, 42704 if the worker id was never
/// granted, and 55006 if it is held.
#[pg_extern(sql = false)]
fn worker_correct(
    pool: Option<Text>,
    worker_id: Option<i32>,
    used_until: Option<TimestampWithTimeZone>,
) -> TimestampWithTimeZone {
    let pool = args::name(pool.as_deref(), "pool");
    let worker_id = args::required(worker_id, "worker_id");
    let used_until = args::required(used_until, "used_until");
    if datum::from_us(datum::to_us(used_until)).is_none() {
        errors::used_until_not_finite().raise();
    }
    xact::require_read_write(c"worker_correct()");
    // Before the wait, so that a role without the privilege does not wait, and after it, when the definer may be
    // another.
    lease::require_definer(pool, &LeaseState::read(pool));
    // A running transaction may have acquired this worker id.
    lease::lock_definition(pool);
    lease::require_definer(pool, &LeaseState::read(pool));
    // Waits for a running renewal or release.
    lease::lock_slot_waiting(pool, worker_id);
    // The holder of an expired lease may still renew it.
    if LeaseState::read(pool).terms.iter().any(|term| term.slot == worker_id && term.depth > 0) {
        errors::held(pool, worker_id).raise();
    }
    let before = correct(pool, worker_id, used_until);
    let before = before.unwrap_or_else(|| errors::never_granted(pool, worker_id).raise());
    pending::require_durability();
    before
}

static CORRECT: Query = LEASE.query(
    "UPDATE idgen.worker_number AS known \
     SET not_after = $3, not_before = LEAST(known.not_before, $3) \
     FROM (SELECT pool, number, not_after FROM idgen.worker_number \
           WHERE pool OPERATOR(pg_catalog.=) $1 AND number OPERATOR(pg_catalog.=) $2 FOR UPDATE) AS before \
     WHERE known.pool OPERATOR(pg_catalog.=) before.pool AND known.number OPERATOR(pg_catalog.=) before.number \
     RETURNING before.not_after",
);

/// Sets the end of a rectangle, and returns the end before; `None` if the worker id was never granted.
fn correct(pool: &str, worker_id: i32, used_until: TimestampWithTimeZone) -> Option<TimestampWithTimeZone> {
    CORRECT.write_latest(&[pool.into(), worker_id.into(), used_until.into()], |row| value(row, 1)).pop()
}
