//! The checks of segments: values that do not arrive, bounds, and places in memory.

use super::state::{CoordinatorState, LastError, SEGMENTS, ring, ring_state, ring_states};
use super::store::{self, NearBound};
use super::{errors, refill};
use crate::check::{Check, listed};
use crate::pg::{session, system_clock};
use crate::shmem;
use idgen_core::layout::time_text;
use idgen_core::segment::TagKey;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

pub fn checks() -> Vec<Check> {
    let places = shmem::is_preloaded().then(places);
    [values(), bounds()].into_iter().chain(places).collect()
}

/// A ring that gets no values.
struct Starving {
    key: TagKey,
    remaining: u64,
    is_attached: bool,
    /// Draws per second; 0 if that is not known.
    rate: f64,
    error: LastError,
}

/// How many rings are in use, and those that get no values.
fn starving() -> (usize, Vec<Starving>) {
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(ring_states().len());
    let mut count = 0;
    SEGMENTS.exclusive(|segments| {
        let tenants = segments.table.tenants.iter().enumerate();
        for (index, tenant) in tenants.filter_map(|(index, tenant)| Some((index, (*tenant)?))) {
            count += 1;
            let (state, error) = (ring_state(index), segments.errors[index]);
            let is_attached = state.is_attached.load(Relaxed);
            let is_refused = matches!(state.coordinator(), CoordinatorState::Refusing | CoordinatorState::Failing);
            if !error.is_clear() || is_attached && is_refused {
                let remaining = ring(index).remaining(tenant.handle).count;
                let rate = f64::from_bits(state.rate.load(Relaxed));
                found.push(Starving { key: tenant.key, remaining, is_attached, rate, error });
            }
        }
    });
    (count, found)
}

/// Fails if the last refill of a segment has, in any database.
fn values() -> Check {
    const NAME: &str = "segments";
    let (count, starving) = if shmem::is_preloaded() { starving() } else { (0, Vec::new()) };
    let dry = starving.iter().find(|ring| ring.remaining == 0);
    let Some(shown) = dry.or(starving.first()) else {
        return Check::ok(NAME, format!("all segments in use get their values: {count}"));
    };
    let reason = shown.error.text().unwrap_or_else(|| "the coordinator gives none.".to_owned());
    let action = action(&reason, shown.is_attached);
    let subject = format!("{} of {count} segments in use get no values", starving.len());
    let check = match dry {
        Some(_) => Check::error(NAME, format!("{subject}, and draws fail: {reason}"), action),
        None => Check::warning(NAME, format!("{subject}{}: {reason}", when_draws_fail(&starving)), action),
    };
    let since_ms = starving.iter().filter_map(|ring| ring.error.since_ms()).min();
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
            "End the transaction: SELECT pid, query FROM pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks \
             WHERE relation = 'idgen.segment'::regclass)."
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
