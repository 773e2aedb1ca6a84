//! Segments of a fleet: a tag that is attached draws from the tag of the same name in the coordinator's database.
//!
//! At the coordinator, `servers` hands out ranges, and has what each attached server has received.
//!
//! This file has the supply worker: a background worker for each database with attached tags. It fetches values from
//! the coordinator, and reports to it. A session starts the worker on demand, and it exits when no tag is attached any
//! more. The supply launcher starts the worker of each database once, after the server has started or was promoted. So
//! an attached server reports to its coordinator, although no session draws.

use super::state::{CoordinatorState, RingSnapshot, SEGMENTS, evict, exhaust, in_tenancy, ring_state, rings};
use super::{store, workers};
use crate::coordinator::name_of_this_server;
use crate::pg::bgworker::{self, Worker};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::spi::{self, Query, value};
use crate::pg::{session, shared_objects};
use crate::settings;
use crate::shmem;
use idgen_core::segment::refillers::Duty;
use pgrx::prelude::*;
use requests::{Failure, Requests};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use stock::{Need, REPORT_EVERY, Stock};

pub mod errors;
mod requests;
pub mod servers;
mod stock;

static MAIN_WAIT: WaitEvent = WaitEvent::new(c"IdgenSupplyMain");

/// How often the rate of draws is measured.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);

/// A request that is later than this has its turn, although sessions wait for others.
const LATE: Duration = Duration::from_secs(1);

/// After the rows could not be read.
const RETRY: Duration = Duration::from_millis(500);

/// Rows that are older are read again before a report. It must say what this server has received by now.
const CURRENT: Duration = Duration::from_secs(1);

/// The main function of the worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_supply(argument: pg_sys::Datum) {
    if let Some(duty) = workers::begin(argument, true) {
        // A reload before the handler was installed would be missed.
        session::reload_configuration();
        let mut requests = Requests::new();
        requests.client.follow(settings::coordinator());
        let (name, stocks) = (name_of_this_server(), HashMap::new());
        let worker =
            SupplyWorker { duty, name, stocks, read_at: None, link_changes: 0, requests, has_served_demand: false };
        worker.run();
    }
}

struct SupplyWorker {
    duty: Duty,
    /// Of this server, for the coordinator's views.
    name: String,
    /// The attached tags, by the creation numbers of their rows.
    stocks: HashMap<i64, Stock>,
    /// When the rows were read last; `None` if they have to be read now.
    read_at: Option<Instant>,
    /// The count of changes of links when the rows were read last.
    link_changes: u64,
    requests: Requests,
    /// The last request was for waiting sessions.
    has_served_demand: bool,
}

/// A request to make.
#[derive(Clone, Copy)]
struct Due {
    creation: i64,
    need: Need,
    at: Instant,
    /// The ring of the tag, unless it has none.
    ring: Option<RingSnapshot>,
}

impl SupplyWorker {
    /// The main loop. Makes one request at a time, so that a session waits for one other request at most. A request and
    /// a transaction may reset the latch, so the rings are read again after each.
    fn run(mut self) {
        loop {
            check_for_interrupts!();
            if session::is_reload_pending() {
                session::reload_configuration();
                self.requests.client.follow(settings::coordinator());
            }
            let rings = rings(|_, index, tenant| workers::serves(self.duty, index, tenant));
            let is_current = self.has_read_within(REPORT_EVERY) && self.link_changes == workers::link_changes();
            if !is_current || !rings.iter().all(|ring| self.is_attached(ring)) {
                if !self.read_rows(&rings) {
                    latch::wait(Some(RETRY), &MAIN_WAIT);
                }
                continue;
            }
            if self.stocks.is_empty() && workers::end(self.duty, false) {
                return;
            }
            self.observe(&rings);
            let needs = self.needs(&rings);
            match self.next(&needs) {
                Some(Due { need: Need::Report | Need::Leave, .. }) if !self.has_read_within(CURRENT) => {
                    self.read_at = None
                }
                Some(due) => self.serve(due),
                None => self.sleep(&needs, rings.is_empty()),
            }
        }
    }

    fn is_attached(&self, ring: &RingSnapshot) -> bool {
        self.stocks.get(&ring.tenant.key.creation).is_some_and(|stock| stock.row.link.is_attached())
    }

    fn has_read_within(&self, time: Duration) -> bool {
        self.read_at.is_some_and(|read_at| read_at.elapsed() < time)
    }

    /// Reads the attached tags, and ends the rings of others: their sessions attach again. False if that failed.
    fn read_rows(&mut self, rings: &[RingSnapshot]) -> bool {
        // Before the rows are read: a later change is not missed.
        let link_changes = workers::link_changes();
        let read = || store::SEGMENT.find().map_or_else(Vec::new, |_| store::attached());
        let rows = match workers::in_transaction(read) {
            Ok(rows) => rows,
            Err(reason) => {
                let is_new = |ring: &RingSnapshot| workers::keep_error(ring.index, ring.tenant, 0, &reason);
                // Each ring has its error before the first one is logged.
                if rings.iter().filter(|ring| is_new(ring)).count() > 0 {
                    log!("could not read the attached segments: {reason}");
                }
                return false;
            }
        };
        let mut before = std::mem::take(&mut self.stocks);
        let stocks = rows.into_iter().map(|row| (row.key.creation, before.remove(&row.key.creation), row));
        self.stocks = stocks.map(|(creation, before, row)| (creation, Stock::new(row, before))).collect();
        (self.read_at, self.link_changes) = (Some(Instant::now()), link_changes);
        for ring in rings.iter().filter(|ring| !self.is_attached(ring)) {
            evict(ring.index, ring.tenant);
            ring_state(ring.index).refilled.broadcast();
        }
        true
    }

    /// Measures the rates of draws. While the coordinator fails, each ring has the reason, for sessions that begin to
    /// wait.
    fn observe(&mut self, rings: &[RingSnapshot]) {
        for ring in rings {
            if let Some(stock) = self.stocks.get_mut(&ring.tenant.key.creation) {
                stock.observe(ring);
            }
            if let Some(reason) = &self.requests.failure {
                workers::keep_error(ring.index, ring.tenant, 0, reason);
            }
        }
    }

    /// All requests, each with the time when it is due.
    fn needs(&self, rings: &[RingSnapshot]) -> Vec<Due> {
        let by_creation: HashMap<i64, &RingSnapshot> =
            rings.iter().map(|ring| (ring.tenant.key.creation, ring)).collect();
        let due = |(&creation, stock): (&i64, &Stock)| {
            let ring = by_creation.get(&creation).copied();
            let (at, need) = stock.next(ring);
            Due { creation, need, at: at.max(self.requests.client.link.retry_at.unwrap_or(at)), ring: ring.copied() }
        };
        self.stocks.iter().map(due).collect()
    }

    /// The request to make now: first for waiting sessions, in turn with others that are late.
    fn next(&self, needs: &[Due]) -> Option<Due> {
        let now = Instant::now();
        let due = needs.iter().filter(|due| due.at <= now);
        let is_late = |due: &&Due| self.has_served_demand && due.need != Need::Demand && due.at + LATE <= now;
        let late = due.clone().filter(is_late).min_by_key(|due| due.at);
        // Among tags that sessions wait for, the one that was asked for longest ago.
        let asked_at = |due: &&Due| self.stocks.get(&due.creation).and_then(|stock| stock.asked_at);
        late.or_else(|| due.min_by_key(|due| (due.need, asked_at(due), due.at))).copied()
    }

    fn sleep(&mut self, needs: &[Due], is_idle: bool) {
        let longest = if is_idle { REPORT_EVERY } else { OBSERVE_EVERY };
        let next = needs.iter().map(|due| due.at.saturating_duration_since(Instant::now())).min();
        let pause = next.unwrap_or(longest).min(longest);
        self.requests.pause(pause);
        // Rounded up: the latch counts in milliseconds.
        latch::wait(Some(pause + Duration::from_millis(1)), &MAIN_WAIT);
    }

    /// Makes one request.
    fn serve(&mut self, due: Due) {
        self.has_served_demand = due.need == Need::Demand;
        let outcome = match (due.need, due.ring) {
            (Need::Demand | Need::LowWater, Some(ring)) => return self.serve_ring(due, &ring),
            (Need::Leave, _) => self.leave(due.creation),
            _ => self.report(due.creation),
        };
        self.conclude(due, 0, outcome);
    }

    /// Fetches values for a ring, and wakes the sessions that wait for them.
    fn serve_ring(&mut self, due: Due, ring: &RingSnapshot) {
        let Some(demand) = workers::take_demand(ring.index, ring.tenant.handle) else { return };
        let outcome = workers::while_running(ring.index, demand, || self.fetch(due.creation, ring));
        // One that has failed: its calls join another one.
        SEGMENTS.exclusive(|segments| segments.turns[ring.index].give_up());
        self.conclude(due, demand, outcome);
        ring_state(ring.index).refilled.broadcast();
    }

    /// Notes the outcome of a request.
    fn conclude(&mut self, Due { creation, need, ring, .. }: Due, demand: u64, outcome: Result<(), Failure>) {
        let Some(stock) = self.stocks.get_mut(&creation) else { return };
        let is_first = outcome.is_err() && stock.fail();
        let show = |state| ring.into_iter().for_each(|ring| ring_state(ring.index).set_coordinator(state));
        let keep = |demand, reason: &str| ring.map(|ring| workers::keep_error(ring.index, ring.tenant, demand, reason));
        let (demand, reason) = match outcome {
            Ok(()) if stock.succeed(need) => {
                show(CoordinatorState::Answering);
                let clear = |RingSnapshot { index, tenant, .. }: RingSnapshot| {
                    in_tenancy(index, tenant.handle, |segments| segments.errors[index].clear())
                };
                ring.map(clear);
                return;
            }
            Ok(()) => return,
            Err(Failure::Coordinator(reason)) => {
                show(CoordinatorState::Failing);
                // `Requests` logs it.
                keep(demand, &reason);
                return;
            }
            Err(Failure::Gone) => {
                show(CoordinatorState::Refusing);
                self.read_at = None;
                return;
            }
            Err(Failure::Exhausted(reason)) => {
                ring.into_iter().for_each(|ring| exhaust(ring.index, ring.tenant.key, ring.tenant.version));
                // The sessions that wait find out, and so the demand ends.
                (0, reason)
            }
            Err(Failure::Tag(reason)) => (demand, reason),
        };
        // The coordinator has refused the request because of the tag.
        show(CoordinatorState::Refusing);
        stock.refused = Some(need);
        if keep(demand, &reason).unwrap_or(is_first) {
            log!("could not fetch values of segment \"{}\": {reason}", stock.row.tag);
        }
    }
}

/// Before DROP DATABASE, which fails while a process is connected: ends the database's supply worker, if the caller may
/// drop the database. PostgreSQL waits five seconds for it. A session that draws starts another worker.
pub fn leave_database(database: u32) {
    static WORKERS: Query = Query::of_statistics(
        "SELECT session.pid FROM pg_catalog.pg_stat_get_activity(NULL) AS session \
         JOIN pg_catalog.pg_database AS database ON database.oid OPERATOR(pg_catalog.=) session.datid \
         WHERE session.backend_type OPERATOR(pg_catalog.=) 'idgen supply' AND database.oid OPERATOR(pg_catalog.=) $1 \
           AND pg_catalog.pg_has_role($2, database.datdba, 'USAGE')",
    );
    let workers = WORKERS.read_latest(&[pg_sys::Oid::from(database).into(), spi::user().into()], |row| value(row, 1));
    workers.into_iter().for_each(bgworker::terminate);
}

const LAUNCHER: Worker = Worker { name: "idgen supply launcher", function: "idgen_supply_launcher", connects: true };

/// How long the launcher waits for a slot. Sessions may need the one that it has itself for another worker.
const PATIENCE: Duration = Duration::from_secs(5);

const LAUNCHER_RETRY: Duration = Duration::from_millis(100);

static LAUNCHER_WAIT: WaitEvent = WaitEvent::new(c"IdgenSupplyLauncher");

/// Starts the launcher if there is a coordinator. Without a slot for it, servers report once they draw.
pub fn start_launcher() {
    if !settings::coordinator().is_empty() && !LAUNCHER.start_for_database(0) {
        log!("could not start the supply launcher: raise max_worker_processes");
    }
}

/// The main function of the launcher. A worker whose database has no attached segment ends at once, and the next one has
/// its slot.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_supply_launcher(_argument: pg_sys::Datum) {
    bgworker::handle_signals(None, None);
    if !shmem::is_preloaded() {
        return;
    }
    bgworker::connect(0, false);
    for database in shared_objects::databases_in_use() {
        let began = Instant::now();
        while workers::summon_for(Duty { database, is_attached: true }).is_err() {
            if began.elapsed() >= PATIENCE {
                log!("could not start all supply workers: raise max_worker_processes");
                return;
            }
            latch::wait(Some(LAUNCHER_RETRY), &LAUNCHER_WAIT);
        }
    }
}
