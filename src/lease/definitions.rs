//! The definitions of leases: the rows of `idgen.lease_definition`, and what this process remembers of them, which
//! PostgreSQL's cache invalidations tell it to forget.

use super::rows::{self, LEASE, LEASE_DEFINITION, ROWS};
use crate::pg::advisory_lock::{Limit, within};
use crate::pg::function::{self, TriggerRow};
use crate::pg::invalidation::{self, TableChanges, TextCache};
use crate::pg::row::{Key, Row, RowTable};
use crate::pg::spi::Query;
use idgen_core::lease::{Lease, LeaseDefinition};
use pgrx::datum::Interval;
use pgrx::prelude::*;

static CHANGES: TableChanges = TableChanges::of(&LEASE_DEFINITION);
static KNOWN: TextCache<KnownDefinition> = TextCache::new();

/// The definition of a name, as it was when this process read it.
#[derive(Clone, Copy)]
pub struct KnownDefinition {
    /// `None` if the name is not defined.
    pub definition: Option<LeaseDefinition>,
    /// `None` if the name is not defined.
    pub definer: Option<pg_sys::Oid>,
    /// True if observers are notified of its terms.
    pub notify: bool,
    /// How many changes of definitions this process had heard of.
    pub changes: u64,
}

/// The definition of a lease. It is current if the caller holds the lock of the definition; otherwise it may have changed
/// just now.
pub fn of(name: &str) -> KnownDefinition {
    known(name).unwrap_or_else(|| look_up(name))
}

/// The same for a caller whose time is limited. `None`, or the error of `lock_timeout`, if the table is locked.
pub fn of_within(limit: Limit, name: &str) -> Option<KnownDefinition> {
    known(name).or_else(|| within(limit, || look_up(name)))
}

fn known(name: &str) -> Option<KnownDefinition> {
    invalidation::accept();
    KNOWN.read(name, |known| (known.changes == CHANGES.count()).then_some(*known)).flatten()
}

static DEFINED: RowTable<6> =
    RowTable::new(&LEASE_DEFINITION, [c"name", c"slots", c"ttl", c"lock_delay", c"owner", c"notify"], 1);

/// Reads the definition, whatever the transaction's snapshot shows.
fn look_up(name: &str) -> KnownDefinition {
    let changes = CHANGES.follow();
    let micros = |interval: Interval| i64::try_from(interval.as_micros()).unwrap_or(i64::MAX);
    let read = |row: &Row<6>| {
        let (ttl_us, lock_delay_us) = (micros(row.value(2)), micros(row.value(3)));
        Some(KnownDefinition {
            definition: Some(LeaseDefinition { slots: row.value(1), ttl_us, lock_delay_us }),
            definer: Some(row.value(4)),
            notify: row.value(5),
            changes,
        })
    };
    let found = DEFINED.read(|rows| rows.latest(|latest| latest.find(&[Key::Text(name)], read)));
    let known = found.unwrap_or(KnownDefinition { definition: None, definer: None, notify: false, changes });
    KNOWN.insert(name, known);
    known
}

/// The committed state of a lease, whatever the transaction's snapshot shows.
pub fn read(name: &str) -> Lease {
    let definition = of(name).definition.unwrap_or_else(rows::undefined);
    let terms = ROWS.read(|rows| rows.latest(|latest| latest.all(&[Key::Text(name)], |row| rows::term(row, None))));
    let now = rows::now_for(&terms);
    Lease { definition, terms, now }
}

/// Runs after each row is written. A subscription writes rows without running triggers of statements.
#[pg_extern(sql = false)]
fn lease_definition_changed(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let (table, _) = unsafe { function::trigger_of_table(fcinfo, "idgen.lease_definition_changed", &LEASE_DEFINITION) };
    invalidation::announce(table);
    TriggerRow::from(None)
}

static REASSIGN: Query = LEASE.query(
    "UPDATE idgen.lease_definition SET owner = $2::pg_catalog.regrole \
     WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1) RETURNING slots",
);

/// Makes another role the definer of all leases of these roles. False if there are none.
pub fn reassign(owners: &[pg_sys::Oid], heir: pg_sys::Oid) -> bool {
    !REASSIGN.write_latest(&[owners.to_vec().into(), heir.into()], |_| ()).is_empty()
}
