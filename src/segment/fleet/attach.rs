//! Attaching a tag to that of the same name at the coordinator, and detaching it.

use super::errors;
use crate::pg::spi::{Query, value};
use crate::pg::{datum::Text, session, spi};
use crate::segment::define::{lock_owned, require_tag};
use crate::segment::demand;
use crate::segment::store::{self, SEGMENT};
use crate::{args, settings, shmem};
use idgen_core::segment::refillers::Duty;
use idgen_core::segment::tag::{MAX_STEP, TagDefinition};
use pgrx::datum::Interval;
use pgrx::prelude::*;

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
    lock_owned(tag);
    SEGMENT.write(&ATTACH, &[tag.into(), session::random_i64().into(), reserve.into(), MAX_STEP.into()]);
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

static ATTACH: Query = SEGMENT.query(
    "UPDATE idgen.segment SET reserve = $3, server = COALESCE(server, $2), \
       source = CASE WHEN reserve IS NOT NULL THEN source END, \
       min_step = CASE WHEN reserve IS NULL AND source IS NULL THEN 1 ELSE min_step END, \
       max_step = CASE WHEN reserve IS NULL AND source IS NULL THEN $4 ELSE max_step END, \
       upper_bound = 9223372036854775807 \
     WHERE tag OPERATOR(pg_catalog.=) $1",
);

// The member of the extension: the schema can have other functions of this name.
static IS_ALLOWED: Query = SEGMENT.query(
    "SELECT pg_catalog.has_function_privilege($1, attach.oid, 'EXECUTE') FROM pg_catalog.pg_extension AS extension \
     JOIN pg_catalog.pg_depend AS member ON member.refobjid OPERATOR(pg_catalog.=) extension.oid \
       AND member.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid \
       AND member.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid \
       AND member.deptype OPERATOR(pg_catalog.=) 'e' \
     JOIN pg_catalog.pg_proc AS attach ON attach.oid OPERATOR(pg_catalog.=) member.objid \
     WHERE extension.extname OPERATOR(pg_catalog.=) 'idgen' AND attach.proname OPERATOR(pg_catalog.=) 'segment_attach'",
);

/// True if a role may attach segments.
pub fn is_allowed(role: pg_sys::Oid) -> bool {
    IS_ALLOWED.read_latest(&[role.into()], |row| value(row, 1)).contains(&true)
}

/// Detaches a segment. Its values stay those of the fleet, so it has none left here: `segment_alter` with another upper
/// bound lets it draw from its own row. Raises 22004 for NULL, 42704 without such a segment, 42501 unless the caller is a
/// member of its owner, 55000 if it is not attached.
#[pg_extern(sql = false)]
fn segment_detach(tag: Option<Text>) {
    let tag = args::required(tag.as_deref(), "tag");
    if !lock_owned(tag).link.is_attached() {
        errors::not_attached(tag).raise();
    }
    SEGMENT.write(&DETACH, &[tag.into()]);
    // It tells the coordinator after the commit. Without a slot for it, the next one does.
    if shmem::is_preloaded() {
        let _ = demand::summon_for(Duty { database: session::database(), is_attached: true });
    }
}

static DETACH: Query = SEGMENT.query(
    "UPDATE idgen.segment SET reserve = NULL, upper_bound = max_id, source = COALESCE(source, ''), \
       received = COALESCE(received, max_id) \
     WHERE tag OPERATOR(pg_catalog.=) $1",
);
