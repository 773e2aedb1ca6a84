//! A server and its link to a coordinator in memory. The answer to one request can be lost, and the server can be killed
//! before one of its steps.

use super::database::{Database, POOL};
use crate::coordinator::{CoordinatorId, Place};
use crate::worker::Rectangle;
use crate::worker::Refusal;
use crate::worker::by_hand::WorkerSetting;
use crate::worker::granting::{Request, acquire};
use crate::worker::holding::{Renewal, confirm, release, renew};
use crate::worker::lease::{ServerLease, WorkerLease};
use crate::worker::memory::{LastWorkerId, Memory, MemoryFile, RememberedLease};
use crate::worker::server::{Coordinator, Event, Failure, Interrupt, NO_REQUEST, Server};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CStr;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

/// A connection to the coordinator.
#[derive(Clone)]
pub struct Link {
    pub database: Rc<RefCell<Database>>,
    /// The requests until the one whose answer is lost.
    pub until_lost: Rc<Cell<usize>>,
    /// Before each confirmation, a process that copied the token renews.
    pub is_copied: Rc<Cell<bool>>,
    /// The end that this server was told for a token, and the one of these that was confirmed.
    pub told: Rc<RefCell<HashMap<i64, i64>>>,
    pub certain: Rc<RefCell<HashMap<i64, i64>>>,
}

#[derive(Debug)]
pub enum Error {
    Lost,
    Refused,
    AnotherCoordinator,
}

impl Failure for Error {
    fn is_refusal(&self) -> bool {
        matches!(self, Error::Refused)
    }

    fn another_coordinator() -> Self {
        Error::AnotherCoordinator
    }
}

impl Link {
    fn call<R>(&self, request: impl FnOnce(&mut Database) -> Result<R, Refusal>) -> Result<R, Error> {
        let database = &mut self.database.borrow_mut();
        let before = database.clone();
        let answer = request(database).map_err(|_| {
            **database = before;
            Error::Refused
        });
        let left = self.until_lost.get();
        self.until_lost.set(left.wrapping_sub(1));
        if left == 0 { Err(Error::Lost) } else { answer }
    }
}

impl Coordinator for Link {
    type Error = Error;

    fn identity(&self) -> CoordinatorId {
        self.database.borrow().id()
    }

    fn acquire(&mut self, pool: &str, reached_us: i64, prefer: Option<u32>) -> Result<(WorkerLease, Duration), Error> {
        let request = Request {
            owner: Some("this server"),
            ttl_us: None,
            ttl_limits_us: 0..=i64::MAX,
            reached_us: Some(reached_us),
            prefer: prefer.map(|worker_id| worker_id as i32),
        };
        let (grant, _) = self.call(|database| acquire(database, pool, &request))?;
        self.told.borrow_mut().insert(grant.token, grant.rectangle.not_after_us);
        let not_before_us = grant.rectangle.not_before_us;
        let lease = WorkerLease {
            worker_id: grant.worker_id as u32,
            token: grant.token,
            coordinator: self.identity(),
            rectangle: Rectangle { not_before_us, not_after_us: not_before_us },
            last_not_after_us: grant.rectangle.not_after_us,
        };
        Ok((lease, self.ttl()))
    }

    fn renew(&mut self, pool: &str, lease: &WorkerLease, reached_us: i64) -> Result<(i64, Duration), Error> {
        let last_us = lease.last_not_after_us;
        match self.call(|database| renew(database, pool, lease.token, last_us, Some(reached_us)))? {
            Renewal::Until(end_us) => {
                self.told.borrow_mut().insert(lease.token, end_us);
                Ok((end_us, self.ttl()))
            }
            Renewal::Ended { .. } => Ok((last_us, self.ttl())),
        }
    }

    fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Error> {
        let told_us = self.told.borrow()[&token];
        if self.is_copied.get() {
            self.call(|database| renew(database, pool, token, told_us, Some(database.now_us + 1_000_000)))?;
        }
        let end_us = self.call(|database| confirm(database, pool, token))?;
        self.certain.borrow_mut().insert(token, end_us.min(told_us));
        Ok(end_us)
    }

    fn holds(&mut self, _pool: &str, lease: &WorkerLease, _refusal: &Error) -> Result<bool, Error> {
        self.call(|database| {
            let end_us = Some(lease.last_not_after_us);
            Ok(database.rows.iter().any(|(row, ..)| row.token == Some(lease.token) && row.not_after_us == end_us))
        })
    }

    fn release(&mut self, pool: &str, token: i64, last: Option<(i64, i64)>) -> Result<(), Error> {
        self.call(|database| release(database, pool, token, last.map(|last| last.0), last.map(|last| last.1)))
    }
}

impl Link {
    fn ttl(&self) -> Duration {
        Duration::from_micros(self.database.borrow().pool.ttl_us as u64)
    }
}

/// The server was killed.
pub struct Killed;

pub struct Own {
    pub link: Link,
    /// The steps until it is killed.
    pub until_killed: usize,
    pub memory: MemoryFile,
    pub shared: ServerLease,
    pub setting: WorkerSetting,
    /// The worker id and the token under which ids are issued, and their times in milliseconds.
    pub issuing: Option<(u32, i64, i64, i64)>,
    /// The token under which each millisecond of a worker id was used.
    pub used: HashMap<(u32, i64), i64>,
    pub failures: u32,
}

impl Own {
    pub fn here() -> Place {
        Place::new("8-9", "6-7", "two")
    }

    fn step(&mut self) {
        if self.until_killed == 0 {
            // Without the message of a panic.
            resume_unwind(Box::new(Killed));
        }
        self.until_killed -= 1;
    }

    /// Issues an id now, if that is allowed, and one a little ahead of the clock.
    pub fn draw(&mut self) {
        let now_ms = self.now_us() / 1000;
        for time_ms in [now_ms, now_ms + 3] {
            if let Some((worker_id, token, first_ms, end_ms)) = self.issuing
                && (first_ms..end_ms).contains(&time_ms)
            {
                let by = *self.used.entry((worker_id, time_ms)).or_insert(token);
                assert_eq!(by, token, "worker id {worker_id} was used twice at {time_ms} ms");
            }
        }
    }

    /// What ids are issued under is remembered, and confirmed.
    fn check(&self, token: i64, end_ms: i64) {
        let is_remembered = |lease: &RememberedLease| lease.pool == POOL && lease.token == token;
        assert!(
            matches!(&self.memory, MemoryFile::Valid(Memory { worker: LastWorkerId::Leased(lease), .. }) if is_remembered(lease)),
            "{:?} is used without a memory",
            token
        );
        assert!(end_ms <= self.link.certain.borrow()[&token].div_euclid(1000), "the end is not certain");
    }
}

impl Server for Own {
    type Error = Error;
    type Coordinator = Link;

    fn boot_us(&self) -> i64 {
        self.now_us()
    }

    fn now_us(&self) -> i64 {
        self.link.database.borrow().now_us
    }

    fn random_fraction(&mut self) -> f64 {
        0.5
    }

    fn setting(&self) -> WorkerSetting {
        self.setting
    }

    fn read_memory(&self) -> MemoryFile {
        self.memory.clone()
    }

    fn here(&self) -> Option<Place> {
        Some(Self::here())
    }

    fn write_memory(&mut self, worker: LastWorkerId) -> Result<(), Error> {
        self.step();
        self.memory = MemoryFile::Valid(Memory { place: Self::here(), worker });
        Ok(())
    }

    fn try_write_memory(&mut self, worker: LastWorkerId) {
        let _ = self.write_memory(worker);
    }

    fn take_request(&mut self) -> i64 {
        NO_REQUEST
    }

    fn next_ms(&self) -> i64 {
        self.unused_from_ms()
    }

    fn unused_from_ms(&self) -> i64 {
        self.used.keys().map(|(_, time_ms)| time_ms + 1).max().unwrap_or(i64::MIN)
    }

    fn store(&mut self, lease: &ServerLease) {
        self.step();
        self.shared = *lease;
    }

    fn publish(&mut self, _pool: &str, lease: &ServerLease) {
        let shown_ms = lease.rectangle().map(|rectangle| rectangle.end_ms());
        let (.., end_ms) = self.issuing.expect("a lease");
        assert!(shown_ms <= Some(end_ms), "sessions see an end that ids do not have yet");
        self.store(lease);
    }

    fn issue_leased(&mut self, _pool: &str, lease: &ServerLease) {
        self.step();
        let WorkerLease { worker_id, token, rectangle, .. } = lease.current.expect("a lease");
        self.check(token, rectangle.end_ms());
        self.shared = *lease;
        self.setting.is_in_use = false;
        self.issuing = Some((worker_id, token, rectangle.first_ms(), rectangle.end_ms()));
    }

    fn issue_by_setting(&mut self) {
        self.step();
        self.setting.is_in_use = true;
        self.issuing = None;
    }

    fn issue_nothing(&mut self) {
        self.step();
        self.issuing = None;
    }

    fn extend_to(&mut self, until_ms: i64) {
        self.step();
        let (_, token, _, end_ms) = self.issuing.as_mut().expect("a lease");
        *end_ms = until_ms;
        let token = *token;
        self.check(token, until_ms);
    }

    fn clear(&mut self) {
        self.step();
        self.shared = ServerLease::default();
    }

    fn failures(&self) -> u32 {
        self.failures
    }

    fn connected_in(&self) -> Duration {
        Duration::ZERO
    }

    fn is_interrupted(&self) -> bool {
        false
    }

    fn open(&mut self, _limit: Duration) -> Result<Link, Error> {
        Ok(self.link.clone())
    }

    fn answered(&mut self, _coordinator: Link, _pause: Duration) {
        self.failures = 0;
    }

    fn failed(&mut self, _pool: &str, _error: &Error, _is_first: bool, lease: &ServerLease, _pause: Duration) {
        self.store(lease);
        self.failures += 1;
    }

    fn reset(&mut self) {
        self.failures = 0;
    }

    fn once<R>(
        &mut self,
        _coordinator: &CStr,
        _limit: Duration,
        _until: Interrupt,
        calls: impl FnOnce(&mut Link) -> Result<R, Error>,
    ) -> Result<R, Error> {
        calls(&mut self.link)
    }

    fn tell(&mut self, _pool: &str, _event: Event<Error>) {}
}
