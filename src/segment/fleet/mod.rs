//! Segments of a fleet: a tag that is attached draws from the tag of the same name in the coordinator's database.
//!
//! At the coordinator, `servers` hands out ranges, and has what each attached server has received.
//!
//! This file has the supply worker: a background worker for each database with attached tags. It fetches values from
//! the coordinator, and reports to it. A session starts the worker on demand, and it exits when no tag is attached any
//! more. The supply launcher starts the worker of each database once, after the server has started or was promoted. So
//! an attached server reports to its coordinator, although no session draws.

use super::refill::{self, Port};
use super::state::{CoordinatorState, SEGMENTS, evict, exhaust, in_tenancy, ring_state, rings};
use super::{store, workers};
use crate::pg::bgworker::{self, Worker};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::spi::{self, Query, value};
use crate::pg::{session, shared_objects};
use crate::settings;
use crate::shmem;
use idgen_core::segment::RingSnapshot;
use idgen_core::segment::refill::Filling;
use idgen_core::segment::refillers::Duty;
use idgen_core::segment::supply::requests::{Answer, Failure};
use idgen_core::segment::supply::stock::{Need, REPORT_EVERY_US};
use idgen_core::segment::supply::supplier::{Due, Next, Supplier, Supplying};
use idgen_core::segment::tag::TagRow;
use pgrx::prelude::*;
use requests::Supply;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

mod requests;
pub mod servers;

static MAIN_WAIT: WaitEvent = WaitEvent::new(c"IdgenSupplyMain");

/// How often the rate of draws is measured.
const OBSERVE_EVERY: Duration = Duration::from_secs(1);

/// After the rows could not be read.
const RETRY: Duration = Duration::from_millis(500);

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_supply(argument: pg_sys::Datum) {
    if let Some(duty) = workers::begin(argument, true) {
        // A reload before the handler was installed would be missed.
        session::reload_configuration();
        let mut port = Port(Supply::new());
        port.0.client.follow(settings::coordinator());
        SupplyWorker { duty, port, supplier: Supplier::default() }.run();
    }
}

struct SupplyWorker {
    duty: Duty,
    port: Port<Supply>,
    supplier: Supplier,
}

impl SupplyWorker {
    /// The main loop. Makes one request at a time, so that a session waits for one other request at most. A request and
    /// a transaction may reset the latch, so the rings are read again after each.
    fn run(mut self) {
        loop {
            check_for_interrupts!();
            if session::is_reload_pending() {
                session::reload_configuration();
                self.port.0.client.follow(settings::coordinator());
            }
            let rings = rings(|_, index, tenant| workers::serves(self.duty, index, tenant));
            let rings: Vec<RingSnapshot> = rings.into_iter().map(|(ring, _)| ring).collect();
            if !self.supplier.is_current(&rings, workers::link_changes(), self.port.now_us()) {
                if !self.read_rows(&rings) {
                    latch::wait(Some(RETRY), &MAIN_WAIT);
                }
                continue;
            }
            if self.supplier.is_idle() && workers::end(self.duty, false) {
                return;
            }
            self.observe(&rings);
            let now_us = self.port.now_us();
            let needs = self.supplier.needs(&rings, self.port.0.retry_at_us(), now_us);
            match self.supplier.next(&needs, now_us) {
                Next::Read => {}
                Next::Serve(due) => self.serve(due),
                Next::Sleep => self.sleep(&needs, rings.is_empty()),
            }
        }
    }

    /// Reads the attached tags, and ends the rings of others: their sessions attach again. False if that failed.
    fn read_rows(&mut self, rings: &[RingSnapshot]) -> bool {
        // Before the rows are read: a later change is not missed.
        let link_changes = workers::link_changes();
        let rows = match workers::in_transaction(store::attached) {
            Ok(rows) => rows,
            Err(reason) => {
                let is_new = |ring: &RingSnapshot| workers::keep_error(ring.index, ring.tenant, &reason);
                // Each ring has its error before the first one is logged.
                if rings.iter().filter(|ring| is_new(ring)).count() > 0 {
                    log!("could not read the attached segments: {reason}");
                }
                return false;
            }
        };
        self.supplier.update(rows, link_changes, self.port.now_us());
        for ring in rings.iter().filter(|ring| !self.supplier.is_attached(ring)) {
            evict(ring.index, ring.tenant);
            ring_state(ring.index).refilled.broadcast();
        }
        true
    }

    /// Measures the rates of draws. While the coordinator fails, each ring has the reason, for sessions that begin to
    /// wait.
    fn observe(&mut self, rings: &[RingSnapshot]) {
        for ring in rings {
            if let Some(rate) = self.supplier.observe(ring, self.port.now_us()) {
                ring_state(ring.index).rate.store(rate.to_bits(), Relaxed);
            }
            if let Some(reason) = &self.supplier.requests.failure {
                workers::keep_error(ring.index, ring.tenant, reason);
            }
        }
    }

    fn sleep(&mut self, needs: &[Due], is_idle: bool) {
        let longest = if is_idle { Duration::from_micros(REPORT_EVERY_US as u64) } else { OBSERVE_EVERY };
        let now_us = self.port.now_us();
        let next = needs.iter().map(|due| Duration::from_micros((due.at_us - now_us).max(0) as u64)).min();
        let pause = next.unwrap_or(longest).min(longest);
        match self.supplier.requests.is_loaded(now_us) {
            true => self.port.0.client.link.pause(Instant::now() + pause),
            false => self.port.0.client.link.close(),
        }
        // Rounded up: the latch counts in milliseconds.
        latch::wait(Some(pause + Duration::from_millis(1)), &MAIN_WAIT);
    }

    /// Makes one request. A request for values wakes the sessions that wait for them.
    fn serve(&mut self, due: Due) {
        let was_failing = self.supplier.requests.failure.is_some();
        let ring = due.ring.filter(|_| matches!(due.need, Need::Demand | Need::LowWater));
        let answer = match ring {
            Some(ring) if workers::take_demand(ring.index, ring.tenant.handle).is_none() => return,
            Some(ring) => {
                let answer = self.supplier.fetch(&mut self.port, due.creation, &ring);
                // A turn that has failed: its calls join another one.
                SEGMENTS.exclusive(|segments| segments.turns[ring.index].give_up());
                answer
            }
            None => self.supplier.tell(&mut self.port, &due),
        };
        match &self.supplier.requests.failure {
            Some(reason) if !was_failing => log!("could not fetch values of attached segments: {reason}"),
            None if was_failing => log!("the coordinator of attached segments answers again"),
            _ => {}
        }
        if let Some(is_news) = self.supplier.conclude(&mut self.port, &due, &answer) {
            self.show(due, answer, is_news);
        }
        workers::forget_demand();
        ring.into_iter().for_each(|ring| ring_state(ring.index).refilled.broadcast());
    }

    /// Shows the outcome of a request in the ring.
    fn show(&self, Due { creation, ring, .. }: Due, answer: Answer<()>, is_news: bool) {
        let show = |state: CoordinatorState| {
            ring.into_iter().for_each(|ring| ring_state(ring.index).coordinator.store(state as u8, Relaxed));
        };
        let keep = |reason: &str| ring.map(|ring| workers::keep_error(ring.index, ring.tenant, reason));
        let reason = match answer {
            Ok(()) if is_news => {
                show(CoordinatorState::Answering);
                let clear = |RingSnapshot { index, tenant, .. }: RingSnapshot| {
                    in_tenancy(index, tenant.handle, |segments| segments.errors[index].text.clear())
                };
                ring.map(clear);
                return;
            }
            Ok(()) => return,
            Err(Failure::Coordinator(reason)) => {
                show(CoordinatorState::Failing);
                // `serve` logs it.
                keep(&reason);
                return;
            }
            Err(Failure::Gone) => return show(CoordinatorState::Refusing),
            Err(Failure::Exhausted(reason)) => {
                ring.into_iter().for_each(|ring| exhaust(ring.index, ring.tenant.key, ring.tenant.version));
                // The sessions that wait find out, and so the demand ends.
                workers::forget_demand();
                reason
            }
            Err(Failure::Tag(missing)) => refill::text(missing),
        };
        // The coordinator has refused the request because of the tag.
        show(CoordinatorState::Refusing);
        if keep(&reason).unwrap_or(is_news) {
            let tag = self.supplier.tag(creation).unwrap_or_default();
            log!("could not fetch values of segment \"{tag}\": {reason}");
        }
    }
}

impl Supplying for Port<Supply> {
    fn await_lock(&mut self, creation: i64) -> Option<TagRow> {
        store::await_lock(creation)
    }

    fn record(&mut self, row: &TagRow) -> Option<i64> {
        let version = store::record(row);
        crate::pg::crash_point!("fleet: values recorded");
        version
    }

    fn forget(&mut self, creation: i64, server: i64) {
        store::forget(creation, server);
    }

    fn begin_turn(&mut self, ring: &RingSnapshot) -> Option<(u64, u64)> {
        in_tenancy(ring.index, ring.tenant.handle, |segments| segments.turns[ring.index].begin()).flatten()
    }

    fn restore_demand(&mut self) {
        workers::restore_demand();
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

const LAUNCHER: Worker = Worker { name: "idgen supply launcher", function: "idgen_supply_launcher" };

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
    bgworker::connect(0);
    for database in shared_objects::databases_in_use() {
        let began = Instant::now();
        while workers::summon_worker(Duty { database, is_attached: true }, false).is_err() {
            if began.elapsed() >= PATIENCE {
                log!("could not start all supply workers: raise max_worker_processes");
                return;
            }
            latch::wait(Some(LAUNCHER_RETRY), &LAUNCHER_WAIT);
        }
    }
}
