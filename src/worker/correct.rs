//! Correcting what is recorded of a worker id after a clock was wrong.

use super::errors;
use crate::args;
use crate::lease::row::{self, LEASE};
use crate::lease::{define, pending, term};
use crate::lock::checked_name;
use crate::pg::encoding::Text;
use crate::pg::spi::{self, Query, value};
use crate::pg::timestamp;
use pgrx::prelude::*;

/// States that no id at or after a time was issued under a worker id that nobody holds. Returns what was recorded.
#[pg_extern(
    sql = "CREATE FUNCTION worker_correct(pool text, worker_id int, used_until timestamptz) RETURNS timestamptz \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn worker_correct(
    pool: Option<Text>,
    worker_id: Option<i32>,
    used_until: Option<TimestampWithTimeZone>,
) -> TimestampWithTimeZone {
    let pool = args::required(pool.as_deref(), "pool");
    let pool = checked_name(Some(pool));
    let worker_id = args::required(worker_id, "worker_id");
    let used_until = args::required(used_until, "used_until");
    if timestamp::from_us(timestamp::to_us(used_until)).is_none() {
        errors::used_until_not_finite().raise();
    }
    term::refuse_where_nothing_can_be_written(c"worker_correct()");
    // Before the wait, so that no caller waits in vain.
    define::require_definer(pool, &row::look(pool));
    // A transaction that has acquired from the pool may have this worker id.
    define::lock_for_change(pool);
    define::require_definer(pool, &row::look(pool));
    let known = spi::as_read_committed(|| {
        // Waits for a renewal or a release that is under way.
        row::lock_waiting(pool, worker_id);
        // The holder of an expired term may renew it.
        if row::look(pool).terms.iter().any(|term| term.slot == worker_id && term.depth > 0) {
            errors::held(pool, worker_id).raise();
        }
        CORRECT.write_latest(&[pool.into(), worker_id.into(), used_until.into()], |row| value(row, 1)).pop()
    });
    let known = known.unwrap_or_else(|| errors::never_granted(pool, worker_id).raise());
    pending::require_durability();
    known
}

static CORRECT: Query = Query::new(&LEASE, || {
    "UPDATE idgen.worker_number AS known \
     SET not_after = $3, not_before = LEAST(known.not_before, $3) \
     FROM (SELECT pool, number, not_after FROM idgen.worker_number \
           WHERE pool OPERATOR(pg_catalog.=) $1 AND number OPERATOR(pg_catalog.=) $2 FOR UPDATE) AS before \
     WHERE known.pool OPERATOR(pg_catalog.=) before.pool AND known.number OPERATOR(pg_catalog.=) before.number \
     RETURNING before.not_after"
        .to_owned()
});
