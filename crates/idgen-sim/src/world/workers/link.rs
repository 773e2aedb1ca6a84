//! A keeper's connection to the coordinator. A request or its answer can be late or lost.

use super::coordinator::{self, Coordination};
use super::member::Own;
use crate::world::place;
use crate::world::process::Process;
use crate::world::server::Phase;
use idgen_core::coordinator::CoordinatorId;
use idgen_core::history::Identity;
use idgen_core::worker::Refusal;
use idgen_core::worker::lease::WorkerLease;
use idgen_core::worker::server::{Coordinator, Failure};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Why a request has given nothing.
#[derive(Debug)]
pub enum Error {
    NotReached,
    Lost,
    File,
    Refused(#[expect(dead_code, reason = "a story shows it")] Refusal),
    AnotherCoordinator,
}

impl Failure for Error {
    fn is_refusal(&self) -> bool {
        matches!(self, Error::Refused(_))
    }

    fn another_coordinator() -> Self {
        Error::AnotherCoordinator
    }
}

pub fn coordinator_id(identity: &Identity) -> CoordinatorId {
    CoordinatorId { system_identifier: identity.system_identifier, database: identity.database }
}

pub struct Link<'a> {
    own: Own<'a>,
    coordinator: usize,
    /// Of the coordinator; the connection ends with it.
    start: u64,
    limit: Duration,
    is_broken: bool,
    /// It ends with the settings that the keeper had read.
    pool: Option<&'static str>,
    /// Only a stop ends it.
    pub is_of_its_own: bool,
}

/// How often a wait looks whether the connection is broken.
const LONGEST_WAIT: Duration = Duration::from_millis(300);

impl<'a> Link<'a> {
    pub fn open(own: Own<'a>, pool: Option<&'static str>, limit: Duration) -> Result<Self, Error> {
        own.step();
        let coordination = own.coordination;
        let coordinator = coordination.address.get();
        let is_running = own.process.world.servers.borrow()[coordinator].phase == Phase::Running;
        if !is_running || coordination.network.is_cut.get() {
            own.process.sleep(limit / 4);
            return Err(Error::NotReached);
        }
        Ok(Self {
            own,
            coordinator,
            start: coordination.start_number(coordinator),
            limit,
            is_broken: false,
            pool,
            is_of_its_own: false,
        })
    }

    fn is_interrupted(&self, by_reload: bool) -> bool {
        let is_reloaded = |pool| by_reload && !self.is_of_its_own && pool != self.pool;
        self.own.member(|member| !self.is_of_its_own && member.must_stop || is_reloaded(member.pool))
    }

    fn loses(&self) -> bool {
        let Coordination { network, .. } = &**self.own.coordination;
        let once_in = network.loses_once_in.get();
        network.is_cut.get() || once_in > 0 && self.own.process.world.once_in(once_in)
    }

    /// Runs a request in a session of the coordinator, which may go on when the keeper has given up.
    fn call<R: 'static>(
        &mut self,
        ends_by_reload: bool,
        work: impl FnOnce(&Process, &Rc<Coordination>) -> Result<R, Refusal> + 'static,
    ) -> Result<R, Error> {
        self.own.step();
        let Own { process, coordination } = self.own;
        let until_us = process.world.now_us.get() + self.limit.as_micros() as i64;
        let answer = Rc::new(RefCell::new(None));
        let is_alive = |link: &Self| {
            link.start == coordination.start_number(link.coordinator)
                && process.world.servers.borrow()[link.coordinator].phase == Phase::Running
        };
        if !self.is_broken && is_alive(self) && !self.loses() {
            let is_lost = self.loses();
            let (answer, coordination, member) = (answer.clone(), coordination.clone(), process.server);
            let session = move |process: &Process| {
                let delay = coordination.network.delay.get();
                process.sleep(delay.mul_f64(f64::from(process.world.below(11)) / 10.0));
                let outcome = work(process, &coordination);
                process.sleep(delay.mul_f64(f64::from(process.world.below(11)) / 10.0));
                if !is_lost {
                    *answer.borrow_mut() = Some(outcome);
                    process.world.signal(member);
                }
            };
            process.world.spawn(self.coordinator, "request", Box::new(session));
        }
        let answered = loop {
            let left_us = until_us - process.world.now_us.get();
            if let Some(outcome) = answer.borrow_mut().take() {
                break Some(outcome);
            }
            if left_us <= 0 || self.is_broken || !is_alive(self) || self.is_interrupted(ends_by_reload) {
                break None;
            }
            process.wait(Duration::from_micros(left_us as u64).min(LONGEST_WAIT));
        };
        self.is_broken |= answered.is_none();
        if answered.is_none() {
            process.world.reach("an answer of the coordinator is lost");
        }
        answered.ok_or(Error::Lost)?.map_err(Error::Refused)
    }
}

impl Coordinator for Link<'_> {
    type Error = Error;

    fn identity(&self) -> CoordinatorId {
        CoordinatorId { system_identifier: place::SYSTEM, database: place::DATABASE }
    }

    fn acquire(&mut self, pool: &str, reached_us: i64, prefer: Option<u32>) -> Result<(WorkerLease, Duration), Error> {
        let (pool, owner) = (pool.to_owned(), self.own.name());
        self.call(false, move |process, coordination| {
            coordinator::acquire(process, coordination, &pool, &owner, (reached_us, prefer))
        })
    }

    fn renew(&mut self, pool: &str, lease: &WorkerLease, reached_us: i64) -> Result<(i64, Duration), Error> {
        let (pool, lease) = (pool.to_owned(), *lease);
        self.call(false, move |process, coordination| {
            coordinator::renew(process, coordination, &pool, &lease, reached_us)
        })
    }

    fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Error> {
        let pool = pool.to_owned();
        self.call(true, move |process, coordination| coordinator::confirm(process, coordination, &pool, token))
    }

    fn holds(&mut self, pool: &str, lease: &WorkerLease, _refusal: &Error) -> Result<bool, Error> {
        let (pool, lease) = (pool.to_owned(), *lease);
        self.call(true, move |process, coordination| Ok(coordinator::holds(process, coordination, &pool, &lease)))
    }

    fn release(&mut self, pool: &str, token: i64, last: Option<(i64, i64)>) -> Result<(), Error> {
        let pool = pool.to_owned();
        self.call(true, move |process, coordination| coordinator::release(process, coordination, &pool, token, last))
    }
}
