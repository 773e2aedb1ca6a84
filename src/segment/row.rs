//! The rows of `idgen.segment`: every query on them, in one place.

use crate::pg::owner::{ExtensionTable, as_owner_of};
use crate::pg::spi::{self, Query, unexpected, value};
use idgen_core::segment::allocation::Allocation;
use idgen_core::segment::definition::Definition;
use idgen_core::segment::table::Key;
use pgrx::datum::{DatumWithOid, Interval};
use pgrx::prelude::*;
use pgrx::spi::{SpiClient, SpiHeapTupleData, SpiTupleTable};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// One row for each tag.
pub static SEGMENT: ExtensionTable = ExtensionTable::new(c"idgen", c"segment");

/// A tag as a query found it, in the eyes of the current user.
#[derive(Clone, Debug)]
pub struct Row {
    pub key: Key,
    pub version: i64,
    pub allocation: Allocation,
    /// Made in the transaction that runs: nobody else sees it.
    pub made_here: bool,
    /// Changed in the transaction that runs: nobody else sees how it is now.
    pub changed_here: bool,
    pub may_draw: bool,
    pub may_alter: bool,
    pub definition: Definition,
}

/// What a refill has to know beside the allocation.
pub struct Refillable {
    pub version: i64,
    pub allocation: Allocation,
    pub step: i64,
    pub min_step: i64,
    pub max_step: i64,
    pub target: Duration,
}

/// What a look at a row under its lock has found.
pub enum Locked {
    Row(Refillable),
    /// Somebody else holds the row.
    Busy,
    Gone,
}

/// A duration too long for a bigint of microseconds is as good as for ever.
const COLUMNS: &str = "creation, version, max_id, stride, residue, upper_bound, created_in, changed_in, step, min_step, \
                       max_step, LEAST(pg_catalog.extract('epoch', target_duration) OPERATOR(pg_catalog.*) 1000000, \
                                       9223372036854775807)::bigint";

/// May a role draw: as the owner, as a member of it, or because it, or everybody, was granted to. `role` is a parameter.
fn may_draw(role: &str) -> String {
    format!(
        "(pg_catalog.pg_has_role({role}, owner::pg_catalog.oid, 'USAGE') \
         OR 0::pg_catalog.oid OPERATOR(pg_catalog.=) ANY (drawers::pg_catalog.oid[]) \
         OR EXISTS (SELECT FROM pg_catalog.unnest(drawers::pg_catalog.oid[]) AS granted (role) \
                    WHERE pg_catalog.pg_has_role({role}, granted.role, 'USAGE')))"
    )
}

static FIND: Query = Query::new(&SEGMENT, || by_tag(""));
static LOCK: Query = Query::new(&SEGMENT, || by_tag("FOR NO KEY UPDATE"));

fn by_tag(locking: &str) -> String {
    format!(
        "SELECT {COLUMNS}, {}, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') \
         FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1 {locking}",
        may_draw("$2")
    )
}

/// The tag's row as it is now. Not by the transaction's snapshot, which may be old: values are everybody's, and a tag that
/// was dropped meanwhile must not be drawn from.
pub fn find(tag: &str) -> Option<Row> {
    FIND.read_latest(&[tag.into(), user().into()], row).pop()
}

/// The same row, locked against changes and refills until the transaction ends. Waits for a transaction that has changed it.
pub fn find_and_lock(tag: &str) -> Option<Row> {
    refuse_during_recovery();
    spi::as_read_committed(|| LOCK.write_latest(&[tag.into(), user().into()], row)).pop()
}

fn row(row: &SpiHeapTupleData) -> Row {
    Row {
        key: Key { database: database(), creation: value(row, 1) },
        version: value(row, 2),
        allocation: allocation(row),
        made_here: is_own_transaction(value(row, 7)),
        changed_here: is_own_transaction(value(row, 8)),
        may_draw: value(row, 13),
        may_alter: value(row, 14),
        definition: definition(row),
    }
}

pub fn user() -> pg_sys::Oid {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::GetUserId() }
}

/// The row under its lock, if that is to be had at once.
pub fn lock(creation: i64) -> Locked {
    let by_creation = "FROM idgen.segment WHERE creation OPERATOR(pg_catalog.=) $1";
    let lock = format!("SELECT {COLUMNS} {by_creation} FOR NO KEY UPDATE SKIP LOCKED");
    let any = format!("SELECT tag {by_creation}");
    let look = |client: &mut SpiClient| {
        let exists = |table: SpiTupleTable| !table.is_empty();
        let found = client.update(&lock, Some(1), &[creation.into()]).unwrap_or_else(unexpected);
        if let Some(row) = found.into_iter().next() {
            let definition = definition(&row);
            return Locked::Row(Refillable {
                version: value(&row, 2),
                allocation: allocation(&row),
                step: definition.step,
                min_step: definition.min_step,
                max_step: definition.max_step,
                target: Duration::from_micros(definition.target_us as u64),
            });
        }
        match exists(client.update(&any, Some(1), &[creation.into()]).unwrap_or_else(unexpected)) {
            true => Locked::Busy,
            false => Locked::Gone,
        }
    };
    as_owner_of(&SEGMENT, pg_sys::RowExclusiveLock, || Spi::connect_mut(look))
}

static CREATIONS: Query = Query::new(&SEGMENT, || "SELECT creation FROM idgen.segment".to_owned());

/// The tags that are there, by their creation.
pub fn creations() -> Vec<i64> {
    CREATIONS.read_latest(&[], |row| value(row, 1))
}

static VISIBLE: Query = Query::new(&SEGMENT, || {
    format!(
        "SELECT creation FROM idgen.segment WHERE {} \
         OR pg_catalog.pg_has_role($1, 'pg_read_all_stats'::pg_catalog.name, 'USAGE')",
        may_draw("$1")
    )
});

/// The tags whose figures the current user may see, by their creation.
pub fn visible_creations() -> HashSet<i64> {
    HashSet::from_iter(VISIBLE.read_latest(&[user().into()], |row| value(row, 1)))
}

/// The row gives out values up to this one, by a refill or in the transaction that made it: no change of the tag.
pub fn raise_max_id(creation: i64, max_id: i64, step: Option<i64>) {
    let query = "UPDATE idgen.segment SET max_id = GREATEST(max_id, $2), step = COALESCE($3, step) \
                 WHERE creation OPERATOR(pg_catalog.=) $1";
    let args = [creation.into(), max_id.into(), step.into()];
    IS_ALLOCATION.store(true, Relaxed);
    let write = |client: &mut SpiClient| client.update(query, None, &args).unwrap_or_else(unexpected).len();
    as_owner_of(&SEGMENT, pg_sys::RowExclusiveLock, || Spi::connect_mut(write));
    IS_ALLOCATION.store(false, Relaxed);
}

/// This process is in `raise_max_id`. An error in there leaves it set, so whoever may fail comes by `clear_allocation`.
static IS_ALLOCATION: AtomicBool = AtomicBool::new(false);

pub fn is_allocation() -> bool {
    IS_ALLOCATION.load(Relaxed)
}

pub fn clear_allocation() {
    IS_ALLOCATION.store(false, Relaxed);
}

/// The columns that a definition sets.
const SETTINGS: &str = "max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound";

static INSERT: Query = Query::new(&SEGMENT, || {
    format!(
        "INSERT INTO idgen.segment (tag, owner, {SETTINGS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
         ON CONFLICT (tag) DO NOTHING RETURNING tag"
    )
});
static UPDATE: Query = Query::new(&SEGMENT, || {
    format!(
        "UPDATE idgen.segment SET ({SETTINGS}, owner) = (SELECT $3, $4, $5, $6, COALESCE($7, target_duration), $8, $9, $10, \
         COALESCE($2::pg_catalog.regrole, owner)) WHERE tag OPERATOR(pg_catalog.=) $1"
    )
});

/// Makes a row. False if the tag is there.
pub fn insert(tag: &str, owner: pg_sys::Oid, definition: &Definition, target_duration: Interval) -> bool {
    !write(&INSERT, &settings(tag, Some(owner), definition, Some(target_duration))).is_empty()
}

/// Writes all settings of a row that the transaction has locked.
pub fn update(tag: &str, owner: Option<pg_sys::Oid>, definition: &Definition, target_duration: Option<Interval>) {
    write(&UPDATE, &settings(tag, owner, definition, target_duration));
}

/// The duration apart, and as it was given: a definition has its microseconds only, and not even those of a very long one.
fn settings<'a>(
    tag: &'a str,
    owner: Option<pg_sys::Oid>,
    definition: &Definition,
    target_duration: Option<Interval>,
) -> Vec<DatumWithOid<'a>> {
    let Definition { max_id, step, min_step, max_step, stride, residue, upper_bound, .. } = *definition;
    let mut args = vec![tag.into(), owner.into()];
    args.extend([max_id, step, min_step, max_step].map(Into::into));
    args.push(target_duration.into());
    args.extend([stride, residue, upper_bound].map(Into::into));
    args
}

static DELETE: Query =
    Query::new(&SEGMENT, || "DELETE FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1".to_owned());

pub fn delete(tag: &str) {
    write(&DELETE, &[tag.into()]);
}

static ADD_DRAWER: Query = Query::new(&SEGMENT, || {
    "UPDATE idgen.segment SET drawers = pg_catalog.array_append(drawers, $2::pg_catalog.oid::pg_catalog.regrole) \
     WHERE tag OPERATOR(pg_catalog.=) $1 \
     AND $2::pg_catalog.oid OPERATOR(pg_catalog.<>) ALL (drawers::pg_catalog.oid[])"
        .to_owned()
});
static REMOVE_DRAWER: Query = Query::new(&SEGMENT, || {
    "UPDATE idgen.segment SET drawers = pg_catalog.array_remove(drawers, $2::pg_catalog.oid::pg_catalog.regrole) \
     WHERE tag OPERATOR(pg_catalog.=) $1 \
     AND $2::pg_catalog.oid OPERATOR(pg_catalog.=) ANY (drawers::pg_catalog.oid[])"
        .to_owned()
});

/// Lets a role draw, or no longer; 0 is everybody.
pub fn set_drawer(tag: &str, role: pg_sys::Oid, may_draw: bool) {
    let query = if may_draw { &ADD_DRAWER } else { &REMOVE_DRAWER };
    // As a bigint, because 0 as an oid would become NULL on its way.
    write(query, &[tag.into(), i64::from(role.to_u32()).into()]);
}

static REASSIGN: Query = Query::new(&SEGMENT, || {
    "UPDATE idgen.segment SET owner = $2::pg_catalog.regrole \
     WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1)"
        .to_owned()
});
static DELETE_OWNED: Query = Query::new(&SEGMENT, || {
    "DELETE FROM idgen.segment WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1)".to_owned()
});
static REMOVE_DRAWERS: Query = Query::new(&SEGMENT, || {
    "UPDATE idgen.segment SET drawers = ARRAY(\
         SELECT granted.role FROM pg_catalog.unnest(drawers) WITH ORDINALITY AS granted (role, place) \
         WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.<>) ALL ($1) ORDER BY granted.place) \
     WHERE drawers::pg_catalog.oid[] OPERATOR(pg_catalog.&&) $1"
        .to_owned()
});

/// Gives all segments of these roles to another one.
pub fn reassign(owners: &[pg_sys::Oid], heir: pg_sys::Oid) {
    spi::as_read_committed(|| write(&REASSIGN, &[owners.to_vec().into(), heir.into()]));
}

/// Drops all segments of these roles, and all that was granted to them.
pub fn drop_owned(owners: &[pg_sys::Oid]) {
    spi::as_read_committed(|| {
        write(&DELETE_OWNED, &[owners.to_vec().into()]);
        write(&REMOVE_DRAWERS, &[owners.to_vec().into()]);
    });
}

/// Changes rows as they are now.
fn write(query: &Query, args: &[DatumWithOid]) -> Vec<()> {
    refuse_during_recovery();
    query.write_latest(args, |_| ())
}

fn refuse_during_recovery() {
    // PostgreSQL would complain about a transaction's number before it does about the write.
    // SAFETY: a C string literal.
    unsafe { pg_sys::PreventCommandDuringRecovery(c"a write to idgen.segment".as_ptr()) };
}

pub fn database() -> u32 {
    // SAFETY: set when the process connects, and never again.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// The number of the transaction that runs; 0 if it has none.
pub fn transaction() -> i64 {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::GetTopFullTransactionIdIfAny() }.value as i64
}

fn is_own_transaction(number: i64) -> bool {
    number == transaction()
}

fn allocation(row: &SpiHeapTupleData) -> Allocation {
    Allocation { max_id: value(row, 3), stride: value(row, 4), residue: value(row, 5), upper_bound: value(row, 6) }
}

fn definition(row: &SpiHeapTupleData) -> Definition {
    Definition {
        max_id: value(row, 3),
        step: value(row, 9),
        min_step: value(row, 10),
        max_step: value(row, 11),
        target_us: value(row, 12),
        stride: value(row, 4),
        residue: value(row, 5),
        upper_bound: value(row, 6),
    }
}
