//! Snowflake ids. `next` issues them, and `decode` reads them. `settled` tells a consumer up to which id it can read, and its
//! trigger writes a new id into each changed row.
//!
//! Here, `snowflake_observe` moves the next ids past a given one, as `setval` does for a sequence. `evaluate` does for
//! `snowflake_adopt` what SQL cannot do: it runs expressions of a table with the rights of the table's owner.

use crate::clock;
use crate::error;
use crate::pg::datum::{self, Text};
use crate::pg::{spi, system_clock, xact};
use crate::shmem;
use idgen_core::clock::LATEST_MS;
use idgen_core::layout::Layout;
use pgrx::prelude::*;

mod decode;
mod errors;
mod layouts;
mod next;
pub mod node;
mod settled;
pub mod status;

pub use errors::node_too_large;
pub use layouts::{AttachedGenerator, attach_by_text, default as default_layout};
pub use next::{IdSet, next_id};
pub use settled::settled;
pub use status::checks;

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&node::CURRENT, &next::COUNTERS, &settled::DRAWS.processes]);
    // In the postmaster, from which all processes inherit it: it runs after all other callbacks, and in a leader also if
    // only its workers have drawn.
    xact::on_xact_event(next::at_xact_event);
}

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

/// Runs a query as the owner of a relation, and returns the first column of its first row as text; NULL without a row. Only
/// for roles that have the rights of the owner: they can run any function like this, in an expression index. STRICT.
#[pg_extern(sql = false)]
fn snowflake_adopt_as_owner(relation: pg_sys::Oid, query: Text) -> Option<Text<'static>> {
    let owner = spi::class(relation, |class| class.relowner);
    // SAFETY: looks into the system's caches.
    let Some(owner) = owner.filter(|owner| unsafe { pg_sys::has_privs_of_role(spi::user(), *owner) }) else {
        errors::not_owner_of_relation().raise();
    };
    spi::run_restricted(owner, &query).map(Text::from)
}
