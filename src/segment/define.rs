//! Making, changing and giving away tags. Who is who is checked here; the table itself is nobody's to write.

use super::errors;
use super::row::{self, Row};
use crate::args;
use crate::pg::encoding::{Text, c_string};
use idgen_core::segment::definition::{Definition, MAX_TAG_BYTES};
use pgrx::datum::Interval;
use pgrx::prelude::*;

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
    let tag = checked_tag(tag.as_deref());
    let step = args::required(step, "step");
    let target_duration = args::required(target_duration, "target_duration");
    let definition = Definition {
        // Of the least bigint there is none below; the check says so.
        max_id: args::required(start, "start").saturating_sub(1),
        step,
        min_step: min_step.unwrap_or(step),
        max_step: max_step.unwrap_or(step.max(MAX_STEP)),
        target_us: micros(&target_duration),
        stride: args::required(stride, "stride"),
        residue: args::required(residue, "residue"),
        upper_bound: args::required(upper_bound, "upper_bound"),
    };
    definition.check_new().unwrap_or_else(|e| errors::definition(e).raise());
    if !row::insert(tag, row::user(), &definition, target_duration) {
        errors::exists(tag).raise();
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
    let now = lock_own(tag).definition;
    if let Some(wish) = max_id.filter(|wish| *wish < now.max_id) {
        errors::lowered(tag, now.max_id, wish).raise();
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
    definition.check().unwrap_or_else(|e| errors::definition(e).raise());
    let owner = owner.as_deref().map(new_owner);
    row::update(tag, owner, &definition, target_duration);
}

/// Drops a tag. One that is made again under its name begins anew.
#[pg_extern(sql = "CREATE FUNCTION segment_drop(tag text) RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn segment_drop(tag: Option<Text>) {
    let tag = args::required(tag.as_deref(), "tag");
    lock_own(tag);
    row::delete(tag);
}

/// Lets a role draw, or everybody: `public`.
#[pg_extern(sql = "CREATE FUNCTION segment_grant(tag text, role text) RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn segment_grant(tag: Option<Text>, role: Option<Text>) {
    set_drawer(tag, role, true);
}

/// Takes back what `segment_grant` gave, from the next statement of every session on.
#[pg_extern(sql = "CREATE FUNCTION segment_revoke(tag text, role text) RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn segment_revoke(tag: Option<Text>, role: Option<Text>) {
    set_drawer(tag, role, false);
}

fn set_drawer(tag: Option<Text>, role: Option<Text>, may_draw: bool) {
    let (tag, role) = (args::required(tag.as_deref(), "tag"), args::required(role.as_deref(), "role"));
    lock_own(tag);
    row::set_drawer(tag, role_or_public(role), may_draw);
}

/// Locks the row of a tag that the current user may alter, and returns it as it is under the lock.
fn lock_own(tag: &str) -> Row {
    loop {
        // A role that is not the owner neither waits for the lock nor holds it.
        require_owner(tag, &row::find(tag).unwrap_or_else(|| errors::unknown(tag).raise()));
        if let Some(row) = row::find_and_lock(tag) {
            require_owner(tag, &row);
            return row;
        }
        // Dropped during the wait. The tag may have been created again.
    }
}

fn require_owner(tag: &str, row: &Row) {
    if !row.may_alter {
        errors::not_owner(tag).raise();
    }
}

fn checked_tag(tag: Option<&str>) -> &str {
    let tag = args::required(tag, "tag");
    if !(1..=MAX_TAG_BYTES).contains(&tag.len()) {
        errors::tag_length(tag).raise();
    }
    tag
}

/// A role by its name; 0 is everybody.
fn role_or_public(name: &str) -> pg_sys::Oid {
    if name == "public" { pg_sys::InvalidOid } else { role(name) }
}

/// Not by an error of PostgreSQL's: pgrx cannot pass on its text in an encoding of several bytes.
fn role(name: &str) -> pg_sys::Oid {
    // SAFETY: a C string; looks into the system's caches.
    let role = unsafe { pg_sys::get_role_oid(c_string(name).as_ptr(), true) };
    if role == pg_sys::InvalidOid {
        errors::no_role(name).raise();
    }
    role
}

/// A role that the current user may make an owner, as with PostgreSQL's own objects: one that it is a member of.
fn new_owner(name: &str) -> pg_sys::Oid {
    let role = role(name);
    // SAFETY: as above.
    if !unsafe { pg_sys::is_member_of_role(pg_sys::GetUserId(), role) } {
        errors::not_member(name).raise();
    }
    role
}

/// The length of an interval, with months of 30 days. What is too long for a bigint is as good as for ever.
fn micros(interval: &Interval) -> i64 {
    i64::try_from(interval.as_micros()).unwrap_or(i64::MAX)
}
