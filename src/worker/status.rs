//! The view `idgen.stat_worker`, and the checks of worker ids: this server's own, and the pools of this database.

use super::history;
use super::state::{SERVER_LEASE, STATE, ServerLease};
use super::store::{WORKER_HISTORY, WORKER_ID, WORKER_POOL, full_pools, outside_of_ranges, pool_that_grants};
use crate::error::{Check, listed};
use crate::pg::datum::{self, Composite, Text, from_us_or_infinity};
use crate::pg::spi::ExtensionTable;
use crate::pg::{recovery, system_clock};
use crate::settings;
use crate::shmem;
use crate::snowflake::{default_layout, node};
use idgen_core::layout::{Node, time_text, time_text_us};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One row if the library is preloaded, else none.
#[pg_extern(sql = false)]
fn stat_get_worker() -> SetOfIterator<'static, Composite<14>> {
    let row = STATE.get().map(|worker| {
        let lease = SERVER_LEASE.shared(|lease| *lease);
        let current = node::CURRENT.require();
        let node = current.get();
        let pool = lease.pool.text().or_else(|| settings::worker_pool().map(|pool| pool.name));
        let rectangle = lease.rectangle();
        // Without a pool the keeper sleeps.
        let pid = worker.keeper.pid().filter(|_| worker.has_pool.load(Relaxed));
        let count = |counter: &AtomicU64| DatumWithOid::from(counter.load(Relaxed) as i64);
        Composite([
            if current.is_setting() { "setting" } else { "pool" }.into(),
            status(&lease).name().into(),
            node.map(|node| node.worker as i32).into(),
            node.and_then(|node| node.datacenter).map(|id| id as i32).into(),
            pool.map(Text::from).into(),
            rectangle.map(|rectangle| from_us_or_infinity(rectangle.not_before_us)).into(),
            rectangle.map(|rectangle| from_us_or_infinity(rectangle.not_after_us)).into(),
            lease.coordinator.text().map(Text::from).into(),
            pid.into(),
            count(&worker.renewals),
            count(&worker.failures),
            lease.failing_since_ms.and_then(datum::from_ms).into(),
            lease.last_error.text().map(Text::from).into(),
            count(&worker.changes),
        ])
    });
    SetOfIterator::new(row)
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

/// What the checks read.
pub static TABLES: [&ExtensionTable; 3] = [&WORKER_POOL, &WORKER_ID, &WORKER_HISTORY];

pub fn checks() -> Vec<Check> {
    match has_pools() {
        true => vec![own(), ranges(), slots(), lost_grants()],
        false => vec![own()],
    }
}

/// False with the SQL objects of an earlier version, which the check of versions tells of.
fn has_pools() -> bool {
    WORKER_POOL.find().is_some()
}

/// The worker id of this server.
fn own() -> Check {
    const NAME: &str = "worker";
    const IDS: &str = "snowflake ids of this server";
    if recovery::is_in_progress() {
        return Check::ok(NAME, "a standby needs no worker id");
    }
    let lease = if shmem::is_preloaded() { SERVER_LEASE.shared(|lease| *lease) } else { ServerLease::default() };
    let Some(node) = current_node() else {
        return Check::error(NAME, without_worker_id(&lease), what_to_do(&lease))
            .since_ms(lease.failing_since_ms)
            .affects(IDS);
    };
    if let Err(e) = default_layout().id_space(node) {
        // A datacenter id is always a setting.
        let (name, action) = match is_leased() && e.field == "worker" {
            true => {
                ("the leased worker id".to_owned(), "Use a pool within the layout's worker field, or a wider layout.")
            }
            false => {
                (format!("idgen.{}_id", e.field), "Set it to a value that fits, or use a wider layout, and restart.")
            }
        };
        let message = format!("{name} is {}, but the layout allows at most {}: draws fail", e.value, e.max);
        return Check::error(NAME, message, action).affects(IDS);
    }
    let subject = match node.datacenter {
        Some(datacenter) => format!("this server has worker id {} and datacenter id {datacenter}", node.worker),
        None => format!("this server has worker id {}, which numbers a pair of datacenter and worker", node.worker),
    };
    if is_leased() {
        return leased(NAME, subject, &lease).affects(IDS);
    }
    let source = match settings::worker_undecided() {
        true => "the default of idgen.worker_id",
        false => "idgen.worker_id",
    };
    if let Some(pool) = has_pools().then(|| pool_that_grants(node.worker)).flatten() {
        return Check::error(
            NAME,
            format!(
                "{subject} by {source}, but pool \"{pool}\" in this database grants the same worker id to other servers"
            ),
            "Lease a worker id with idgen.worker_pool, or set idgen.worker_id to one outside of all pools.",
        )
        .affects(IDS);
    }
    if shmem::is_preloaded() && settings::has_worker_pool() {
        return leased(NAME, subject, &lease).affects(IDS);
    }
    if settings::worker_undecided() {
        return Check::warning(
            NAME,
            "idgen.worker_id is not set and acts as 0",
            "Set a different one on each server whose ids meet, or set idgen.worker_pool.",
        )
        .affects(IDS);
    }
    Check::ok(NAME, format!("{subject} by {source}, and no pool in this database grants it"))
}

fn leased(name: &'static str, subject: String, lease: &ServerLease) -> Check {
    let why = lease.last_error.text().map_or_else(String::new, |error| format!(": {error}"));
    let end = lease.rectangle().map(|rectangle| rectangle.end_ms());
    let end_text = end.map_or_else(String::new, time_text);
    match status(lease) {
        WorkerStatus::Leased if lease.falls_short => Check::warning(
            name,
            format!("{subject}, but its ids are further ahead of the coordinator's clock than it allows"),
            "Raise idgen.worker_max_lead at the coordinator, or correct the clock that is wrong.",
        ),
        WorkerStatus::Leased => {
            let (pool, coordinator) = (settings::pool_name(), lease.coordinator.text().unwrap_or_default());
            Check::ok(name, format!("{subject}, leased from pool \"{pool}\" of the coordinator at {coordinator}"))
        }
        WorkerStatus::Failing => Check::warning(
            name,
            format!("{subject}, but the lease could not be renewed, and draws fail from {end_text} on{why}"),
            what_to_do(lease),
        )
        .since_ms(lease.failing_since_ms),
        WorkerStatus::Ended => Check::error(
            name,
            format!("{subject}, but the lease has ended, and draws have failed since {end_text}{why}"),
            what_to_do(lease),
        )
        .since_ms(end),
        WorkerStatus::Set | WorkerStatus::Waiting => {
            Check::warning(name, format!("{subject} until it has leased one from the pool{why}"), what_to_do(lease))
                .since_ms(lease.failing_since_ms)
        }
    }
}

/// Why this server has no worker id.
fn without_worker_id(lease: &ServerLease) -> String {
    if !settings::has_worker_pool() {
        return "draws fail, because idgen.worker_pool was removed, and idgen.worker_id is not set".to_owned();
    }
    let why = lease.last_error.text().unwrap_or_else(|| "the coordinator has not answered yet".to_owned());
    format!("draws fail, because this server has no worker id yet from pool \"{}\": {why}", settings::pool_name())
}

fn what_to_do(lease: &ServerLease) -> &'static str {
    let keeper = STATE.get().and_then(|state| state.keeper.pid());
    match keeper {
        _ if !settings::has_worker_pool() => "Set idgen.worker_id and restart, or set idgen.worker_pool again.",
        None if lease.last_error.text().is_none() => {
            "The keeper does not run: if this does not change within seconds, raise max_worker_processes and restart."
        }
        _ => "Check idgen.worker_pool, idgen.coordinator and the network to it; see idgen.stat_worker.",
    }
}

/// This server's worker id and datacenter id; `None` while it has no worker id.
pub fn current_node() -> Option<Node> {
    node::CURRENT.get().map_or(Some(settings::node()), node::CurrentNode::get)
}

fn is_leased() -> bool {
    node::CURRENT.get().is_some_and(|current| !current.is_setting())
}

/// Fails if ids may still be made under a worker id that its pool no longer has.
fn ranges() -> Check {
    const NAME: &str = "pools";
    match outside_of_ranges() {
        None => Check::ok(NAME, "no worker id outside of the range of its pool is in use"),
        Some((pool, worker_id, until_us)) => Check::warning(
            NAME,
            format!(
                "worker id {worker_id} is outside of the range of its pool \"{pool}\", and may be in use until {}",
                time_text_us(until_us)
            ),
            "Let no other pool grant it, and set it on no server, before then.",
        )
        .affects(pool),
    }
}

/// Fails if a pool has no free worker id.
fn slots() -> Check {
    const NAME: &str = "pool slots";
    let full = full_pools(system_clock::now_us());
    match full.first() {
        None => Check::ok(NAME, "each pool of this database has a free worker id"),
        Some(pool) => Check::warning(
            NAME,
            format!("all worker ids of pool \"{pool}\" are taken: the next holder gets none"),
            "Release unused ones, or raise the count of the pool with worker_pool_alter(name, count => ...).",
        )
        .affects(listed(&full)),
    }
}

/// Fails while worker ids cannot be used at once, because grants may be lost.
fn lost_grants() -> Check {
    const NAME: &str = "history";
    match history::held_back_until_us() {
        None => Check::ok(NAME, "no interruption of the history of grants holds back worker ids"),
        Some(until_us) => Check::warning(
            NAME,
            format!(
                "worker ids that are granted now begin at {}: a failover, a restore or a holder has shown that grants may be lost; ids of servers are ahead of the clock until then, and other holders wait",
                time_text_us(until_us)
            ),
            "Wait. If the clock was wrong when that was noticed, run SELECT worker_begin_history(<time of the last grant before it>).",
        )
        .affects("holders of worker ids"),
    }
}
