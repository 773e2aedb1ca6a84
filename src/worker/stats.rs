//! The view `idgen.stat_worker`: this server's worker id, and the state of its lease.

use super::state::{SERVER_LEASE, STATE, ServerLease};
use crate::pg::encoding::Text;
use crate::pg::timestamp::from_us_or_infinity;
use crate::pg::{system_clock, timestamp};
use crate::settings;
use crate::snowflake::node;
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

// "lease_views": the view idgen.workers reads idgen.leases.
extension_sql_file!("views.sql", name = "worker_views", requires = ["lease_views", stat_get_worker]);

/// One row if the library is preloaded, else none.
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
        let lease = SERVER_LEASE.shared(|lease| *lease);
        let current = node::CURRENT.require();
        let node = current.get();
        (
            if current.is_setting() { "setting" } else { "pool" },
            status(&lease).name(),
            node.map(|node| node.worker as i32),
            node.map(|node| node.datacenter as i32),
            lease.pool.text().or_else(|| settings::worker_pool().map(|pool| pool.name)).map(Text::from),
            lease.rectangle().map(|rectangle| from_us_or_infinity(rectangle.not_before_us)),
            lease.rectangle().map(|rectangle| from_us_or_infinity(rectangle.not_after_us)),
            lease.coordinator.text().map(Text::from),
            // Without a pool the keeper sleeps.
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

/// The state of this server's worker id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WorkerStatus {
    /// The worker id is a setting.
    Set,
    /// There is no worker id yet.
    Waiting,
    Leased,
    /// Leased, and the last attempt to renew it has failed.
    Failing,
    /// The clock is past the end of the lease.
    Ended,
}

impl WorkerStatus {
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

pub fn status(lease: &ServerLease) -> WorkerStatus {
    match lease.rectangle() {
        _ if node::CURRENT.require().is_setting() => WorkerStatus::Set,
        Some(rectangle) if rectangle.end_ms() <= system_clock::wall_ms() => WorkerStatus::Ended,
        Some(_) if lease.failing_since_ms.is_some() => WorkerStatus::Failing,
        Some(_) => WorkerStatus::Leased,
        None => WorkerStatus::Waiting,
    }
}
