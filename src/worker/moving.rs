//! Moving worker ids from one pool to another: rectangles and live leases go along, so that no worker id starts again.

use super::errors;
use crate::args;
use crate::lease::row::{self, LEASE};
use crate::lease::turnstile::Turnstile;
use crate::lease::{define, names, pending, term};
use crate::lock::checked_name;
use crate::lock::wait::Limit;
use crate::pg::encoding::Text;
use crate::pg::spi::{self, Query, value};
use pgrx::prelude::*;

/// Carries the rectangles and the leases of a pool over to another one, and drops its definition. Returns how many worker
/// ids. Tokens stay valid under the new name.
#[pg_extern(sql = "CREATE FUNCTION worker_move(from_pool text, to_pool text) RETURNS int \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_move(from_pool: Option<Text>, to_pool: Option<Text>) -> i32 {
    let from = args::required(from_pool.as_deref(), "from_pool");
    let to = args::required(to_pool.as_deref(), "to_pool");
    let (from, to) = (checked_name(Some(from)), checked_name(Some(to)));
    if from == to {
        errors::same_pool(from).raise();
    }
    term::refuse_where_nothing_can_be_written(c"worker_move()");
    // Before the wait, so that no caller waits in vain, and after it, when the pools may be gone.
    require_pools(from, to);
    // Enter the queue first, as a drop does: its head may hold precedence over fences while it waits for the definition.
    Turnstile::of(from).enter(Limit::by_lock_timeout());
    let mut pools = [from, to];
    pools.sort_unstable();
    pools.into_iter().for_each(define::lock_for_change);
    require_pools(from, to);
    // Renewals wait for the rows, and then find no term under the old name.
    let moved = spi::as_read_committed(|| {
        define::lock_rows(from);
        if let Some(number) = granted_from_both(from, to) {
            errors::granted_from_both(number, from, to).raise();
        }
        names::rename(from, to);
        MOVE.write_latest(&[from.into(), to.into()], |_| ()).len()
    });
    pending::require_durability();
    pools.into_iter().for_each(pending::wake_at_end);
    moved as i32
}

fn require_pools(from: &str, to: &str) {
    for pool in [from, to] {
        let lease = row::look(pool);
        if lease.definer.is_none() {
            errors::unknown_pool(pool).raise();
        }
        define::require_definer(pool, &lease);
    }
}

/// A worker id without a rectangle counts as well: its row may be a lease without one.
static GRANTED_FROM_BOTH: Query = Query::new(&LEASE, || {
    "SELECT granted.number FROM (\
         SELECT pool, number FROM idgen.worker_number WHERE pool OPERATOR(pg_catalog.=) ANY (ARRAY[$1, $2]) \
         UNION SELECT name, slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) ANY (ARRAY[$1, $2])\
     ) AS granted (pool, number) \
     GROUP BY granted.number HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1 ORDER BY granted.number LIMIT 1"
        .to_owned()
});

/// The lowest worker id that both pools have granted.
fn granted_from_both(from: &str, to: &str) -> Option<i32> {
    GRANTED_FROM_BOTH.read_latest(&[from.into(), to.into()], |row| value(row, 1)).pop()
}

static MOVE: Query = Query::new(&LEASE, || {
    "UPDATE idgen.worker_number SET pool = $2 WHERE pool OPERATOR(pg_catalog.=) $1 RETURNING number".to_owned()
});
