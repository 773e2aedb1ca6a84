//! `snowflake_observe`: moves the ids of this server past a given id, as `setval` does for a sequence.

use super::{errors, layouts};
use crate::clock;
use crate::error;
use crate::pg::datum::{self, Text};
use crate::pg::system_clock;
use idgen_core::clock::LATEST_MS;
use idgen_core::layout::Layout;
use pgrx::prelude::*;

/// An id further ahead of the clock is more likely an error than an id that a server issued.
const MAX_LEAD_MS: i64 = 86_400_000;

/// Makes all ids of this server, in every layout, begin after an id of `idgen.layout`. Returns the time where they begin.
/// STRICT. Raises 55000 without preload, 25006 on a standby, 22003 for an id outside of the layout or later than any clock,
/// and 22023 for an id more than a day ahead of the clock, unless `force` is true.
#[pg_extern(sql = false)]
fn snowflake_observe(id: i64, force: bool) -> TimestampWithTimeZone {
    observe(id, &layouts::default(), force)
}

/// As `snowflake_observe(id, force)`, for an id of a layout. Raises 22023 for an invalid layout.
#[pg_extern(sql = false)]
fn snowflake_observe_in(id: i64, layout: Text, force: bool) -> TimestampWithTimeZone {
    observe(id, &layouts::parsed(&layout), force)
}

fn observe(id: i64, layout: &Layout, force: bool) -> TimestampWithTimeZone {
    clock::STATE.require();
    error::refuse_on_standby("observe an id");
    let parts = layout.unpack(id).unwrap_or_else(|e| errors::id(e, id, layout).raise());
    let floor_ms = parts.time_ms.saturating_add(i64::from(layout.unit_ms()));
    let floor = datum::from_ms(floor_ms).unwrap_or_else(|| errors::time_out_of_range(id).raise());
    if floor_ms > LATEST_MS {
        errors::observed_beyond_clocks(id, parts.time_ms).raise();
    }
    if !force && floor_ms > system_clock::wall_ms() + MAX_LEAD_MS {
        errors::observed_too_far_ahead(id, parts.time_ms).raise();
    }
    clock::ensure_begun();
    clock::raise_to(floor_ms);
    floor
}
