//! The table `idgen.segment`: every query on its rows.

use crate::grants::{self, GrantedColumns, GrantedTable};
use crate::pg::session::database;
use crate::pg::spi::{self, ExtensionTable, Query, as_owner_of, unexpected, user, value};
use crate::pg::xact;
use idgen_core::segment::TagKey;
use idgen_core::segment::tag::TagDefinition;
use pgrx::datum::{DatumWithOid, Interval};
use pgrx::prelude::*;
use pgrx::spi::{SpiClient, SpiHeapTupleData};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// One row for each tag.
pub static SEGMENT: ExtensionTable = ExtensionTable::new(c"segment");

/// The grantees may draw.
pub static OWNERS: GrantedTable = GrantedTable::new::<Columns>(&SEGMENT);

struct Columns;

impl GrantedColumns for Columns {
    const TABLE: &str = "idgen.segment";
    const KEY: &str = "tag";
    const GRANTEES: &str = "drawers";
}

/// The row of a tag, and what the current user may do with it.
#[derive(Clone, Debug)]
pub struct TagRow {
    pub key: TagKey,
    pub version: i64,
    /// Created by the running transaction: no other session sees the row.
    pub created_here: bool,
    /// Changed by the running transaction: other sessions see the old row.
    pub changed_here: bool,
    pub may_draw: bool,
    pub may_alter: bool,
    pub definition: TagDefinition,
}

/// The result of an attempt to lock a row.
pub enum LockedRow {
    Found {
        version: i64,
        definition: TagDefinition,
    },
    /// Another transaction has locked it.
    Busy,
    Gone,
}

/// The columns that [`tag_row`] reads. A duration beyond a bigint of microseconds is shortened to the longest one.
const COLUMNS: &str = "creation, version, max_id, stride, residue, upper_bound, created_in, changed_in, step, min_step, \
                       max_step, LEAST(pg_catalog.extract('epoch', target_duration) OPERATOR(pg_catalog.*) 1000000, \
                                       9223372036854775807)::bigint";

static FIND: Query = Query::new(&SEGMENT, || by_tag(""));
static LOCK: Query = Query::new(&SEGMENT, || by_tag("FOR NO KEY UPDATE"));

fn by_tag(locking: &str) -> String {
    format!(
        "SELECT {COLUMNS}, {}, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') \
         FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1 {locking}",
        grants::owns_or_has("$2", "drawers")
    )
}

/// The row of a tag as it is now. The transaction's snapshot may still show a tag that was dropped, whose values must
/// not be drawn.
pub fn find(tag: &str) -> Option<TagRow> {
    FIND.read_latest(&[tag.into(), user().into()], tag_row).pop()
}

/// As [`find`], and locks the row against changes and refills until the transaction ends. Waits for a transaction that
/// has changed it.
pub fn find_and_lock(tag: &str) -> Option<TagRow> {
    SEGMENT.refuse_during_recovery();
    spi::as_read_committed(|| LOCK.write_latest(&[tag.into(), user().into()], tag_row)).pop()
}

fn tag_row(row: &SpiHeapTupleData) -> TagRow {
    let is_here = |transaction: i64| transaction == xact::id_if_any();
    TagRow {
        key: TagKey { database: database(), creation: value(row, 1) },
        version: value(row, 2),
        created_here: is_here(value(row, 7)),
        changed_here: is_here(value(row, 8)),
        may_draw: value(row, 13),
        may_alter: value(row, 14),
        definition: definition(row),
    }
}

/// Locks a row for a refill, if no other transaction has locked it.
pub fn lock(creation: i64) -> LockedRow {
    let by_creation = "FROM idgen.segment WHERE creation OPERATOR(pg_catalog.=) $1";
    let lock = format!("SELECT {COLUMNS} {by_creation} FOR NO KEY UPDATE SKIP LOCKED");
    let any = format!("SELECT tag {by_creation}");
    let lock_or_find = |client: &mut SpiClient| {
        let found = client.update(&lock, Some(1), &[creation.into()]).unwrap_or_else(unexpected);
        if let Some(row) = found.into_iter().next() {
            return LockedRow::Found { version: value(&row, 2), definition: definition(&row) };
        }
        let found = client.update(&any, Some(1), &[creation.into()]).unwrap_or_else(unexpected);
        if found.is_empty() { LockedRow::Gone } else { LockedRow::Busy }
    };
    as_owner_of(&SEGMENT, pg_sys::RowExclusiveLock, || Spi::connect_mut(lock_or_find))
}

static CREATIONS: Query = SEGMENT.query("SELECT creation FROM idgen.segment");

/// The creation numbers of all tags.
pub fn creations() -> Vec<i64> {
    CREATIONS.read_latest(&[], |row| value(row, 1))
}

static VISIBLE: Query = Query::new(&SEGMENT, || {
    format!(
        "SELECT creation FROM idgen.segment WHERE {} \
         OR pg_catalog.pg_has_role($1, 'pg_read_all_stats'::pg_catalog.name, 'USAGE')",
        grants::owns_or_has("$1", "drawers")
    )
});

/// The creation numbers of the tags whose statistics the current user may see.
pub fn visible_creations() -> HashSet<i64> {
    HashSet::from_iter(VISIBLE.read_latest(&[user().into()], |row| value(row, 1)))
}

/// Raises `max_id` of a row, by a refill or for draws from an uncommitted tag. The trigger announces no change then.
pub fn raise_max_id(creation: i64, max_id: i64, step: Option<i64>) {
    let query = "UPDATE idgen.segment SET max_id = GREATEST(max_id, $2), step = COALESCE($3, step) \
                 WHERE creation OPERATOR(pg_catalog.=) $1";
    let args = [creation.into(), max_id.into(), step.into()];
    IS_ALLOCATION.store(true, Relaxed);
    let write = |client: &mut SpiClient| client.update(query, None, &args).unwrap_or_else(unexpected).len();
    as_owner_of(&SEGMENT, pg_sys::RowExclusiveLock, || Spi::connect_mut(write));
    IS_ALLOCATION.store(false, Relaxed);
}

/// True in [`raise_max_id`]. An error leaves it set: callers that go on after an error clear it.
pub static IS_ALLOCATION: AtomicBool = AtomicBool::new(false);

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

/// Creates a row. False if the tag exists.
pub fn insert(tag: &str, owner: pg_sys::Oid, definition: &TagDefinition, target_duration: Interval) -> bool {
    SEGMENT.write(&INSERT, &settings(tag, Some(owner), definition, Some(target_duration))) > 0
}

/// Updates all settings of a row that the transaction has locked.
pub fn update(tag: &str, owner: Option<pg_sys::Oid>, definition: &TagDefinition, target_duration: Option<Interval>) {
    SEGMENT.write(&UPDATE, &settings(tag, owner, definition, target_duration));
}

/// The arguments of [`INSERT`] and [`UPDATE`]. The duration is the caller's: a definition has only its microseconds,
/// limited to a bigint.
fn settings<'a>(
    tag: &'a str,
    owner: Option<pg_sys::Oid>,
    definition: &TagDefinition,
    target_duration: Option<Interval>,
) -> Vec<DatumWithOid<'a>> {
    let TagDefinition { max_id, step, min_step, max_step, stride, residue, upper_bound, .. } = *definition;
    let mut args = vec![tag.into(), owner.into()];
    args.extend([max_id, step, min_step, max_step].map(Into::into));
    args.push(target_duration.into());
    args.extend([stride, residue, upper_bound].map(Into::into));
    args
}

static DELETE: Query = SEGMENT.query("DELETE FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1");

pub fn delete(tag: &str) {
    SEGMENT.write(&DELETE, &[tag.into()]);
}

fn definition(row: &SpiHeapTupleData) -> TagDefinition {
    TagDefinition {
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
