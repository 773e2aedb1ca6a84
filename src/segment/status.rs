//! The views `idgen.stat_segment` and `idgen.stat_segment_supply`, with the rings of this database; and the checks of
//! segments: values that do not arrive, bounds, and places in memory.

use super::fleet::servers::{self, SEGMENT_SERVER};
use super::settled;
use super::state::{COORDINATOR_STATES, CoordinatorState::Refusing};
use super::state::{LastError, RING_STATES, RINGS, RingState, SEGMENTS, ring, ring_state, rings};
use super::store::{self, SEGMENT};
use super::{errors, refill};
use crate::error::{Check, listed};
use crate::pg::datum::{Composite, Text};
use crate::pg::session::{self, database};
use crate::pg::spi::ExtensionTable;
use crate::pg::system_clock;
use crate::shmem;
use idgen_core::layout::time_text;
use idgen_core::segment::tag::TagRow;
use idgen_core::segment::{Remaining, RingSnapshot, TagKey, ValueRun};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One row for each segment of this database that has a ring and that the caller may draw from. Members of
/// pg_read_all_stats see all of them. No rows without preload.
#[pg_extern(sql = false)]
fn stat_get_segment() -> SetOfIterator<'static, Composite<12>> {
    SetOfIterator::new(visible_rings().into_iter().map(|(ring, error)| {
        let state = ring_state(ring.index);
        let of = |counter: &AtomicU64| DatumWithOid::from(counter.load(Relaxed) as i64);
        let Remaining { current, next, count } = ring.remaining;
        Composite([
            ring.tenant.key.creation.into(),
            current.map(|run| run.first).into(),
            current.as_ref().map(ValueRun::last).into(),
            next.map(|run| run.first).into(),
            next.as_ref().map(ValueRun::last).into(),
            (count as i64).into(),
            (ring.position.saturating_sub(state.reset_at.load(Relaxed)) as i64).into(),
            of(&state.refills),
            of(&state.refill_us),
            of(&state.waits),
            of(&state.wait_us),
            error.text.text().map(Text::from).into(),
        ])
    }))
}

/// One row for each attached segment of [`visible_rings`]: the state of the coordinator, and the rate of draws in values per
/// second.
#[pg_extern(sql = false)]
fn stat_get_segment_supply() -> SetOfIterator<'static, Composite<3>> {
    let states = visible_rings().into_iter().map(|(ring, _)| (ring.tenant.key.creation, ring_state(ring.index)));
    let attached = states.filter(|(_, state)| state.is_attached.load(Relaxed));
    SetOfIterator::new(attached.map(|(creation, state)| {
        let rate = f64::from_bits(state.rate.load(Relaxed));
        let coordinator = COORDINATOR_STATES[usize::from(state.coordinator.load(Relaxed))];
        Composite([creation.into(), coordinator.into(), rate.into()])
    }))
}

/// The rings of segments of this database that the caller may draw from; all for members of pg_read_all_stats. None without
/// preload.
fn visible_rings() -> Vec<(RingSnapshot, LastError)> {
    if !shmem::is_preloaded() {
        return Vec::new();
    }
    let visible = store::visible_creations();
    let mut rings = rings(|_, _, tenant| tenant.key.database == database());
    rings.retain(|(ring, _)| visible.contains(&ring.tenant.key.creation));
    rings
}

pub fn reset() {
    let (Some(states), Some(rings)) = (RING_STATES.get(), RINGS.get()) else {
        return;
    };
    states.iter().zip(rings.iter()).for_each(|(state, ring)| state.reset(ring.position()));
    SEGMENTS.exclusive(|segments| segments.table.displaced = 0);
}

pub static TABLES: [&ExtensionTable; 2] = [&SEGMENT, &SEGMENT_SERVER];

pub fn checks() -> Vec<Check> {
    let places = shmem::is_preloaded().then(places);
    [values(), bounds(), servers(), settled::check()].into_iter().chain(places).collect()
}

/// A ring that gets no values.
struct Starving {
    key: TagKey,
    remaining: u64,
    is_attached: bool,
    /// Draws per second; 0 if that is not known.
    rate: f64,
    reason: String,
    since_ms: i64,
    /// When a session or a worker last found that it gets none.
    last_ms: i64,
}

/// Sessions that have found no value for this long are reported, also if none has waited long enough to fail.
const DRY_MS: i64 = 5_000;

/// After this time without another attempt, a draw may succeed again.
const RECENT_MS: i64 = 300_000;

/// How many rings are in use, and those that get no values.
fn starving() -> (usize, Vec<Starving>) {
    let is_failing = |state: &RingState, error: &LastError| {
        let has_values = state.coordinator.load(Relaxed) < Refusing as u8;
        !error.text.is_clear() || state.is_attached.load(Relaxed) && !has_values
    };
    let dry_since_ms = |state: &RingState| Some(state.dry_since_ms.load(Relaxed)).filter(|since_ms| *since_ms > 0);
    let mut count = 0;
    let found = rings(|segments, index, _| {
        count += 1;
        let state = ring_state(index);
        is_failing(state, &segments.errors[index]) || dry_since_ms(state).is_some()
    });
    let now_ms = system_clock::wall_ms();
    let starving = found.into_iter().filter_map(|(RingSnapshot { index, tenant, remaining, .. }, error)| {
        let state = ring_state(index);
        let dry_since_ms = dry_since_ms(state);
        let remaining = remaining.count;
        let is_dry = remaining == 0 && dry_since_ms.is_some_and(|since_ms| now_ms - since_ms >= DRY_MS);
        let is_attached = state.is_attached.load(Relaxed);
        let (since_ms, last_ms) = match error.text.is_clear() {
            true => (dry_since_ms.unwrap_or(now_ms), now_ms),
            false => (error.since_ms, error.last_ms),
        };
        (is_failing(state, &error) || is_dry).then(|| Starving {
            key: tenant.key,
            remaining,
            is_attached,
            rate: f64::from_bits(state.rate.load(Relaxed)),
            reason: error.text.text().unwrap_or_else(|| errors::silence(is_attached).to_owned()),
            since_ms,
            last_ms,
        })
    });
    (count, starving.collect())
}

/// Fails if the last refill of a segment has, in any database.
fn values() -> Check {
    const NAME: &str = "segments";
    let (count, starving) = if shmem::is_preloaded() { starving() } else { (0, Vec::new()) };
    let dry = starving.iter().find(|ring| ring.remaining == 0);
    let Some(shown) = dry.or(starving.first()) else {
        return Check::ok(NAME, format!("all segments in use get their values: {count}"));
    };
    // The reason can name servers, and contain what a trigger of a user says.
    let is_visible = session::reads_all_statistics()
        || shown.key.database == database() && !store::visible_tags(vec![shown.key.creation]).is_empty();
    let reason = match is_visible {
        true => shown.reason.as_str(),
        false => "its reason is in idgen.stat_segment, for roles that may draw from it.",
    };
    let action = action(&shown.reason, shown.is_attached);
    let subject = format!("{} of {count} segments in use get no values", starving.len());
    let is_recent = system_clock::wall_ms() - shown.last_ms < RECENT_MS;
    let check = match dry {
        Some(_) if is_recent => Check::error(NAME, format!("{subject}, and draws fail: {reason}"), action),
        Some(_) => Check::warning(
            NAME,
            format!("{subject}, and the last draw failed at {}: {reason}", time_text(shown.last_ms)),
            format!("Draw from it: a value ends this check. {action}"),
        ),
        None => Check::warning(NAME, format!("{subject}{}: {reason}", when_draws_fail(&starving)), action),
    };
    let since_ms = starving.iter().map(|ring| ring.since_ms).min();
    check.since_ms(since_ms).affects(listed(&names(&starving)))
}

/// By the rate of draws, where it is measured.
fn when_draws_fail(starving: &[Starving]) -> String {
    let left_ms =
        starving.iter().filter(|ring| ring.rate > 0.0).map(|ring| (ring.remaining as f64 / ring.rate * 1000.0) as i64);
    left_ms.min().map_or_else(
        || ", and draw what is left".to_owned(),
        |left_ms| format!(", and draws fail from {} on", time_text(system_clock::wall_ms().saturating_add(left_ms))),
    )
}

fn action(reason: &str, is_attached: bool) -> &'static str {
    match reason {
        refill::BUSY => {
            "End the transaction: SELECT pid, virtualtransaction FROM pg_locks WHERE relation = 'idgen.segment'::regclass. \
             Without a pid it is a prepared one: see pg_prepared_xacts."
        }
        errors::NO_WORKER => "Raise max_worker_processes and restart.",
        _ if is_attached => "Check the coordinator and the network to it; see idgen.stat_segment.",
        _ => {
            "Read last_error in idgen.stat_segment, and the server's log. A refill also waits for synchronous standbys."
        }
    }
}

fn names(starving: &[Starving]) -> Vec<String> {
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        starving.iter().map(|ring| ring.key).partition(|key| key.database == database());
    let mut names = store::visible_tags(here.iter().map(|key| key.creation).collect());
    let databases = elsewhere.iter().map(|key| key.database).collect::<BTreeSet<_>>();
    names.extend(databases.into_iter().map(|database| format!("segments of database {database}")));
    names
}

/// Fails if a segment of this database has no values left, or is near its upper bound.
fn bounds() -> Check {
    const NAME: &str = "segment bounds";
    let mut near: Vec<_> = store::near_bounds().into_iter().map(|row| (left(&row), row)).collect();
    near.sort_by_key(|(left, _)| *left);
    let Some((left, row)) = near.first() else {
        return Check::ok(NAME, "no segment is near its upper bound");
    };
    let (tag, upper_bound) = (&row.tag, row.definition.upper_bound);
    let check = match left {
        0 if row.is_detached() => Check::raising(NAME, errors::detached(tag)),
        0 => Check::raising(NAME, errors::exhausted(tag, upper_bound)),
        left => Check::warning(
            NAME,
            format!("segment \"{tag}\" has {left} values left up to its upper bound {upper_bound}"),
            "Change an int column to bigint, then raise the bound with segment_alter(tag, upper_bound => ...).",
        ),
    };
    check.affects(listed(&near.into_iter().map(|(_, row)| row.tag).collect::<Vec<_>>()))
}

/// The values that no refill has taken yet, and those in memory.
fn left(row: &TagRow) -> u64 {
    row.definition.allocation().next(u64::MAX).map_or(0, |run| run.count) + in_memory(row.key)
}

/// Fails if this coordinator grants no values of a segment, because it does not know yet what a lost history has granted.
fn servers() -> Check {
    const NAME: &str = "segment servers";
    let withheld = match servers::withheld() {
        Ok(withheld) => withheld,
        Err(report) => return Check::raising(NAME, report),
    };
    let Some((tag, count)) = withheld.first() else {
        return Check::ok(NAME, "no segment waits for reports of attached servers");
    };
    Check::error(
        NAME,
        format!(
            "no values of segment \"{tag}\" are granted: after a failover or a restore, not all attached servers have \
             reported what they have received (missing: {count})"
        ),
        "Let them connect: idgen.segment_server has their names. If they are gone for good, run \
         segment_resume(tag, max_id => <at least all that they can have received>).",
    )
    .affects(listed(&withheld.iter().map(|(tag, _)| tag.clone()).collect::<Vec<_>>()))
}

fn in_memory(key: TagKey) -> u64 {
    if !shmem::is_preloaded() {
        return 0;
    }
    SEGMENTS.exclusive(|segments| {
        let found = segments.table.find(key);
        found.map_or(0, |(index, tenant)| ring(index).remaining(tenant.handle).count)
    })
}

/// Fails if segments take each other's places all the time. No value is lost by that.
fn places() -> Check {
    const NAME: &str = "segment places";
    let (displaced, count) = SEGMENTS.exclusive(|segments| (segments.table.displaced, segments.table.tenants.len()));
    if displaced <= count as u64 {
        return Check::ok(NAME, format!("idgen.max_segments is enough: {count}"));
    }
    Check::warning(
        NAME,
        format!(
            "more segments are in use than idgen.max_segments = {count}: one has taken another's place {displaced} times"
        ),
        "Raise idgen.max_segments and restart. Until then such draws take microseconds longer.",
    )
}
