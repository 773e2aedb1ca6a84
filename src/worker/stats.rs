//! What `idgen.stat_worker` shows: this server's number, and how its lease stands.

use super::number::time;
use super::state::{LEASE, Lease, STATE};
use crate::pg::encoding::Text;
use crate::pg::{system_clock, timestamp};
use crate::settings;
use crate::snowflake::node;
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// One row when the library is preloaded, else none.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.stat_get_worker(OUT source text, OUT state text, OUT worker_id int, OUT datacenter_id int, \
           OUT pool text, OUT not_before timestamptz, OUT not_after timestamptz, OUT coordinator text, OUT pid int, \
           OUT renewals bigint, OUT failures bigint, OUT failing_since timestamptz, OUT last_error text, OUT changes bigint) \
           RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a view")]
fn stat_get_worker() -> TableIterator<
    'static,
    (
        name!(source, &'static str),
        name!(state, &'static str),
        name!(worker_id, Option<i32>),
        name!(datacenter_id, Option<i32>),
        name!(pool, Option<Text<'static>>),
        name!(not_before, Option<TimestampWithTimeZone>),
        name!(not_after, Option<TimestampWithTimeZone>),
        name!(coordinator, Option<Text<'static>>),
        name!(pid, Option<i32>),
        name!(renewals, i64),
        name!(failures, i64),
        name!(failing_since, Option<TimestampWithTimeZone>),
        name!(last_error, Option<Text<'static>>),
        name!(changes, i64),
    ),
> {
    let row = STATE.get().map(|worker| {
        let lease = LEASE.shared(|lease| *lease);
        let current = node::CURRENT.require();
        let node = current.get();
        (
            if current.is_setting() { "setting" } else { "pool" },
            standing(&lease).name(),
            node.map(|node| node.worker as i32),
            node.map(|node| node.datacenter as i32),
            lease.pool.text().or_else(|| settings::worker_pool().map(|pool| pool.name)).map(Text::from),
            lease.interval().map(|interval| time(interval.not_before_us)),
            lease.interval().map(|interval| time(interval.not_after_us)),
            lease.coordinator.text().map(Text::from),
            // Without a pool it sleeps, and is of no interest.
            worker.keeper.pid().filter(|_| worker.has_pool.load(Relaxed)),
            worker.renewals.load(Relaxed) as i64,
            worker.failures.load(Relaxed) as i64,
            lease.failing_since_ms.and_then(timestamp::from_ms),
            lease.last_error.text().map(Text::from),
            worker.changes.load(Relaxed) as i64,
        )
    });
    TableIterator::new(row)
}

/// How it stands with this server's number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is a setting.
    Set,
    /// There is none yet.
    Waiting,
    Leased,
    /// Leased, and the last try to renew it has failed.
    Failing,
    /// The clock has come to the end of what was leased.
    Ended,
}

impl Standing {
    pub fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Waiting => "waiting",
            Self::Leased => "leased",
            Self::Failing => "failing",
            Self::Ended => "ended",
        }
    }
}

pub fn standing(lease: &Lease) -> Standing {
    match lease.interval() {
        _ if node::CURRENT.require().is_setting() => Standing::Set,
        Some(interval) if interval.end_ms() <= system_clock::wall_ms() => Standing::Ended,
        Some(_) if lease.failing_since_ms.is_some() => Standing::Failing,
        Some(_) => Standing::Leased,
        None => Standing::Waiting,
    }
}
