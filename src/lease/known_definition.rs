//! Definitions of leases, as this process remembers them. PostgreSQL's cache invalidations tell it of changes.

use super::errors;
use super::store::{LEASE_DEFINITION, definitions};
use crate::pg::invalidation::{self, TableChanges};
use crate::pg::trigger::{self, TriggerRow};
use crate::text_cache::TextCache;
use idgen_core::lease::LeaseDefinition;
use pgrx::prelude::*;

static CHANGES: TableChanges = TableChanges::of(&LEASE_DEFINITION);
static KNOWN: TextCache<KnownDefinition> = TextCache::new();

/// The definition of a name, as it was when this process read it.
#[derive(Clone, Copy)]
pub struct KnownDefinition {
    /// `None` if the name is not defined.
    pub definition: Option<LeaseDefinition>,
    /// True if observers are notified of its terms.
    pub notify: bool,
    changes: u64,
}

/// The definition of a lease. It is current if the caller holds the lock of the definition; otherwise it may have changed
/// just now.
pub fn of(name: &str) -> KnownDefinition {
    invalidation::accept();
    let known = KNOWN.read(name, |known| (known.changes == CHANGES.count()).then_some(*known)).flatten();
    known.unwrap_or_else(|| look_up(name))
}

fn look_up(name: &str) -> KnownDefinition {
    let changes = CHANGES.follow();
    let (definition, notify) = definitions::find(name).unzip();
    let known = KnownDefinition { definition, notify: notify == Some(true), changes };
    KNOWN.insert(name, known);
    known
}

// Always: also for rows that a restore or a subscription writes.
/// Runs after each row is written. A subscription writes rows without running triggers of statements.
#[pg_extern(sql = false)]
fn lease_definition_changed(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let table = unsafe { trigger::of(fcinfo) }.and_then(|trigger| trigger.relid().ok());
    let table = table.filter(|table| LEASE_DEFINITION.find() == Some(*table));
    invalidation::announce(table.unwrap_or_else(|| errors::definition_trigger_only().raise()));
    TriggerRow::from(None)
}
