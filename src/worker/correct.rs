//! Correcting the recorded end of a rectangle after a clock was wrong.

use super::errors;
use super::store::rectangles;
use crate::args;
use crate::lease::{self, LeaseState, pending};
use crate::pg::encoding::Text;
use crate::pg::{spi, timestamp, xact};
use pgrx::prelude::*;

/// Records that no id at or after `used_until` was issued under a free worker id. Returns the time recorded before. For
/// the definer of the pool. Raises 22004 for NULL, 22023 for an infinite time, 42501 for another role, 42704 if the
/// worker id was never granted, 55006 if it is held.
#[pg_extern(
    sql = "CREATE FUNCTION worker_correct(pool text, worker_id int, used_until timestamptz) RETURNS timestamptz \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn worker_correct(
    pool: Option<Text>,
    worker_id: Option<i32>,
    used_until: Option<TimestampWithTimeZone>,
) -> TimestampWithTimeZone {
    let pool = args::name(pool.as_deref(), "pool");
    let worker_id = args::required(worker_id, "worker_id");
    let used_until = args::required(used_until, "used_until");
    if timestamp::from_us(timestamp::to_us(used_until)).is_none() {
        errors::used_until_not_finite().raise();
    }
    xact::require_read_write(c"worker_correct()");
    // Before the wait, so that a role without the privilege does not wait, and after it, when the definer may be
    // another.
    lease::require_definer(pool, &LeaseState::read(pool));
    // A running transaction may have acquired this worker id.
    lease::lock_definition(pool);
    lease::require_definer(pool, &LeaseState::read(pool));
    let before = spi::as_read_committed(|| {
        // Waits for a running renewal or release.
        lease::lock_slot_waiting(pool, worker_id);
        // The holder of an expired lease may still renew it.
        if LeaseState::read(pool).terms.iter().any(|term| term.slot == worker_id && term.depth > 0) {
            errors::held(pool, worker_id).raise();
        }
        rectangles::correct(pool, worker_id, used_until)
    });
    let before = before.unwrap_or_else(|| errors::never_granted(pool, worker_id).raise());
    pending::require_durability();
    before
}
