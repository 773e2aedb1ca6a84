//! Moving worker ids from one pool to another, with their rectangles and leases.

use super::errors;
use super::store::rectangles;
use crate::args;
use crate::lease::{self, LeaseState, Queue, pending};
use crate::pg::encoding::Text;
use crate::pg::lock_wait::Limit;
use crate::pg::{spi, xact};
use pgrx::prelude::*;

/// Moves the rectangles and leases of a pool to another one, and drops its definition. Returns the count of worker ids.
/// Tokens stay valid under the new name. For the definer of both pools. Raises 22004 for NULL, 22023 for two equal
/// names, 42501 for another role, 42704 for an unknown pool, 55006 if both pools have granted a worker id.
#[pg_extern(sql = "CREATE FUNCTION worker_move(from_pool text, to_pool text) RETURNS int \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
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
    let moved = spi::as_read_committed(|| {
        lease::lock_slots(from);
        if let Some(worker_id) = rectangles::granted_from_both(from, to) {
            errors::granted_from_both(worker_id, from, to).raise();
        }
        lease::rename(from, to);
        rectangles::move_all(from, to)
    });
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
