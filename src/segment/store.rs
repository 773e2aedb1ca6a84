//! The table `idgen.segment`: every query on its rows.

use super::errors;
use super::fleet::errors as fleet_errors;
use crate::args::{self, AclTable};
use crate::pg::datum::Text;
use crate::pg::session::{Replaced, database};
use crate::pg::spi::{ExtensionTable, Query, optional, role_name, text, user, value};
use crate::pg::xact;
use idgen_core::segment::TagKey;
use idgen_core::segment::tag::TagDefinition;
use pgrx::datum::{DatumWithOid, Interval};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

/// One row for each tag.
pub static SEGMENT: ExtensionTable = ExtensionTable::new(c"segment");

/// The grantees may draw.
pub static DRAWERS: AclTable = AclTable { table: &SEGMENT, key: "tag", lock_order: "tag", grantees: "drawers" };

/// At a coordinator: the grantees may request and report for attached servers.
pub static SERVERS: AclTable = AclTable { grantees: "servers", ..DRAWERS };

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
    /// At a coordinator, for attached servers.
    pub may_serve: bool,
    pub may_alter: bool,
    pub definition: TagDefinition,
    pub link: Link,
}

/// The columns of a tag that is attached to a coordinator's, or was.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// The coordinator knows this server by this number. Stays after a detachment: a coordinator that falls back to an
    /// earlier state still knows it, and a tag that is attached again must report under it.
    pub server: Option<i64>,
    /// `None` unless the tag is attached.
    pub reserve_us: Option<i64>,
    /// The coordinator's tag that the last values came from. Empty if the tag was attached without ever having values.
    pub source: Option<String>,
    /// At a coordinator: the history under which the tag was last shared. Empty if that is not known.
    pub history: Option<String>,
    /// The highest value of the coordinator, while it has not heard that the tag was detached. Until it has, a tag that is
    /// attached again reports and receives nothing: its own values would look like grants that the coordinator has lost.
    pub received: Option<i64>,
}

/// The coordinator's tag.
pub struct Origin {
    /// Identifies it and its definition.
    pub source: String,
    pub stride: i64,
    pub residue: i64,
}

impl TagRow {
    /// True if the tag was attached, and has no values of its own since.
    pub fn is_detached(&self) -> bool {
        let TagDefinition { max_id, upper_bound, .. } = self.definition;
        self.link.source.is_some() && !self.link.is_attached() && max_id == upper_bound
    }
}

impl Link {
    pub fn is_attached(&self) -> bool {
        self.reserve_us.is_some()
    }

    /// True if values are asked for one by one only. Then they rise over all servers.
    pub fn is_in_order(&self, definition: &TagDefinition) -> bool {
        self.is_attached() && definition.max_step == 1
    }
}

/// The row of a tag, for the workers.
#[derive(Clone, Debug)]
pub struct StoredTag {
    pub key: TagKey,
    pub tag: String,
    pub version: i64,
    pub definition: TagDefinition,
    pub link: Link,
}

/// Why a row was not locked.
pub enum NotLocked {
    /// Another transaction has locked it.
    Busy,
    Gone,
}

/// The columns that [`tag_row`] and [`stored`] read.
fn columns() -> String {
    let [target_us, reserve_us] = ["target_duration", "reserve"].map(micros);
    format!(
        "creation, version, max_id, stride, residue, upper_bound, created_in, changed_in, step, min_step, max_step, \
         {target_us}, server, {reserve_us}, source, history, received, tag"
    )
}

/// A duration in microseconds. One beyond a bigint is shortened to the longest one.
fn micros(interval: &str) -> String {
    format!(
        "CASE WHEN {interval} IS NOT NULL THEN LEAST(pg_catalog.extract('epoch', {interval}) OPERATOR(pg_catalog.*) 1000000, \
                                                     9223372036854775807)::bigint END"
    )
}

/// False with the SQL of 0.14.0 and 0.14.1, where roles that may draw may also act as servers.
pub fn has_servers() -> bool {
    SEGMENT.has_column(c"servers")
}

/// Without the column `servers`, and with it.
static FIND: [Query; 2] =
    [Query::new(&SEGMENT, || by_tag("drawers", "")), Query::new(&SEGMENT, || by_tag("servers", ""))];

/// What a caller that locks the row of a tag must be allowed to do.
#[derive(Clone, Copy)]
pub enum Privilege {
    Alter,
    Serve,
}

/// As [`FIND`].
static LOCK_TO_ALTER: [Query; 2] = [
    Query::new(&SEGMENT, || by_tag_to_lock("drawers", Privilege::Alter)),
    Query::new(&SEGMENT, || by_tag_to_lock("servers", Privilege::Alter)),
];
static LOCK_TO_SERVE: [Query; 2] = [
    Query::new(&SEGMENT, || by_tag_to_lock("drawers", Privilege::Serve)),
    Query::new(&SEGMENT, || by_tag_to_lock("servers", Privilege::Serve)),
];

fn by_tag_to_lock(servers: &str, privilege: Privilege) -> String {
    let may = match privilege {
        Privilege::Alter => "pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE')".to_owned(),
        Privilege::Serve => args::owns_or_has("$2", servers),
    };
    by_tag(servers, &format!("AND {may} {FOR_CHANGES}"))
}

const FOR_CHANGES: &str = "FOR NO KEY UPDATE";

fn by_tag(servers: &str, locking: &str) -> String {
    format!(
        "SELECT {}, {}, {}, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') \
         FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1 {locking}",
        columns(),
        args::owns_or_has("$2", "drawers"),
        args::owns_or_has("$2", servers)
    )
}

/// The row of a tag as it is now. The transaction's snapshot may still show a tag that was dropped, whose values must
/// not be drawn.
pub fn find(tag: &str) -> Option<TagRow> {
    FIND[usize::from(has_servers())].read_latest(&[tag.into(), user().into()], tag_row).pop()
}

/// As [`find`], and locks the row against changes and refills until the transaction ends. Waits for a transaction that
/// has changed it. A role without the privilege neither waits for the lock nor holds it. Raises 42501 then, and 42704 if there
/// is no such tag.
pub fn find_and_lock(tag: &str, privilege: Privilege) -> TagRow {
    SEGMENT.refuse_during_recovery();
    let queries = match privilege {
        Privilege::Alter => &LOCK_TO_ALTER,
        Privilege::Serve => &LOCK_TO_SERVE,
    };
    loop {
        let found = queries[usize::from(has_servers())].write_losable(&[tag.into(), user().into()], tag_row).pop();
        if let Some(row) = found {
            return row;
        }
        let row = find(tag).unwrap_or_else(|| errors::unknown(tag).raise());
        match privilege {
            Privilege::Alter if !row.may_alter => errors::not_owner(tag).raise(),
            Privilege::Serve if !row.may_serve => fleet_errors::may_not_serve(tag, &role_name(user())).raise(),
            // It was dropped during the wait, and created again.
            _ => {}
        }
    }
}

fn tag_row(row: &SpiHeapTupleData) -> TagRow {
    let is_here = |transaction: i64| transaction == xact::id_if_any();
    TagRow {
        key: TagKey { database: database(), creation: value(row, 1) },
        version: value(row, 2),
        created_here: is_here(value(row, 7)),
        changed_here: is_here(value(row, 8)),
        may_draw: value(row, 19),
        may_serve: value(row, 20),
        may_alter: value(row, 21),
        definition: definition(row),
        link: link(row),
    }
}

fn link(row: &SpiHeapTupleData) -> Link {
    let [source, history] = [15, 16].map(|column| optional::<Text>(row, column).map(String::from));
    Link { server: optional(row, 13), reserve_us: optional(row, 14), source, history, received: optional(row, 17) }
}

fn stored(row: &SpiHeapTupleData) -> StoredTag {
    StoredTag {
        key: TagKey { database: database(), creation: value(row, 1) },
        tag: text(row, 18),
        version: value(row, 2),
        definition: definition(row),
        link: link(row),
    }
}

static LOCK_UNLESS_BUSY: Query = Query::new(&SEGMENT, || {
    format!(
        "SELECT {} FROM idgen.segment WHERE creation OPERATOR(pg_catalog.=) $1 {FOR_CHANGES} SKIP LOCKED",
        columns()
    )
});

static EXISTS: Query = SEGMENT.query("SELECT FROM idgen.segment WHERE creation OPERATOR(pg_catalog.=) $1");

/// Locks a row for a refill, if no other transaction has locked it.
pub fn lock(creation: i64) -> Result<StoredTag, NotLocked> {
    let locked = LOCK_UNLESS_BUSY.write_losable(&[creation.into()], stored).pop();
    locked.ok_or_else(|| {
        let exists = !EXISTS.read_latest(&[creation.into()], |_| ()).is_empty();
        if exists { NotLocked::Busy } else { NotLocked::Gone }
    })
}

static VISIBLE: Query = Query::new(&SEGMENT, || format!("SELECT creation FROM idgen.segment WHERE {}", is_visible()));

/// The statistics of a row are shown to the role $1.
pub fn is_visible() -> String {
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

/// A segment with at most a tenth of its values left.
pub struct NearBound {
    pub tag: String,
    pub creation: i64,
    pub upper_bound: i64,
    /// Values that no refill has taken yet.
    pub left: u64,
}

static NEAR_BOUNDS: Query = Query::new(&SEGMENT, || {
    // The values of an attached segment are the coordinator's.
    format!(
        "SELECT tag, creation, upper_bound, (upper_bound OPERATOR(pg_catalog.-) max_id) OPERATOR(pg_catalog./) stride AS left \
         FROM idgen.segment \
         WHERE max_id OPERATOR(pg_catalog.>=) (upper_bound OPERATOR(pg_catalog.-) (upper_bound OPERATOR(pg_catalog./) 10)) \
           AND source IS NULL AND {} ORDER BY 4, tag",
        is_visible()
    )
});

/// Those of this database that the current user may see, the one with fewest values first.
pub fn near_bounds() -> Vec<NearBound> {
    let read = |row: &SpiHeapTupleData| NearBound {
        tag: text(row, 1),
        creation: value(row, 2),
        upper_bound: value(row, 3),
        left: value::<i64>(row, 4) as u64,
    };
    NEAR_BOUNDS.read_latest(&[user().into()], read)
}

static RAISE: Query = SEGMENT.query(
    "UPDATE idgen.segment SET max_id = GREATEST(max_id, $2), step = COALESCE($3, step) \
     WHERE creation OPERATOR(pg_catalog.=) $1",
);

/// Raises `max_id` of a row, by a refill or for draws from an uncommitted tag. The trigger announces no change then.
pub fn raise_max_id(creation: i64, max_id: i64, step: Option<i64>) {
    as_allocation(|| SEGMENT.write(&RAISE, &[creation.into(), max_id.into(), step.into()]));
}

static SHARE: Query = SEGMENT.query(
    "UPDATE idgen.segment SET max_id = GREATEST(max_id, $2), history = $3 WHERE creation OPERATOR(pg_catalog.=) $1",
);

/// As [`raise_max_id`], of a tag that servers are attached to.
pub fn share(creation: i64, max_id: i64, history: Option<&str>) {
    as_allocation(|| SEGMENT.write(&SHARE, &[creation.into(), max_id.into(), history.into()]));
}

static ATTACHED: Query = Query::new(&SEGMENT, || {
    format!("SELECT {} FROM idgen.segment WHERE reserve IS NOT NULL OR received IS NOT NULL ORDER BY tag", columns())
});

/// The attached tags of this database, and those whose coordinator has to hear that they are not any more.
pub fn attached() -> Vec<StoredTag> {
    ATTACHED.read_latest(&[], stored)
}

static LEFT: Query = SEGMENT.query(
    "UPDATE idgen.segment SET received = NULL WHERE creation OPERATOR(pg_catalog.=) $1 \
     AND server OPERATOR(pg_catalog.=) $2",
);

/// The coordinator has heard that a tag was detached.
pub fn leave(creation: i64, server: i64) {
    SEGMENT.write(&LEFT, &[creation.into(), server.into()]);
}

static RECEIVE: Query = SEGMENT.query(
    "UPDATE idgen.segment SET max_id = GREATEST(max_id, $3), source = $4, stride = $5, residue = $6, step = $7 \
     WHERE creation OPERATOR(pg_catalog.=) $1 AND server OPERATOR(pg_catalog.=) $2 AND reserve IS NOT NULL \
       AND received IS NULL RETURNING version",
);

/// Records values that an attached tag has received: the last one, where they come from, and how many were asked for.
/// Returns the version of the row; `None` if the tag was dropped or detached, also if it was attached again since.
pub fn receive(creation: i64, server: i64, last: i64, origin: &Origin, step: i64) -> Option<i64> {
    let (source, stride, residue) = (origin.source.as_str().into(), origin.stride.into(), origin.residue.into());
    let args = [creation.into(), server.into(), last.into(), source, stride, residue, step.into()];
    SEGMENT.refuse_during_recovery();
    as_allocation(|| RECEIVE.write_latest(&args, |row| value(row, 1)).pop())
}

/// The trigger announces no change of `max_id` then. Also an error ends that: the session may go on, and write other rows.
pub fn as_allocation<R>(write: impl FnOnce() -> R) -> R {
    // SAFETY: a variable of this process.
    let _allocation = unsafe { Replaced::new(IS_ALLOCATION.as_ptr(), true) };
    write()
}

/// True in [`as_allocation`].
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
