//! snowflake_observe: what `setval` is to a sequence.

use super::layouts;
use crate::clock::{mark, wall_ms};
use crate::encoding::Text;
use crate::{error, shmem, timestamp};
use idgen_core::layout::Layout;
use pgrx::prelude::*;

/// Further ahead of the clock than this, an id is more likely wrong than made by a server.
const NEEDS_FORCE_MS: i64 = 86_400_000;

#[pg_extern(sql = "CREATE FUNCTION snowflake_observe(id bigint, force boolean DEFAULT false) RETURNS timestamptz \
           VOLATILE PARALLEL UNSAFE STRICT LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_observe(id: i64, force: bool) -> TimestampWithTimeZone {
    observe(id, &layouts::default(), force)
}

#[pg_extern(
    sql = "CREATE FUNCTION snowflake_observe(id bigint, layout text, force boolean DEFAULT false) RETURNS timestamptz \
           VOLATILE PARALLEL UNSAFE STRICT LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn snowflake_observe_in(id: i64, layout: Text, force: bool) -> TimestampWithTimeZone {
    observe(id, &layouts::parsed(&layout), force)
}

fn observe(id: i64, layout: &Layout, force: bool) -> TimestampWithTimeZone {
    let shared = shmem::shared().unwrap_or_else(|| error::not_preloaded().raise());
    super::space::refuse_on_standby();
    let parts = layout.unpack(id).unwrap_or_else(|e| error::id(e, id, layout).raise());
    let floor_ms = parts.time_ms.saturating_add(i64::from(layout.unit_ms()));
    let floor = timestamp::from_ms(floor_ms).unwrap_or_else(|| error::time_out_of_range(id).raise());
    if !force && floor_ms > wall_ms() + NEEDS_FORCE_MS {
        error::observed_too_far_ahead(id, parts.time_ms).raise();
    }
    mark::ensure_begun(shared, None);
    mark::raise_to(shared, floor_ms);
    floor
}
