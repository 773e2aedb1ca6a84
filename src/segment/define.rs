//! Creating, altering, attaching, dropping and granting segments. Users have no privileges on the table: these
//! functions check theirs.

use super::store::{self, SEGMENT};
use super::{attach, errors, workers};
use crate::args;
use crate::pg::datum::{Text, stored_len};
use crate::pg::session;
use crate::pg::spi::{self, Query, value};
use crate::settings;
use crate::shmem;
use idgen_core::segment::fleet::rows::Privilege;
use idgen_core::segment::refillers::Duty;
use idgen_core::segment::tag::{MAX_STEP, TagDefinition, TagRow, is_valid_tag_len};
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// The default of `max_step`: two cores draw ten million values in about a second. A range that lasts a tenth of that
/// can end before a busy disk has committed the next one.
const DEFAULT_MAX_STEP: i64 = 10_000_000;

/// Creates a segment that the caller owns. `start` is the lower bound of its values; `min_step` defaults to the step,
/// `max_step` to 10,000,000 or the step. Raises 42710 if it exists, 22023 for a value out of range, 22004 for other
/// arguments that are NULL.
#[pg_extern(sql = false)]
#[allow(clippy::too_many_arguments, reason = "the columns of a row")]
fn segment_create(
    tag: Option<Text>,
    start: Option<i64>,
    step: Option<i64>,
    min_step: Option<i64>,
    max_step: Option<i64>,
    target_duration: Option<Interval>,
    stride: Option<i64>,
    residue: Option<i64>,
    upper_bound: Option<i64>,
) {
    let tag = require_tag(tag.as_deref());
    let start = args::required(start, "start");
    let step = args::required(step, "step");
    let target_duration = args::required(target_duration, "target_duration");
    let definition = TagDefinition {
        // The check refuses the least bigint, which has none below it.
        max_id: start.saturating_sub(1),
        step,
        min_step: min_step.unwrap_or(step),
        max_step: max_step.unwrap_or(step.max(DEFAULT_MAX_STEP)),
        target_us: micros(&target_duration),
        stride: args::required(stride, "stride"),
        residue: args::required(residue, "residue"),
        upper_bound: args::required(upper_bound, "upper_bound"),
    };
    definition.check_new(start).unwrap_or_else(|e| errors::definition(e).raise());
    if !store::insert(tag, spi::user(), &definition, target_duration) {
        errors::exists(tag).raise();
    }
}

/// A tag that can be stored. Raises 22004 for NULL, 22023 for another length.
fn require_tag(tag: Option<&str>) -> &str {
    let tag = args::required(tag, "tag");
    let bytes = stored_len(tag);
    if !is_valid_tag_len(bytes) {
        errors::tag_length(tag, bytes).raise();
    }
    tag
}

/// Alters a segment; NULL keeps a setting. Raises 42704 if there is no such segment, 42501 unless the caller is a
/// member of its owner and of the new one, 22023 for a value out of range or a `max_id` below the current one, 55000 for the
/// numbers of a segment that is attached: the coordinator has them; and for an `upper_bound` without a `max_id` of one that was
/// detached.
#[pg_extern(sql = false)]
#[allow(clippy::too_many_arguments, reason = "the columns of a row")]
fn segment_alter(
    tag: Option<Text>,
    max_id: Option<i64>,
    step: Option<i64>,
    min_step: Option<i64>,
    max_step: Option<i64>,
    target_duration: Option<Interval>,
    stride: Option<i64>,
    residue: Option<i64>,
    upper_bound: Option<i64>,
    owner: Option<Text>,
) {
    let tag = args::required(tag.as_deref(), "tag");
    let row = lock_to_change(tag);
    let numbers = [("max_id", max_id), ("stride", stride), ("residue", residue), ("upper_bound", upper_bound)];
    let given = numbers.into_iter().find(|(_, given)| given.is_some());
    if let Some((setting, _)) = given.filter(|_| row.link.is_attached()) {
        errors::set_at_the_coordinator(tag, setting).raise();
    }
    // The values above its `max_id` are those of the fleet.
    if row.is_detached() && upper_bound.is_some() && max_id.is_none() {
        errors::detached(tag).raise();
    }
    let now = row.definition;
    if let Some(lower) = max_id.filter(|max_id| *max_id < now.max_id) {
        errors::lowered(tag, now.max_id, lower).raise();
    }
    let (least, most) = (min_step.unwrap_or(now.min_step), max_step.unwrap_or(now.max_step));
    let definition = TagDefinition {
        max_id: max_id.unwrap_or(now.max_id),
        // The step adapts by itself, so it follows its limits too.
        step: step.unwrap_or(now.step.min(most).max(least)),
        min_step: least,
        max_step: most,
        target_us: target_duration.as_ref().map_or(now.target_us, micros),
        stride: stride.unwrap_or(now.stride),
        residue: residue.unwrap_or(now.residue),
        upper_bound: upper_bound.unwrap_or(now.upper_bound),
    };
    definition.check().unwrap_or_else(|e| errors::definition(e).raise());
    let owner = owner.as_deref().map(args::new_owner);
    store::update(tag, owner, &definition, target_duration);
}

/// The row of a tag whose numbers the caller may change. They include what this transaction has drawn, if it created the tag.
/// The row itself may have a bound below that, which a savepoint has brought back.
fn lock_to_change(tag: &str) -> TagRow {
    let mut row = store::find_and_lock(tag, Privilege::Alter);
    let max_id = &mut row.definition.max_id;
    *max_id = attach::drawn_uncommitted(row.key.creation).map_or(*max_id, |drawn| drawn.max(*max_id));
    row
}

/// Drops a segment. Raises 42704 and 42501 as `segment_alter`, 22004 for NULL. A segment created later under this tag
/// has values of its own.
#[pg_extern(sql = false)]
fn segment_drop(tag: Option<Text>) {
    let tag = args::required(tag.as_deref(), "tag");
    store::find_and_lock(tag, Privilege::Alter);
    store::delete(tag);
}

/// Attaches a segment to that of the same name in the database of `idgen.coordinator`. If there is none here, creates it;
/// the caller owns it. The server fetches ahead what it draws in `reserve`, 2 seconds to 365 days. The first time,
/// the step is free from then on: `segment_alter` can limit it. An attached segment gets another reserve. Raises 22004 for NULL, 22023 for a
/// reserve or a tag that is out of range, 42501 unless the caller is a member of the owner, 55000 without
/// `idgen.coordinator`, 42P01 with older SQL objects.
#[pg_extern(sql = false)]
fn segment_attach(tag: Option<Text>, reserve: Option<Interval>) {
    let tag = require_tag(tag.as_deref());
    let reserve = args::required(reserve, "reserve");
    if !(2_000_000..=365 * 86_400_000_000).contains(&reserve.as_micros()) {
        errors::reserve_out_of_range(&reserve).raise();
    }
    if settings::coordinator().is_empty() {
        errors::no_coordinator().raise();
    }
    store::insert(tag, spi::user(), &NEW, Interval::from_seconds(1.0));
    let mut row = lock_to_change(tag);
    row.attach(session::random_i64(), micros(&reserve));
    store::link_to(&row, Some(reserve));
}

/// The definition of a tag that is created by an attachment. Its numbers are the coordinator's.
const NEW: TagDefinition = TagDefinition {
    max_id: -1,
    step: 1000,
    min_step: 1,
    max_step: MAX_STEP,
    target_us: 1_000_000,
    stride: 1,
    residue: 0,
    upper_bound: i64::MAX,
};

// The member of the extension: the schema can have other functions of this name.
static MAY_ATTACH: Query = SEGMENT.query(
    "SELECT pg_catalog.has_function_privilege($1, attach.oid, 'EXECUTE') FROM pg_catalog.pg_extension AS extension \
     JOIN pg_catalog.pg_depend AS member ON member.refobjid OPERATOR(pg_catalog.=) extension.oid \
       AND member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid \
       AND member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid \
       AND member.deptype OPERATOR(pg_catalog.=) 'e' \
     JOIN pg_catalog.pg_proc AS attach ON attach.oid OPERATOR(pg_catalog.=) member.objid \
     WHERE extension.extname OPERATOR(pg_catalog.=) 'idgen' AND attach.proname OPERATOR(pg_catalog.=) 'segment_attach'",
);

pub fn may_attach(role: pg_sys::Oid) -> bool {
    MAY_ATTACH.read_latest(&[role.into()], |row| value(row, 1)).contains(&true)
}

/// Detaches a segment. Its values stay those of the fleet, so it has none left here: `segment_alter` with another upper
/// bound lets it draw from its own row. Raises 22004 for NULL, 42704 without such a segment, 42501 unless the caller is a
/// member of its owner, 55000 if it is not attached.
#[pg_extern(sql = false)]
fn segment_detach(tag: Option<Text>) {
    let tag = args::required(tag.as_deref(), "tag");
    let mut row = lock_to_change(tag);
    if !row.link.is_attached() {
        errors::not_attached(tag).raise();
    }
    row.detach();
    // No values are left only if the row knows the last one.
    store::raise(row.key.creation, row.definition.max_id, None, None);
    store::link_to(&row, None);
    // It tells the coordinator after the commit. Without a slot for it, the next one does.
    if shmem::is_preloaded() {
        let _ = workers::summon_worker(Duty { database: session::database(), is_attached: true }, false);
    }
}

/// Lets a role draw, or `public`. As a `server`, lets it request and report for attached servers instead. Raises 42704 if
/// there is no such segment or role, 42501 unless the caller is a member of the owner, 22004 for NULL.
#[pg_extern(sql = false)]
fn segment_grant_kind(tag: Option<Text>, role: Option<Text>, server: Option<bool>) {
    set_grantee(tag, role, server, true);
}

/// Revokes what `segment_grant` granted, from the next statement that each session sends. Errors as `segment_grant`.
#[pg_extern(sql = false)]
fn segment_revoke_kind(tag: Option<Text>, role: Option<Text>, server: Option<bool>) {
    set_grantee(tag, role, server, false);
}

pub fn set_grantee(tag: Option<Text>, role: Option<Text>, server: Option<bool>, is_granted: bool) {
    let (tag, role) = (args::required(tag.as_deref(), "tag"), args::required(role.as_deref(), "role"));
    let grantees = if args::required(server, "server") { &store::SERVERS } else { &store::DRAWERS };
    store::find_and_lock(tag, Privilege::Alter);
    grantees.set_grantee(tag, args::grantee(role), is_granted);
}

/// The microseconds of an interval, with months of 30 days, limited to a bigint.
fn micros(interval: &Interval) -> i64 {
    interval.as_micros().clamp(i64::MIN.into(), i64::MAX.into()) as i64
}
