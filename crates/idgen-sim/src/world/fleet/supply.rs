//! The supply worker: its main loop, and its way to the coordinator.

use super::backends::{self, Granted};
use super::network::{Connection, TIMEOUT};
use super::port::{Port, index_of, note};
use super::workers::Restored;
use super::{Backend, TAGS};
use idgen_core::coordinator::link::{Link, Step};
use idgen_core::segment::fleet::rows::Server;
use idgen_core::segment::supply::requests::{Answer, Asking, Failure};
use idgen_core::segment::supply::stock::{Need, REPORT_EVERY_US};
use idgen_core::segment::supply::supplier::{Due, Next, Supplier, Supplying};
use idgen_core::segment::tag::TagRow;
use idgen_core::segment::{RingSnapshot, RingTenant};
use std::time::Duration;

const OBSERVE_EVERY_US: i64 = 1_000_000;
/// A connection that has answered within this time is used without a probe.
const FRESH: Duration = Duration::from_secs(1);
/// It may stay unused for so long.
const KEPT: Duration = Duration::from_secs(60);

pub struct Supply<'a> {
    link: Link<Connection>,
    /// That of the running request.
    connection: Option<Connection>,
    /// The demand that was taken from the ring of the running request.
    demand: Option<Restored<'a>>,
    /// The last answer on this connection, for a network that repeats it.
    last: Option<(usize, i64, Granted)>,
    /// Values may have been granted that are not confirmed: a retry first waits for the standby.
    is_unconfirmed: bool,
}

type Worker<'a> = Port<'a, Supply<'a>>;

pub fn run(backend: &Backend) {
    let supply = Supply { link: Link::new(FRESH), connection: None, demand: None, last: None, is_unconfirmed: false };
    let mut port = Port::new(backend, supply);
    let mut supplier = Supplier::default();
    loop {
        backend.process.check_interrupts();
        let rings = backend.memory.snapshots(true);
        if !supplier.is_current(&rings, backend.memory.link_changes.get(), backend.now_us()) {
            read_rows(&mut port, &mut supplier, &rings);
            continue;
        }
        if supplier.is_idle() && backend.end_worker(true, false) {
            return;
        }
        let now_us = backend.now_us();
        rings.iter().for_each(|ring| _ = supplier.observe(ring, now_us));
        let retry_at_us = port.retry_at_us();
        let needs = supplier.needs(&rings, retry_at_us, now_us);
        match supplier.next(&needs, now_us) {
            Next::Read => {}
            Next::Serve(due) => serve(&mut port, &mut supplier, &due),
            Next::Sleep => sleep(&mut port, &supplier, &needs, rings.is_empty()),
        }
    }
}

/// Reads the attached tags, and ends the rings of others.
fn read_rows(port: &mut Worker, supplier: &mut Supplier, rings: &[RingSnapshot]) {
    let backend = port.backend;
    let link_changes = backend.memory.link_changes.get();
    backend.process.step();
    let rows = (0..TAGS.len()).filter_map(|tag| backend.tag_row(tag));
    let rows = rows.filter(|row| row.link.is_attached() || row.link.received.is_some()).collect();
    supplier.update(rows, link_changes, backend.now_us());
    for RingSnapshot { index, tenant, .. } in rings.iter().filter(|ring| !supplier.is_attached(ring)) {
        evict(backend, *index, tenant);
    }
    backend.signal();
}

fn evict(backend: &Backend, index: usize, tenant: &RingTenant) {
    backend.memory.table(|table| table.has_tenancy(index, tenant.handle).then(|| table.end(index)));
}

fn sleep(port: &mut Worker, supplier: &Supplier, needs: &[Due], is_idle: bool) {
    let longest_us = if is_idle { REPORT_EVERY_US } else { OBSERVE_EVERY_US };
    let now_us = port.backend.now_us();
    let next_us = needs.iter().map(|due| (due.at_us - now_us).max(0)).min();
    let pause = Duration::from_micros(next_us.unwrap_or(longest_us).min(longest_us) as u64 + 1000);
    match supplier.requests.is_loaded(now_us) {
        true => port.work.link.pause(port.backend.instant() + pause),
        false => port.work.link.close(),
    }
    port.backend.process.wait(pause);
}

fn serve(port: &mut Worker, supplier: &mut Supplier, due: &Due) {
    let backend = port.backend;
    let ring = due.ring.filter(|_| matches!(due.need, Need::Demand | Need::LowWater));
    let answer = match ring {
        Some(ring) => {
            let handle = ring.tenant.handle;
            let Some(demand) = backend.memory.in_tenancy(ring.index, handle, |state| state.demand.replace(0)) else {
                return;
            };
            port.work.demand = Some(Restored { backend, index: ring.index, demand });
            let answer = supplier.fetch(port, due.creation, &ring);
            backend.memory.turns.borrow_mut()[ring.index].give_up();
            keep_demand(port, &answer, &ring);
            answer
        }
        None => supplier.tell(port, due),
    };
    if answer.is_ok() && due.need == Need::Leave {
        backend.world().reach("a server leaves");
    }
    if let Err(failure) = &answer {
        if let Failure::Tag(missing) = failure {
            note(backend, missing);
        }
        backend.process.tell(|| format!("cannot {:?}: {failure:?}", due.need));
    }
    supplier.conclude(port, due, &answer);
    backend.signal();
}

/// A request that has failed leaves its demand, unless there are no more values.
fn keep_demand(port: &mut Worker, answer: &Answer<()>, ring: &RingSnapshot) {
    let demand = port.work.demand.take();
    match answer {
        Err(Failure::Coordinator(_) | Failure::Tag(_)) => drop(demand),
        Ok(()) | Err(Failure::Gone) => std::mem::forget(demand),
        Err(Failure::Exhausted(_)) => {
            std::mem::forget(demand);
            let state = &port.backend.memory.states[ring.index];
            let is_it = port.backend.memory.table(|table| table.has_tenancy(ring.index, ring.tenant.handle));
            state.exhausted.set(state.exhausted.get() || is_it);
        }
    }
}

impl Worker<'_> {
    /// No request is due before this time, by the clock of the worker.
    fn retry_at_us(&self) -> Option<i64> {
        let (retry_at, now) = (self.work.link.retry_at?, self.backend.instant());
        Some(self.backend.now_us() + retry_at.saturating_duration_since(now).as_micros() as i64)
    }

    fn call<T: 'static>(&mut self, statement: impl FnOnce(&Backend) -> Answer<T> + 'static) -> Answer<T> {
        let connection = self.work.connection.as_ref().expect("a request opens it first");
        connection.call(self.backend, statement).unwrap_or_else(|broken| Err(Failure::Coordinator(broken.to_owned())))
    }
}

impl Asking for Worker<'_> {
    fn random_fraction(&mut self) -> f64 {
        0.5
    }

    fn open(&mut self) -> Result<(), String> {
        let backend = self.backend;
        backend.process.check_interrupts();
        backend.process.step();
        let connection = match self.work.link.request(backend.instant(), TIMEOUT) {
            Step::Use(connection) => connection,
            Step::Probe(connection) if connection.is_alive(backend) => connection,
            Step::Probe(_) | Step::Connect => {
                self.work.last = None;
                self.work.link.connect();
                Connection::open(backend)?
            }
        };
        self.work.connection = Some(connection);
        Ok(())
    }

    fn answered(&mut self) {
        let now = self.backend.instant();
        if let Some(connection) = self.work.connection.take() {
            self.work.link.answered(now, connection, TIMEOUT, now + KEPT);
        }
    }

    fn failures(&mut self) -> u32 {
        self.work.link.failures
    }

    fn failed(&mut self, pause: Duration) -> bool {
        (self.work.connection, self.work.last) = (None, None);
        let is_repeated = self.work.link.failed(self.backend.instant(), pause);
        if is_repeated {
            self.backend.world().reach("a request is repeated");
        }
        is_repeated
    }

    fn ask(&mut self, name: &str, server: Server, count: u64) -> Answer<Granted> {
        let tag = TAGS.iter().position(|tag| *tag == name).expect("a tag of this world");
        let repeats_once_in = self.backend.shared.network.borrow().repeats_once_in;
        if let Some((of, number, answer)) = &self.work.last
            && (*of, *number, count > 0) == (tag, server.number, true)
            && repeats_once_in > 0
            && self.backend.world().once_in(repeats_once_in)
        {
            return Ok(answer.clone());
        }
        if count > 0 && std::mem::replace(&mut self.work.is_unconfirmed, true) {
            let text = "G4: retries lose more than the values of one request".to_owned();
            self.backend.world().break_promise(self.backend.server(), text);
        }
        let answer = self.call(move |backend| backends::request(backend, tag, server, count));
        if count > 0 {
            // An answer that never came may have been a grant.
            self.work.is_unconfirmed = matches!(answer, Ok((_, Ok(_))) | Err(Failure::Coordinator(_)));
        }
        let granted = answer?;
        self.work.last = Some((tag, server.number, granted.clone())).filter(|(.., granted)| granted.1.is_ok());
        Ok(granted)
    }

    fn ask_to_leave(&mut self, name: &str, server: Server) -> Answer<()> {
        let tag = TAGS.iter().position(|tag| *tag == name).expect("a tag of this world");
        self.call(move |backend| backends::leave(backend, tag, server))
    }

    fn confirm(&mut self) -> Answer<()> {
        self.call(backends::confirm)?;
        self.work.is_unconfirmed = false;
        Ok(())
    }
}

impl Supplying for Worker<'_> {
    fn await_lock(&mut self, creation: i64) -> Option<TagRow> {
        self.backend.process.check_interrupts();
        let tag =
            (0..TAGS.len()).find(|tag| self.backend.tag_row(*tag).is_some_and(|row| row.key.creation == creation))?;
        let transaction = self.running();
        transaction.await_lock(tag);
        transaction.tag(tag).filter(|row| row.key.creation == creation)
    }

    fn record(&mut self, row: &TagRow) -> Option<i64> {
        Some(self.running().write(index_of(row), row.clone(), true).version)
    }

    fn forget(&mut self, creation: i64, server: i64) {
        let Some(mut row) = self.await_lock(creation).filter(|row| row.link.server == Some(server)) else { return };
        row.link.received = None;
        self.running().write(index_of(&row), row, false);
    }

    fn begin_turn(&mut self, ring: &RingSnapshot) -> Option<(u64, u64)> {
        let (memory, handle) = (&self.backend.memory, ring.tenant.handle);
        memory.in_tenancy(ring.index, handle, |_| memory.turns.borrow_mut()[ring.index].begin()).flatten()
    }

    fn restore_demand(&mut self) {
        self.work.demand = None;
    }
}
