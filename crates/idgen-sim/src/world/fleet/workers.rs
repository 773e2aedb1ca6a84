//! The workers that fill rings: how sessions ask for them, how they begin and end, and the loop of the refill worker.

use super::super::effects::Canceled;
use super::port::{Port, Refill, note};
use super::{Backend, supply};
use idgen_core::segment::RingTenant;
use idgen_core::segment::refill::refill;
use idgen_core::segment::refillers::{Call, Duty, Refillers};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

const IDLE_US: i64 = 2_000_000;
const RETRY_US: i64 = 100_000;

const DATABASE: u32 = 5;

fn duty(is_attached: bool) -> Duty {
    Duty { database: DATABASE, is_attached }
}

impl Backend<'_> {
    /// Wakes the worker that serves a ring, or starts one. After a failure, the next start has to wait.
    pub fn summon(&self, index: usize) {
        self.summon_worker(self.memory.states[index].is_attached.get(), true);
    }

    /// Wakes a worker, or starts one.
    pub fn summon_worker(&self, is_attached: bool, asks_again: bool) {
        let duty = duty(is_attached);
        let call = Refillers(&mut *self.memory.refillers.borrow_mut()).call(duty, asks_again, self.now_us());
        match call {
            Call::Wake { .. } => self.signal(),
            Call::Start if self.world().faults.borrow().no_workers => {
                Refillers(&mut *self.memory.refillers.borrow_mut()).give_up(duty);
            }
            Call::Start if is_attached => self.spawn("supply worker", |backend| run(backend, true)),
            Call::Start => self.spawn("refill worker", |backend| run(backend, false)),
            Call::Wait => {}
        }
    }

    fn spawn(&self, name: &'static str, work: fn(&Backend)) {
        self.shared.spawn(self.world(), self.server(), name, work);
    }

    /// A ring runs low.
    pub fn prefetch(&self, index: usize) {
        let state = &self.memory.states[index];
        if !state.is_attached.get() {
            state.demand.set(state.demand.get().max(1));
        }
        self.summon_worker(state.is_attached.get(), false);
    }

    /// Ends the worker's registration, unless there is demand that it can serve.
    pub fn end_worker(&self, is_attached: bool, is_failing: bool) -> bool {
        let served = |index: usize| !is_failing || !self.memory.states[index].is_failing.get();
        let has_demand = self.memory.snapshots(is_attached).iter().any(|ring| ring.demand > 0 && served(ring.index));
        let latch = self.process.id as usize;
        Refillers(&mut *self.memory.refillers.borrow_mut()).end(duty(is_attached), latch, has_demand)
    }
}

/// The main function of both workers. One that is terminated restores the demand that it has taken.
fn run(backend: &Backend, is_attached: bool) {
    let (duty, latch) = (duty(is_attached), backend.process.id as usize);
    if !Refillers(&mut *backend.memory.refillers.borrow_mut()).begin(duty, latch) {
        return;
    }
    let work = || if is_attached { supply::run(backend) } else { serve_rows(backend) };
    let outcome = catch_unwind(AssertUnwindSafe(work));
    if let Err(reason) = outcome {
        if !reason.is::<Canceled>() {
            resume_unwind(reason);
        }
        backend.world().reach("a worker is terminated");
        Refillers(&mut *backend.memory.refillers.borrow_mut()).fail(duty, latch, backend.now_us());
        if is_attached {
            backend.memory.turns.borrow_mut().iter_mut().for_each(|turns| turns.give_up());
        }
        backend.signal();
    }
}

/// The main loop of the refill worker.
fn serve_rows(backend: &Backend) {
    let (mut idle_since_us, mut is_failing) = (backend.now_us(), false);
    loop {
        backend.process.check_interrupts();
        let mut has_refilled = false;
        for ring in backend.memory.snapshots(false).into_iter().filter(|ring| ring.demand > 0) {
            let demand = backend.memory.in_tenancy(ring.index, ring.tenant.handle, |state| state.demand.replace(0));
            let Some(demand) = demand.filter(|demand| *demand > 0) else { continue };
            let succeeded = serve(backend, ring.index, ring.tenant, demand);
            if succeeded || !is_failing {
                idle_since_us = backend.now_us();
            }
            is_failing = !succeeded;
            has_refilled |= succeeded;
        }
        if has_refilled {
            continue;
        }
        let pause_us = (IDLE_US - (backend.now_us() - idle_since_us)).max(0);
        if pause_us == 0 {
            if backend.end_worker(false, is_failing) {
                return;
            }
            idle_since_us = backend.now_us();
            backend.process.step();
            continue;
        }
        let pause_us = if is_failing { pause_us.min(RETRY_US) } else { pause_us };
        backend.process.wait(Duration::from_micros(pause_us as u64));
    }
}

/// Refills one ring, and wakes its waiters. False if it failed.
fn serve(backend: &Backend, index: usize, tenant: RingTenant, demand: u64) -> bool {
    let restore = Restored { backend, index, demand };
    let mut port = Port::new(backend, Refill { index, tenant });
    let failure = refill(&mut port, &tenant, demand).err();
    match &failure {
        None => std::mem::forget(restore),
        Some(missing) => {
            note(backend, missing);
            backend.process.tell(|| format!("cannot refill: {missing:?}"));
            backend.memory.in_tenancy(index, tenant.handle, |state| state.is_failing.set(true));
        }
    }
    backend.signal();
    failure.is_none()
}

/// The demand of a refill that is running: it is demanded again unless that succeeds.
pub struct Restored<'a> {
    pub backend: &'a Backend<'a>,
    pub index: usize,
    pub demand: u64,
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let demand = &self.backend.memory.states[self.index].demand;
        demand.set(demand.get().max(self.demand));
    }
}
