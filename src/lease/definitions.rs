//! The definitions of leases: the rows of `idgen.lease_definition`, and what this process remembers of them, which
//! PostgreSQL's cache invalidations tell it to forget. Also what messages and notifications say of holders.

use super::store::{LEASE, LEASE_DEFINITION};
use crate::pg::function::{self, TriggerRow};
use crate::pg::invalidation::{self, TableChanges, TextCache};
use crate::pg::spi::{Query, micros, optional_text, text, user, value};
use idgen_core::lease::LeaseDefinition;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;

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

static DEFINED: Query = Query::new(&LEASE, || {
    format!(
        "SELECT slots, {}, {}, notify FROM idgen.lease_definition WHERE name OPERATOR(pg_catalog.=) $1",
        micros("ttl"),
        micros("lock_delay")
    )
});

/// Reads the definition, whatever the transaction's snapshot shows.
fn look_up(name: &str) -> KnownDefinition {
    let changes = CHANGES.follow();
    let read = |row: &SpiHeapTupleData| KnownDefinition {
        definition: Some(LeaseDefinition { slots: value(row, 1), ttl_us: value(row, 2), lock_delay_us: value(row, 3) }),
        notify: value(row, 4),
        changes,
    };
    let found = DEFINED.read_latest(&[name.into()], read).pop();
    let known = found.unwrap_or(KnownDefinition { definition: None, notify: false, changes });
    KNOWN.insert(name, known);
    known
}

// Always: also for rows that a restore or a subscription writes.
/// Runs after each row is written. A subscription writes rows without running triggers of statements.
#[pg_extern(sql = false)]
fn lease_definition_changed(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let (table, _) = unsafe { function::trigger_of_table(fcinfo, "idgen.lease_definition_changed", &LEASE_DEFINITION) };
    invalidation::announce(table);
    TriggerRow::from(None)
}

static DEFINE: Query = LEASE.query(
    "INSERT INTO idgen.lease_definition AS defined (name, slots, ttl, lock_delay, owner, notify) \
     VALUES ($1, $2, $3, $4, $5::pg_catalog.regrole, $6) \
     ON CONFLICT (name) DO UPDATE \
     SET slots = excluded.slots, ttl = excluded.ttl, lock_delay = excluded.lock_delay, notify = excluded.notify \
     WHERE pg_catalog.pg_has_role($5, defined.owner::pg_catalog.oid, 'USAGE') RETURNING slots",
);

/// Defines a lease, or changes its definition and keeps its definer. False if the caller may not act as the definer.
pub fn define(name: &str, slots: i32, ttl: Interval, lock_delay: Interval, notify: bool) -> bool {
    let args = [name.into(), slots.into(), ttl.into(), lock_delay.into(), user().into(), notify.into()];
    !DEFINE.write_latest(&args, |_| ()).is_empty()
}

static ALTER: Query = LEASE.query(
    "UPDATE idgen.lease_definition SET slots = COALESCE($2, slots), ttl = COALESCE($3, ttl), \
     lock_delay = COALESCE($4, lock_delay), notify = COALESCE($5, notify) \
     WHERE name OPERATOR(pg_catalog.=) $1",
);

/// Changes a definition that the transaction has locked; `None` keeps a setting.
pub fn alter(
    name: &str,
    slots: Option<i32>,
    ttl: Option<Interval>,
    lock_delay: Option<Interval>,
    notify: Option<bool>,
) {
    let args = [name.into(), slots.into(), ttl.into(), lock_delay.into(), notify.into()];
    ALTER.write_latest(&args, |_| ());
}

static DROP_ROWS: Query = LEASE.query("DELETE FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 RETURNING slot");
static DROP_DEFINITION: Query =
    LEASE.query("DELETE FROM idgen.lease_definition WHERE name OPERATOR(pg_catalog.=) $1 RETURNING slots");

/// Deletes all rows of a lease, after waiting for transactions that have fenced. False if there were none.
pub fn drop_all(name: &str) -> bool {
    let rows = DROP_ROWS.write_latest(&[name.into()], |_| ()).len();
    rows + DROP_DEFINITION.write_latest(&[name.into()], |_| ()).len() > 0
}

static DEPTH_AND_OWNER: Query = LEASE.query(
    "SELECT depth, owner FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2",
);

/// The depth of a slot, and the owner of its current or last term.
pub fn depth_and_owner(name: &str, slot: i32) -> Option<(i32, Option<String>)> {
    DEPTH_AND_OWNER.read_latest(&[name.into(), slot.into()], |row| (value(row, 1), optional_text(row, 2))).pop()
}

static REASSIGN: Query = LEASE.query(
    "UPDATE idgen.lease_definition SET owner = $2::pg_catalog.regrole \
     WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1) RETURNING slots",
);

/// Makes another role the definer of all leases of these roles. False if there are none.
pub fn reassign(owners: &[pg_sys::Oid], heir: pg_sys::Oid) -> bool {
    !REASSIGN.write_latest(&[owners.to_vec().into(), heir.into()], |_| ()).is_empty()
}

static OWNED: Query = LEASE.query(
    "SELECT name FROM idgen.lease_definition WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1) ORDER BY name",
);

/// The leases that these roles have defined.
pub fn owned(owners: &[pg_sys::Oid]) -> Vec<String> {
    OWNED.read_latest(&[owners.to_vec().into()], |row| text(row, 1))
}

static FOREIGN_HOLDERS: Query = LEASE.query("SELECT slot, role::pg_catalog.text FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 \
     AND depth OPERATOR(pg_catalog.>) 0 AND NOT pg_catalog.pg_has_role($2, role::pg_catalog.oid, 'USAGE') ORDER BY slot");

/// Slots with terms, even expired ones, of roles that the caller may not act as, and these roles.
pub fn foreign_holders(name: &str) -> Vec<(i32, String)> {
    FOREIGN_HOLDERS.read_latest(&[name.into(), user().into()], |row| (value(row, 1), text(row, 2)))
}
