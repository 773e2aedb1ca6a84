//! The table `idgen.segment`: every query on its rows.

use super::errors;
use crate::args::{self, AclTable};
use crate::pg::session::{Replaced, database};
use crate::pg::spi::{ExtensionTable, Query, micros, optional, optional_text, role_name, text, user, value};
use crate::pg::xact;
use idgen_core::segment::TagKey;
use idgen_core::segment::fleet::rows::Privilege;
use idgen_core::segment::tag::{Link, NotLocked, TagDefinition, TagRow};
use pgrx::datum::{DatumWithOid, Interval};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

pub static SEGMENT: ExtensionTable = ExtensionTable::new(c"segment");

/// The grantees may draw.
pub static DRAWERS: AclTable = AclTable { table: &SEGMENT, key: "tag", lock_order: "tag", grantees: "drawers" };

/// At a coordinator: the grantees may request and report for attached servers.
pub static SERVERS: AclTable = AclTable { grantees: "servers", ..DRAWERS };

/// The row of a tag, and what the current user may do with it.
#[derive(Clone, Debug)]
pub struct FoundTag {
    pub row: TagRow,
    /// Changed by the running transaction: other sessions see the old row.
    pub changed_here: bool,
    pub may_draw: bool,
    /// At a coordinator, for attached servers.
    pub may_serve: bool,
    pub may_alter: bool,
}

/// The columns that [`found`] and [`stored`] read.
fn columns() -> String {
    format!(
        "creation, version, max_id, stride, residue, upper_bound, created_in, changed_in, step, min_step, max_step, {}, \
         server, CASE WHEN reserve IS NOT NULL THEN {} END, source, history, received, tag",
        micros("target_duration"),
        micros("reserve")
    )
}

/// False with the SQL of 0.14.0 and 0.14.1, where roles that may draw may also act as servers.
pub fn has_servers() -> bool {
    SEGMENT.has_column(c"servers")
}

/// Without the column `servers`, and with it.
static FIND: [Query; 2] =
    [Query::new(&SEGMENT, || by_tag("drawers", "")), Query::new(&SEGMENT, || by_tag("servers", ""))];

/// As [`FIND`].
static LOCK_BY_TAG: [Query; 2] =
    [Query::new(&SEGMENT, || by_tag_to_lock("drawers")), Query::new(&SEGMENT, || by_tag_to_lock("servers"))];

/// With the privilege to serve if $3 is true, otherwise to alter.
fn by_tag_to_lock(servers: &str) -> String {
    let may_serve = args::owns_or_has("$2", servers);
    by_tag(servers, &format!("AND CASE WHEN $3 THEN {may_serve} ELSE {IS_OWNER} END {FOR_CHANGES}"))
}

const IS_OWNER: &str = "pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE')";
const FOR_CHANGES: &str = "FOR NO KEY UPDATE";

fn by_tag(servers: &str, locking: &str) -> String {
    format!(
        "SELECT {}, {}, {}, {IS_OWNER} FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1 {locking}",
        columns(),
        args::owns_or_has("$2", "drawers"),
        args::owns_or_has("$2", servers)
    )
}

/// The row of a tag as it is now. The transaction's snapshot may still show a tag that was dropped, whose values must
/// not be drawn.
pub fn find(tag: &str) -> Option<FoundTag> {
    FIND[usize::from(has_servers())].read_latest(&[tag.into(), user().into()], found).pop()
}

/// As [`find`], and locks the row against changes and refills until the transaction ends. Waits for a transaction that
/// has changed it. A role without the privilege neither waits for the lock nor holds it. Raises 42501 then, 42704 if there is
/// no such tag, and 22023 if none can exist.
pub fn find_and_lock(tag: &str, privilege: Privilege) -> TagRow {
    SEGMENT.refuse_during_recovery();
    let args = [tag.into(), user().into(), (privilege == Privilege::Serve).into()];
    loop {
        if let Some(row) = LOCK_BY_TAG[usize::from(has_servers())].write_losable(&args, stored).pop() {
            return row;
        }
        let found = find(tag).unwrap_or_else(|| errors::missing(tag).raise());
        match privilege {
            Privilege::Alter if !found.may_alter => errors::not_owner(tag).raise(),
            Privilege::Serve if !found.may_serve => errors::may_not_serve(tag, &role_name(user())).raise(),
            // It was dropped during the wait, and created again.
            _ => {}
        }
    }
}

fn found(row: &SpiHeapTupleData) -> FoundTag {
    FoundTag {
        row: stored(row),
        changed_here: is_own(value(row, 8)),
        may_draw: value(row, 19),
        may_serve: value(row, 20),
        may_alter: value(row, 21),
    }
}

fn is_own(transaction: i64) -> bool {
    // Rows from a dump may have 0.
    xact::id_if_any() == Some(transaction)
}

fn stored(row: &SpiHeapTupleData) -> TagRow {
    TagRow {
        key: TagKey { database: database(), creation: value(row, 1) },
        tag: text(row, 18),
        version: value(row, 2),
        created_here: is_own(value(row, 7)),
        definition: TagDefinition {
            max_id: value(row, 3),
            step: value(row, 9),
            min_step: value(row, 10),
            max_step: value(row, 11),
            target_us: value(row, 12),
            stride: value(row, 4),
            residue: value(row, 5),
            upper_bound: value(row, 6),
        },
        link: Link {
            server: optional(row, 13),
            reserve_us: optional(row, 14),
            source: optional_text(row, 15),
            history: optional_text(row, 16),
            received: optional(row, 17),
        },
    }
}

static LOCK: Query = Query::new(&SEGMENT, || by_creation_to_lock(""));
static LOCK_UNLESS_BUSY: Query = Query::new(&SEGMENT, || by_creation_to_lock("SKIP LOCKED"));

fn by_creation_to_lock(waiting: &str) -> String {
    format!("SELECT {} FROM idgen.segment WHERE creation OPERATOR(pg_catalog.=) $1 {FOR_CHANGES} {waiting}", columns())
}

static TAG: Query = SEGMENT.query("SELECT tag FROM idgen.segment WHERE creation OPERATOR(pg_catalog.=) $1");

/// `None` if there is no such row.
fn tag_of(creation: i64) -> Option<String> {
    TAG.read_latest(&[creation.into()], |row| text(row, 1)).pop()
}

pub fn await_lock(creation: i64) -> Option<TagRow> {
    SEGMENT.refuse_during_recovery();
    LOCK.write_losable(&[creation.into()], stored).pop()
}

pub fn lock(creation: i64) -> Result<TagRow, NotLocked> {
    if SEGMENT.find().is_none() {
        return Err(NotLocked::Gone);
    }
    let locked = LOCK_UNLESS_BUSY.write_losable(&[creation.into()], stored).pop();
    locked.ok_or_else(|| if tag_of(creation).is_some() { NotLocked::Busy } else { NotLocked::Gone })
}

static VISIBLE: Query = Query::new(&SEGMENT, || format!("SELECT creation FROM idgen.segment WHERE {}", is_visible()));

/// The statistics of a row are shown to the role $1.
fn is_visible() -> String {
    format!(
        "({} OR pg_catalog.pg_has_role($1, 'pg_read_all_stats'::pg_catalog.name, 'USAGE'))",
        args::owns_or_has("$1", "drawers")
    )
}

/// The creation numbers of the tags whose statistics the current user may see.
pub fn visible_creations() -> HashSet<i64> {
    HashSet::from_iter(VISIBLE.read_latest(&[user().into()], |row| value(row, 1)))
}

static TAGS: Query = Query::new(&SEGMENT, || {
    format!(
        "SELECT tag FROM idgen.segment WHERE creation OPERATOR(pg_catalog.=) ANY ($2) AND {} ORDER BY tag",
        is_visible()
    )
});

/// Those of the tags with these creation numbers whose statistics the current user may see.
pub fn visible_tags(creations: Vec<i64>) -> Vec<String> {
    TAGS.read_latest(&[user().into(), creations.into()], |row| text(row, 1))
}

static NEAR_BOUNDS: Query = Query::new(&SEGMENT, || {
    // The values of an attached segment are the coordinator's.
    format!(
        "SELECT {} FROM idgen.segment \
         WHERE max_id OPERATOR(pg_catalog.>=) (upper_bound OPERATOR(pg_catalog.-) (upper_bound OPERATOR(pg_catalog./) 10)) \
           AND reserve IS NULL AND {} ORDER BY tag",
        columns(),
        is_visible()
    )
});

/// The segments of this database in the last tenth of the numbers up to their upper bound that the current user may see. No row
/// knows where its segment began, so one that began there is among them.
pub fn near_bounds() -> Vec<TagRow> {
    NEAR_BOUNDS.read_latest(&[user().into()], stored)
}

static RAISE: Query = SEGMENT.query(
    "UPDATE idgen.segment SET max_id = GREATEST(max_id, $2), step = COALESCE($3, step), history = COALESCE($4, history) \
     WHERE creation OPERATOR(pg_catalog.=) $1 RETURNING max_id, version",
);

/// Raises `max_id` of a row: by a refill, for draws from an uncommitted tag, or for attached servers, under this history.
pub fn raise(creation: i64, max_id: i64, step: Option<i64>, history: Option<&str>) {
    allocate(&RAISE, creation, max_id, &[creation.into(), max_id.into(), step.into(), history.into()]);
}

/// Runs a query that raises `max_id` of a row to this value, and that returns `max_id` and the version. The trigger of the table
/// announces no change of `max_id` then. Returns the version; `None` without such a row.
///
/// Every allocation passes here. Raises 55000 if another trigger has kept the row as it was: the values would be taken twice.
pub fn allocate(query: &Query, creation: i64, max_id: i64, args: &[DatumWithOid]) -> Option<i64> {
    SEGMENT.refuse_during_recovery();
    let written = {
        // Also an error ends this: the session may go on, and write other rows.
        // SAFETY: a variable of this process.
        let _allocation = unsafe { Replaced::new(IS_ALLOCATION.as_ptr(), true) };
        query.write_latest(args, |row| (value::<i64>(row, 1), value(row, 2))).pop()
    };
    match written {
        Some((raised, version)) if raised >= max_id => Some(version),
        _ => tag_of(creation).map(|tag| errors::not_raised(&tag).raise()),
    }
}

pub static IS_ALLOCATION: AtomicBool = AtomicBool::new(false);

static ATTACHED: Query = Query::new(&SEGMENT, || {
    format!("SELECT {} FROM idgen.segment WHERE reserve IS NOT NULL OR received IS NOT NULL ORDER BY tag", columns())
});

/// The attached tags of this database, and those whose coordinator has to hear that they are not any more.
pub fn attached() -> Vec<TagRow> {
    SEGMENT.find().map_or_else(Vec::new, |_| ATTACHED.read_latest(&[], stored))
}

static SHARED: Query = Query::new(&SEGMENT, || {
    format!("SELECT {} FROM idgen.segment WHERE history IS NOT NULL AND {} ORDER BY tag", columns(), is_visible())
});

/// The tags that servers have been attached to, those that the current user may see.
pub fn shared() -> Vec<TagRow> {
    SHARED.read_latest(&[user().into()], stored)
}

static FORGET: Query = SEGMENT.query(
    "UPDATE idgen.segment SET received = NULL WHERE creation OPERATOR(pg_catalog.=) $1 \
     AND server OPERATOR(pg_catalog.=) $2",
);

/// The coordinator has heard that a tag was detached.
pub fn forget(creation: i64, server: i64) {
    SEGMENT.write(&FORGET, &[creation.into(), server.into()]);
}

static RECORD: Query = SEGMENT.query(
    "UPDATE idgen.segment SET max_id = $2, source = $3, stride = $4, residue = $5, step = $6 \
     WHERE creation OPERATOR(pg_catalog.=) $1 RETURNING max_id, version",
);

/// Writes what an attached tag has received, in its row that is locked. Returns the version.
pub fn record(row: &TagRow) -> Option<i64> {
    let TagDefinition { max_id, stride, residue, step, .. } = row.definition;
    let source = row.link.source.as_deref();
    let args = [row.key.creation.into(), max_id.into(), source.into(), stride.into(), residue.into(), step.into()];
    allocate(&RECORD, row.key.creation, max_id, &args)
}

static LINK: Query = SEGMENT.query(
    "UPDATE idgen.segment SET server = $2, reserve = $3, source = $4, received = $5, min_step = $6, max_step = $7, \
       upper_bound = $8 \
     WHERE creation OPERATOR(pg_catalog.=) $1",
);

/// Writes the row of a tag that was attached or detached, which is locked. The reserve is the caller's.
pub fn link_to(row: &TagRow, reserve: Option<Interval>) {
    let TagRow { key, definition, link, .. } = row;
    let (server, source, received) = (link.server.into(), link.source.as_deref().into(), link.received.into());
    let TagDefinition { min_step, max_step, upper_bound, .. } = *definition;
    let [least, most, bound] = [min_step, max_step, upper_bound].map(Into::into);
    SEGMENT.write(&LINK, &[key.creation.into(), server, reserve.into(), source, received, least, most, bound]);
}

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
