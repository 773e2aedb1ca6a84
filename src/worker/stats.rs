//! The view `idgen.stat_worker`: this server's worker id, and the state of its lease.

use super::state::{SERVER_LEASE, STATE, ServerLease};
use crate::pg::datum::{self, Composite, Text, form_rows, from_us_or_infinity};
use crate::pg::system_clock;
use crate::settings;
use crate::snowflake::node;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

// "lease_views": the view idgen.workers reads idgen.leases.
/// One row if the library is preloaded, else none.
#[pg_extern(sql = false)]
fn stat_get_worker(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite> {
    let row = STATE.get().map(|worker| {
        let lease = SERVER_LEASE.shared(|lease| *lease);
        let current = node::CURRENT.require();
        let node = current.get();
        let pool = lease.pool.text().or_else(|| settings::worker_pool().map(|pool| pool.name));
        let rectangle = lease.rectangle();
        // Without a pool the keeper sleeps.
        let pid = worker.keeper.pid().filter(|_| worker.has_pool.load(Relaxed));
        let count = |counter: &AtomicU64| (counter.load(Relaxed) as i64).into_datum();
        [
            if current.is_setting() { "setting" } else { "pool" }.into_datum(),
            status(&lease).name().into_datum(),
            node.map(|node| node.worker as i32).into_datum(),
            node.map(|node| node.datacenter as i32).into_datum(),
            pool.map(Text::from).into_datum(),
            rectangle.map(|rectangle| from_us_or_infinity(rectangle.not_before_us)).into_datum(),
            rectangle.map(|rectangle| from_us_or_infinity(rectangle.not_after_us)).into_datum(),
            lease.coordinator.text().map(Text::from).into_datum(),
            pid.into_datum(),
            count(&worker.renewals),
            count(&worker.failures),
            lease.failing_since_ms.and_then(datum::from_ms).into_datum(),
            lease.last_error.text().map(Text::from).into_datum(),
            count(&worker.changes),
        ]
    });
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_rows(fcinfo, row) }
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
