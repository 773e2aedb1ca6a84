//! Making, changing and giving away tags. Who is who is checked here; the table itself is nobody's to write.

use super::row::{self, Row};
use crate::error;
use idgen_core::segment::definition::{Definition, MAX_TAG_BYTES};
use pgrx::datum::Interval;
use pgrx::prelude::*;
use std::ffi::CString;

/// The step that a busy tag may grow to, unless the tag says otherwise: ten million last about a second where as many are
/// drawn as two cores can draw. A range that lasts a tenth of that ends before a disk under load has committed the next.
const MAX_STEP: i64 = 10_000_000;

/// Makes a tag; the caller owns it. `start` is the least value it may hand out.
#[pg_extern(sql = "CREATE FUNCTION segment_create(tag text, start bigint DEFAULT 1, step bigint DEFAULT 1000, \
           min_step bigint DEFAULT NULL, max_step bigint DEFAULT NULL, target_duration interval DEFAULT '1 second', \
           stride bigint DEFAULT 1, residue bigint DEFAULT 0, upper_bound bigint DEFAULT 9223372036854775807) \
           RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
#[allow(clippy::too_many_arguments, reason = "the columns of a row")]
fn segment_create(
    tag: Option<&str>,
    start: Option<i64>,
    step: Option<i64>,
    min_step: Option<i64>,
    max_step: Option<i64>,
    target_duration: Option<Interval>,
    stride: Option<i64>,
    residue: Option<i64>,
    upper_bound: Option<i64>,
) {
    let tag = checked_tag(tag);
    let step = required(step, "step");
    let target_duration = required(target_duration, "target_duration");
    let definition = Definition {
        // Of the least bigint there is none below; the check says so.
        max_id: required(start, "start").saturating_sub(1),
        step,
        min_step: min_step.unwrap_or(step),
        max_step: max_step.unwrap_or(step.max(MAX_STEP)),
        target_us: micros(&target_duration),
        stride: required(stride, "stride"),
        residue: required(residue, "residue"),
        upper_bound: required(upper_bound, "upper_bound"),
    };
    definition.check_new().unwrap_or_else(|e| error::segment::definition(e).raise());
    let query = format!(
        "INSERT INTO idgen.segment (tag, owner, {SETTINGS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
         ON CONFLICT (tag) DO NOTHING"
    );
    // SAFETY: reads this process's own state.
    let user = unsafe { pg_sys::GetUserId() };
    if write(&query, tag, Some(user), &definition, Some(target_duration)) == 0 {
        error::segment::exists(tag).raise();
    }
}

/// Changes a tag: what is not given stays. `max_id` goes forward only.
#[pg_extern(sql = "CREATE FUNCTION segment_alter(tag text, max_id bigint DEFAULT NULL, step bigint DEFAULT NULL, \
           min_step bigint DEFAULT NULL, max_step bigint DEFAULT NULL, target_duration interval DEFAULT NULL, \
           stride bigint DEFAULT NULL, residue bigint DEFAULT NULL, upper_bound bigint DEFAULT NULL, \
           owner text DEFAULT NULL) \
           RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
#[allow(clippy::too_many_arguments, reason = "the columns of a row")]
fn segment_alter(
    tag: Option<&str>,
    max_id: Option<i64>,
    step: Option<i64>,
    min_step: Option<i64>,
    max_step: Option<i64>,
    target_duration: Option<Interval>,
    stride: Option<i64>,
    residue: Option<i64>,
    upper_bound: Option<i64>,
    owner: Option<&str>,
) {
    let tag = required(tag, "tag");
    let now = own(tag).definition;
    if let Some(wish) = max_id.filter(|wish| *wish < now.max_id) {
        error::segment::lowered(tag, now.max_id, wish).raise();
    }
    let (least, most) = (min_step.unwrap_or(now.min_step), max_step.unwrap_or(now.max_step));
    let definition = Definition {
        max_id: max_id.unwrap_or(now.max_id),
        // The step moves by itself, so it moves with its limits too.
        step: step.unwrap_or(now.step.min(most).max(least)),
        min_step: least,
        max_step: most,
        target_us: target_duration.as_ref().map_or(now.target_us, micros),
        stride: stride.unwrap_or(now.stride),
        residue: residue.unwrap_or(now.residue),
        upper_bound: upper_bound.unwrap_or(now.upper_bound),
    };
    definition.check().unwrap_or_else(|e| error::segment::definition(e).raise());
    let owner = owner.map(new_owner);
    // `max_id` may have risen by a refill since it was looked at.
    let query = format!(
        "UPDATE idgen.segment SET ({SETTINGS}, owner) = (SELECT GREATEST(max_id, $3), $4, $5, $6, \
         COALESCE($7, target_duration), $8, $9, $10, COALESCE($2, owner)) WHERE tag OPERATOR(pg_catalog.=) $1"
    );
    write(&query, tag, owner, &definition, target_duration);
}

/// Drops a tag. One that is made again under its name begins anew.
#[pg_extern(sql = "CREATE FUNCTION segment_drop(tag text) RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn segment_drop(tag: Option<&str>) {
    let tag = required(tag, "tag");
    own(tag);
    row::write("DELETE FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1", &[tag.into()]);
}

/// Lets a role draw, or everybody: `public`.
#[pg_extern(sql = "CREATE FUNCTION segment_grant(tag text, role text) RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn segment_grant(tag: Option<&str>, role: Option<&str>) {
    set_drawers(
        tag,
        role,
        "UPDATE idgen.segment SET drawers = pg_catalog.array_append(drawers, $2::pg_catalog.oid::pg_catalog.regrole) \
         WHERE tag OPERATOR(pg_catalog.=) $1 \
         AND $2::pg_catalog.oid OPERATOR(pg_catalog.<>) ALL (drawers::pg_catalog.oid[])",
    );
}

/// Takes back what `segment_grant` gave, from the next statement of every session on.
#[pg_extern(sql = "CREATE FUNCTION segment_revoke(tag text, role text) RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn segment_revoke(tag: Option<&str>, role: Option<&str>) {
    set_drawers(
        tag,
        role,
        "UPDATE idgen.segment SET drawers = pg_catalog.array_remove(drawers, $2::pg_catalog.oid::pg_catalog.regrole) \
         WHERE tag OPERATOR(pg_catalog.=) $1 \
         AND $2::pg_catalog.oid OPERATOR(pg_catalog.=) ANY (drawers::pg_catalog.oid[])",
    );
}

fn set_drawers(tag: Option<&str>, role: Option<&str>, query: &str) {
    let (tag, role) = (required(tag, "tag"), required(role, "role"));
    own(tag);
    // As a bigint, because 0 as an oid would become NULL on its way.
    row::write(query, &[tag.into(), i64::from(role_or_public(role).to_u32()).into()]);
}

/// The columns that a definition sets.
const SETTINGS: &str = "max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound";

/// The duration apart, and as it was given: a definition has its microseconds only, and not even those of a very long one.
fn write(
    query: &str,
    tag: &str,
    owner: Option<pg_sys::Oid>,
    definition: &Definition,
    target_duration: Option<Interval>,
) -> usize {
    let Definition { max_id, step, min_step, max_step, stride, residue, upper_bound, .. } = *definition;
    let mut args = vec![tag.into(), owner.into()];
    args.extend([max_id, step, min_step, max_step].map(Into::into));
    args.push(target_duration.into());
    args.extend([stride, residue, upper_bound].map(Into::into));
    row::write(query, &args)
}

/// The row of a tag that the current user may alter.
fn own(tag: &str) -> Row {
    let row = row::find(tag).unwrap_or_else(|| error::segment::unknown(tag).raise());
    if !row.may_alter {
        error::segment::not_owner(tag).raise();
    }
    row
}

fn checked_tag(tag: Option<&str>) -> &str {
    let tag = required(tag, "tag");
    if !(1..=MAX_TAG_BYTES).contains(&tag.len()) {
        error::segment::tag_length(tag).raise();
    }
    tag
}

fn required<T>(value: Option<T>, name: &str) -> T {
    value.unwrap_or_else(|| error::null_argument(name).raise())
}

/// A role by its name; 0 is everybody. PostgreSQL raises when there is none.
fn role_or_public(name: &str) -> pg_sys::Oid {
    let text = CString::new(name).unwrap_or_default();
    // SAFETY: a C string; looks into the system's caches.
    unsafe { pg_sys::get_role_oid_or_public(text.as_ptr()) }
}

/// A role that the current user may make an owner, as with PostgreSQL's own objects: one that he is a member of.
fn new_owner(name: &str) -> pg_sys::Oid {
    let text = CString::new(name).unwrap_or_default();
    // SAFETY: as above.
    let (role, may) = unsafe {
        let role = pg_sys::get_role_oid(text.as_ptr(), false);
        (role, pg_sys::is_member_of_role(pg_sys::GetUserId(), role))
    };
    if !may {
        error::segment::not_member(name).raise();
    }
    role
}

/// The length of an interval, with months of 30 days. What is too long for a bigint is as good as for ever.
fn micros(interval: &Interval) -> i64 {
    i64::try_from(interval.as_micros()).unwrap_or(i64::MAX)
}
