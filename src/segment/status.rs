//! The views `idgen.stat_segment` and `idgen.stat_segment_supply`, with the rings of this database; and the checks of
//! segments: values that do not arrive, bounds, and places in memory.

use super::fleet::servers::{self, SEGMENT_SERVER};
use super::state::{
    CoordinatorState, LastError, RING_STATES, RINGS, RingState, SEGMENTS, ring, ring_state, ring_states,
};
use super::store::{self, NearBound, SEGMENT};
use super::{errors, refill};
use crate::error::{Check, listed};
use crate::pg::datum::Text;
use crate::pg::session::{self, database};
use crate::pg::spi::ExtensionTable;
use crate::pg::system_clock;
use crate::shmem;
use idgen_core::layout::time_text;
use idgen_core::segment::{Remaining, RingTenant, TagKey, ValueRun};
use pgrx::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A ring at one moment.
struct RingSnapshot {
    index: usize,
    tenant: RingTenant,
    remaining: Remaining,
    position: u64,
    error: LastError,
}

/// One row for each segment of this database that has a ring and that the caller may draw from. Members of
/// pg_read_all_stats see all of them. No rows without preload.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity, reason = "the columns of a view")]
fn stat_get_segment() -> TableIterator<
    'static,
    (
        name!(creation, i64),
        name!(first_id, Option<i64>),
        name!(last_id, Option<i64>),
        name!(next_first_id, Option<i64>),
        name!(next_last_id, Option<i64>),
        name!(remaining, i64),
        name!(issued, i64),
        name!(refills, i64),
        name!(refill_us, i64),
        name!(waits, i64),
        name!(wait_us, i64),
        name!(last_error, Option<Text<'static>>),
    ),
> {
    let rows = shmem::is_preloaded().then_some(()).into_iter().flat_map(|()| {
        let visible = store::visible_creations();
        let rings = rings().into_iter().filter(move |ring| visible.contains(&ring.tenant.key.creation));
        rings.map(|ring| {
            let state = ring_state(ring.index);
            let of = |counter: fn(&RingState) -> &AtomicU64| counter(state).load(Relaxed) as i64;
            let Remaining { current, next, count } = ring.remaining;
            (
                ring.tenant.key.creation,
                current.map(|run| run.first),
                current.as_ref().map(ValueRun::last),
                next.map(|run| run.first),
                next.as_ref().map(ValueRun::last),
                count as i64,
                ring.position.saturating_sub(state.reset_at.load(Relaxed)) as i64,
                of(|s| &s.refills),
                of(|s| &s.refill_us),
                of(|s| &s.waits),
                of(|s| &s.wait_us),
                ring.error.text().map(Text::from),
            )
        })
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

/// One row for each attached segment of this database that has a ring and that the caller may draw from: the state of the
/// coordinator, and the rate of draws in values per second. Members of pg_read_all_stats see all of them. No rows without
/// preload.
#[pg_extern(sql = false)]
fn stat_get_segment_supply()
-> TableIterator<'static, (name!(creation, i64), name!(coordinator, Text<'static>), name!(rate, f64))> {
    let rows = shmem::is_preloaded().then_some(()).into_iter().flat_map(|()| {
        let visible = store::visible_creations();
        let is_shown = move |ring: &RingSnapshot| {
            visible.contains(&ring.tenant.key.creation) && ring_state(ring.index).is_attached.load(Relaxed)
        };
        rings().into_iter().filter(is_shown).map(|ring| {
            let state = ring_state(ring.index);
            let rate = f64::from_bits(state.rate.load(Relaxed));
            (ring.tenant.key.creation, Text::from(state.coordinator().name().to_owned()), rate)
        })
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

fn rings() -> Vec<RingSnapshot> {
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(ring_states().len());
    SEGMENTS.exclusive(|segments| {
        for (index, tenant) in segments.table.tenants.iter().enumerate() {
            if let Some(tenant) = tenant.filter(|tenant| tenant.key.database == database()) {
                let ring = ring(index);
                let (remaining, position) = (ring.remaining(tenant.handle), ring.position());
                found.push(RingSnapshot { index, tenant, remaining, position, error: segments.errors[index] });
            }
        }
    });
    found
}

/// Sets the counters to zero, in all databases.
pub fn reset() {
    let (Some(states), Some(rings)) = (RING_STATES.get(), RINGS.get()) else {
        return;
    };
    states.iter().zip(rings.iter()).for_each(|(state, ring)| state.reset(ring.position()));
    SEGMENTS.exclusive(|segments| segments.table.displaced = 0);
}

/// What the checks read.
pub static TABLES: [&ExtensionTable; 2] = [&SEGMENT, &SEGMENT_SERVER];

pub fn checks() -> Vec<Check> {
    let places = shmem::is_preloaded().then(places);
    [values(), bounds(), servers()].into_iter().chain(places).collect()
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
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(ring_states().len());
    let mut count = 0;
    SEGMENTS.exclusive(|segments| {
        let tenants = segments.table.tenants.iter().enumerate();
        for (index, tenant) in tenants.filter_map(|(index, tenant)| Some((index, (*tenant)?))) {
            count += 1;
            let state = ring_state(index);
            let is_refused = matches!(state.coordinator(), CoordinatorState::Refusing | CoordinatorState::Failing);
            let dry_since_ms = Some(state.dry_since_ms.load(Relaxed)).filter(|since_ms| *since_ms > 0);
            let is_starving = !segments.errors[index].is_clear() || state.is_attached.load(Relaxed) && is_refused;
            if is_starving || dry_since_ms.is_some() {
                found.push((index, tenant, segments.errors[index], is_starving, dry_since_ms));
            }
        }
    });
    let now_ms = system_clock::wall_ms();
    let starving = found.into_iter().filter_map(|(index, tenant, error, is_starving, dry_since_ms)| {
        let state = ring_state(index);
        let remaining = ring(index).remaining(tenant.handle).count;
        let is_dry = remaining == 0 && dry_since_ms.is_some_and(|since_ms| now_ms - since_ms >= DRY_MS);
        let is_attached = state.is_attached.load(Relaxed);
        (is_starving || is_dry).then(|| Starving {
            key: tenant.key,
            remaining,
            is_attached,
            rate: f64::from_bits(state.rate.load(Relaxed)),
            reason: error.text().unwrap_or_else(|| errors::silence(is_attached).to_owned()),
            since_ms: error.since_ms().or(dry_since_ms).unwrap_or(now_ms),
            last_ms: error.since_ms().map_or(now_ms, |_| error.last_ms()),
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
    let reason = match is_visible(shown.key) {
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

/// The current user may see what the ring's segment reports.
fn is_visible(key: TagKey) -> bool {
    session::reads_all_statistics()
        || key.database == session::database() && !store::visible_tags(vec![key.creation]).is_empty()
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
        starving.iter().map(|ring| ring.key).partition(|key| key.database == session::database());
    let mut names = store::visible_tags(here.iter().map(|key| key.creation).collect());
    let databases = elsewhere.iter().map(|key| key.database).collect::<BTreeSet<_>>();
    names.extend(databases.into_iter().map(|database| format!("segments of database {database}")));
    names
}

/// Fails if a segment of this database has no values left, or a tenth of them.
fn bounds() -> Check {
    const NAME: &str = "segment bounds";
    let near = store::near_bounds();
    let Some(first) = near.first() else {
        return Check::ok(NAME, "no segment is near its upper bound");
    };
    let check = match first.left + in_memory(first.creation) {
        0 => Check::raising(NAME, errors::exhausted(&first.tag, first.upper_bound)),
        left => Check::warning(
            NAME,
            format!("segment \"{}\" has {left} values left up to its upper bound {}", first.tag, first.upper_bound),
            "Change an int column to bigint, then raise the bound with segment_alter(tag, upper_bound => ...).",
        ),
    };
    check.affects(listed(&near.into_iter().map(|NearBound { tag, .. }| tag).collect::<Vec<_>>()))
}

/// Fails if this coordinator grants no values of a segment, because it does not know yet what a lost history has granted.
fn servers() -> Check {
    const NAME: &str = "segment servers";
    let withheld = servers::withheld();
    let Some((tag, count)) = withheld.first() else {
        return Check::ok(NAME, "no segment waits for reports of attached servers");
    };
    Check::error(
        NAME,
        format!(
            "no values of segment \"{tag}\" are granted: after a failover or a restore, not all attached servers have \
             reported what they have received (missing: {count})"
        ),
        "Let them connect: idgen.segment_server has their names. If they are gone for good, run segment_resume(tag, max_id).",
    )
    .affects(listed(&withheld.iter().map(|(tag, _)| tag.clone()).collect::<Vec<_>>()))
}

/// The values of a segment that are in its ring.
fn in_memory(creation: i64) -> u64 {
    if !shmem::is_preloaded() {
        return 0;
    }
    let key = TagKey { database: session::database(), creation };
    SEGMENTS.exclusive(|segments| {
        segments.table.find(key).map_or(0, |(index, tenant)| ring(index).remaining(tenant.handle).count)
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
