//! The view `idgen.stat_worker`, and the checks of worker ids: this server's own, and the pools of this database.

use super::errors;
use super::pool::{Database, WORKER_HISTORY, WORKER_ID, WORKER_POOL};
use super::state::{SERVER_LEASE, STATE, SharedLease};
use crate::error::{Check, listed};
use crate::pg::datum::{self, Composite, Text, from_us_or_infinity};
use crate::pg::spi::{ExtensionTable, Query, text, value};
use crate::pg::{recovery, system_clock};
use crate::settings;
use crate::shmem;
use crate::snowflake::{default_layout, node, node_too_large};
use idgen_core::layout::{Node, time_text, time_text_us};
use idgen_core::worker::lease::ServerLease;
use idgen_core::worker::recording::HistoryStore;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One row if the library is preloaded, else none.
#[pg_extern(sql = false)]
fn stat_get_worker() -> SetOfIterator<'static, Composite<14>> {
    let row = STATE.get().map(|worker| {
        let shared = SERVER_LEASE.shared(|shared| *shared);
        let lease = &shared.lease;
        let current = node::CURRENT.require();
        let (node, rectangle) = (current.get(), lease.rectangle());
        let pool = shared.pool.text().or_else(|| settings::worker_pool().map(|pool| pool.name));
        // Without a pool the keeper sleeps.
        let pid = worker.keeper.pid().filter(|_| worker.has_pool.load(Relaxed));
        let count = |counter: &AtomicU64| DatumWithOid::from(counter.load(Relaxed) as i64);
        Composite([
            if current.is_setting() { "setting" } else { "pool" }.into(),
            status(lease).name().into(),
            node.map(|node| node.worker as i32).into(),
            node.and_then(|node| node.datacenter).map(|id| id as i32).into(),
            pool.map(Text::from).into(),
            rectangle.map(|rectangle| from_us_or_infinity(rectangle.not_before_us)).into(),
            rectangle.map(|rectangle| from_us_or_infinity(rectangle.not_after_us)).into(),
            shared.coordinator.text().map(Text::from).into(),
            pid.into(),
            count(&worker.renewals),
            count(&worker.failures),
            lease.failing_since_ms.and_then(datum::from_ms).into(),
            shared.last_error.text().map(Text::from).into(),
            count(&worker.changes),
        ])
    });
    SetOfIterator::new(row)
}

/// As the column `state` of `idgen.stat_worker` explains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WorkerStatus {
    Set,
    Waiting,
    Leased,
    Failing,
    Ended,
}

impl WorkerStatus {
    pub fn name(self) -> &'static str {
        ["set", "waiting", "leased", "failing", "ended"][self as usize]
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
    // False with the SQL objects of an earlier version, which the check of versions tells of.
    let has_pools = WORKER_POOL.find().is_some();
    let own = match own(has_pools) {
        own if own.severity.is_some() => own.affects("snowflake ids of this server"),
        own => own,
    };
    if has_pools { vec![own, ranges(), slots(), lost_grants()] } else { vec![own] }
}

fn own(has_pools: bool) -> Check {
    if recovery::is_in_progress() {
        return Check::ok(OWN, "a standby needs no worker id");
    }
    let shared = if shmem::is_preloaded() { SERVER_LEASE.shared(|shared| *shared) } else { SharedLease::default() };
    let Some(node) = current_node() else {
        return Check::raising(OWN, errors::not_leased(&shared)).since_ms(shared.lease.failing_since_ms);
    };
    let is_leased = node::CURRENT.get().is_some_and(|current| !current.is_setting());
    let layout = default_layout();
    if let Err(error) = layout.id_space(node) {
        return Check::raising(OWN, node_too_large(&layout, error));
    }
    let subject = match node.datacenter {
        Some(datacenter) => format!("this server has worker id {} and datacenter id {datacenter}", node.worker),
        None => format!("this server has worker id {}, which numbers a pair of datacenter and worker", node.worker),
    };
    if is_leased {
        return leased(subject, &shared);
    }
    let is_undecided = settings::worker_undecided();
    let source = if is_undecided { "the default of idgen.worker_id" } else { "idgen.worker_id" };
    let granting = |worker_id: i32| POOL_THAT_GRANTS.read_latest(&[worker_id.into()], |row| text(row, 1)).pop();
    if let Some(pool) = i32::try_from(node.worker).ok().filter(|_| has_pools).and_then(granting) {
        return Check::error(
            OWN,
            format!(
                "{subject} by {source}, but pool \"{pool}\" in this database grants the same worker id to other servers"
            ),
            "Lease a worker id with idgen.worker_pool, or set idgen.worker_id to one outside of all pools.",
        );
    }
    if shmem::is_preloaded() && settings::has_worker_pool() {
        return leased(subject, &shared);
    }
    if is_undecided {
        return Check::warning(
            OWN,
            "idgen.worker_id is not set and acts as 0",
            "Set a different one on each server whose ids meet, or set idgen.worker_pool.",
        );
    }
    Check::ok(OWN, format!("{subject} by {source}, and no pool in this database grants it"))
}

const OWN: &str = "worker";

/// A pool in this database that has granted this worker id, or may grant it.
static POOL_THAT_GRANTS: Query = WORKER_ID.query(
    "SELECT name FROM idgen.worker_pool \
     WHERE $1 OPERATOR(pg_catalog.>=) first AND $1 OPERATOR(pg_catalog.<) (first OPERATOR(pg_catalog.+) count) \
     UNION ALL \
     SELECT pool FROM idgen.worker_id WHERE worker_id OPERATOR(pg_catalog.=) $1 AND acquired_at IS NOT NULL LIMIT 1",
);

fn leased(subject: String, shared: &SharedLease) -> Check {
    let lease = &shared.lease;
    let why = shared.last_error.text().map_or_else(String::new, |error| format!(": {error}"));
    let end = lease.rectangle().map(|rectangle| rectangle.end_ms());
    let end_text = end.map_or_else(String::new, time_text);
    let since_ms = lease.failing_since_ms;
    match status(lease) {
        WorkerStatus::Leased if lease.falls_short => Check::warning(
            OWN,
            format!("{subject}, but its ids are further ahead of the coordinator's clock than it allows"),
            "Raise idgen.worker_max_lead at the coordinator, or correct the clock that is wrong.",
        ),
        WorkerStatus::Leased => {
            let (pool, coordinator) = (settings::pool_name(), shared.coordinator.text().unwrap_or_default());
            Check::ok(OWN, format!("{subject}, leased from pool \"{pool}\" of the coordinator at {coordinator}"))
        }
        WorkerStatus::Failing => {
            let message =
                format!("{subject}, but the lease could not be renewed, and draws fail from {end_text} on{why}");
            Check::warning(OWN, message, what_to_do(shared)).since_ms(since_ms)
        }
        WorkerStatus::Ended => Check::raising(OWN, errors::not_leased(shared)).since_ms(end),
        WorkerStatus::Set | WorkerStatus::Waiting => {
            let message = format!("{subject} until it has leased one from the pool{why}");
            Check::warning(OWN, message, what_to_do(shared)).since_ms(since_ms)
        }
    }
}

fn what_to_do(shared: &SharedLease) -> &'static str {
    let has_keeper = STATE.get().is_some_and(|state| state.keeper.pid().is_some());
    match has_keeper || !shared.last_error.is_clear() {
        true => "Check idgen.worker_pool, idgen.coordinator and the network to it; see idgen.stat_worker.",
        false => {
            "The keeper does not run: if this does not change within seconds, raise max_worker_processes and restart."
        }
    }
}

/// This server's worker id and datacenter id; `None` while it has no worker id.
pub fn current_node() -> Option<Node> {
    node::CURRENT.get().map_or(Some(settings::node()), node::CurrentNode::get)
}

/// A worker id whose id times are not over, and which the definition of its pool leaves out. Of several the one that ends last.
static OUTSIDE: Query = WORKER_ID.query(
    "SELECT known.pool, known.worker_id, known.not_after FROM idgen.worker_id AS known \
     JOIN idgen.worker_pool AS pool ON pool.name OPERATOR(pg_catalog.=) known.pool \
     WHERE known.not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() \
       AND (known.worker_id OPERATOR(pg_catalog.<) pool.first \
            OR known.worker_id OPERATOR(pg_catalog.>=) (pool.first OPERATOR(pg_catalog.+) pool.count)) \
     ORDER BY known.not_after DESC LIMIT 1",
);

fn ranges() -> Check {
    const NAME: &str = "pools";
    let read = |row: &SpiHeapTupleData| (text(row, 1), value::<i32>(row, 2), time_text_us(datum::to_us(value(row, 3))));
    let Some((pool, worker_id, until)) = OUTSIDE.read_latest(&[], read).pop() else {
        return Check::ok(NAME, "no worker id outside of the range of its pool is in use");
    };
    Check::warning(
        NAME,
        format!(
            "worker id {worker_id} is outside of the range of its pool \"{pool}\", and may be in use until {until}"
        ),
        "Let no other pool grant it, and set it on no server, before then.",
    )
    .affects(pool)
}

/// The pools of this database whose worker ids are all held at the time $1.
static FULL: Query = Query::new(&WORKER_ID, || {
    const KNOWN: &str = "NOT EXISTS (SELECT FROM idgen.worker_id AS known WHERE known.pool OPERATOR(pg_catalog.=) pool.name \
        AND known.worker_id OPERATOR(pg_catalog.>=) pool.first \
        AND known.worker_id OPERATOR(pg_catalog.<) (pool.first OPERATOR(pg_catalog.+) pool.count)";
    format!(
        "SELECT pool.name FROM idgen.worker_pool AS pool WHERE {KNOWN} AND known.token IS NULL) \
         AND {KNOWN} AND known.token IS NOT NULL AND (known.not_after OPERATOR(pg_catalog.<=) $1 \
             OR known.epoch OPERATOR(pg_catalog.<>) COALESCE((SELECT history.epoch FROM idgen.worker_history AS history), 0))) \
         ORDER BY pool.name"
    )
});

fn slots() -> Check {
    const NAME: &str = "pool slots";
    let full = FULL.read_latest(&[from_us_or_infinity(system_clock::wall_us()).into()], |row| text(row, 1));
    let Some(pool) = full.first() else {
        return Check::ok(NAME, "each pool of this database has a free worker id");
    };
    Check::warning(
        NAME,
        format!("all worker ids of pool \"{pool}\" are taken: the next holder gets none"),
        "Release unused ones, or add some that no other pool and no server has, with worker_pool_alter(name, count => ...).",
    )
    .affects(listed(&full))
}

fn lost_grants() -> Check {
    const NAME: &str = "history";
    let until_us = Database.read().and_then(|history| history.forgotten_until_us());
    let Some(until_us) = until_us.filter(|until_us| *until_us > system_clock::wall_us()) else {
        return Check::ok(NAME, "no interruption of the history of grants holds back worker ids");
    };
    Check::warning(
        NAME,
        format!(
            "worker ids that are granted now begin at {}: a failover, a restore or a holder has shown that grants may be lost; ids of servers are ahead of the clock until then, and other holders wait",
            time_text_us(until_us)
        ),
        "Wait. If the clock was wrong when that was noticed, run SELECT worker_begin_history(<time of the last grant before it>).",
    )
    .affects("holders of worker ids")
}
