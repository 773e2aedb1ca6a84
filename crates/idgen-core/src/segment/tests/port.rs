//! A server with the row of one tag and its ring, and the coordinator of a fleet, for the procedures over ports. Each call of a
//! port can be the last one of the process.

use super::{key, table};
use crate::coordinator::Place;
use crate::history::Identity;
use crate::segment::fleet::rows::{self, Privilege, Server, TagRows};
use crate::segment::fleet::{Reply, ServerReport, SharedTag};
use crate::segment::refill::{Filling, Refilling};
use crate::segment::supply::requests::{Answer, Asking, Failure};
use crate::segment::supply::supplier::Supplying;
use crate::segment::tag::{Link, NotLocked, Origin, TagDefinition, TagRow};
use crate::segment::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Duration;

pub fn row(creation: i64) -> TagRow {
    let (max_id, step) = (0, 10);
    let definition = TagDefinition {
        max_id,
        step,
        min_step: 1,
        max_step: 100,
        target_us: 1_000_000,
        stride: 1,
        residue: 0,
        upper_bound: i64::MAX,
    };
    let (key, tag, link) = (key(creation), "t".to_owned(), Link::default());
    TagRow { key, tag, version: 1, created_here: false, definition, link }
}

/// The rows of a coordinator, and those of its standby.
#[derive(Clone)]
pub struct Coordinator {
    pub tag: TagRow,
    pub reports: Vec<ServerReport>,
    pub identity: Identity,
    standby: (TagRow, Vec<ServerReport>),
}

impl Coordinator {
    pub fn new() -> Self {
        let place = Place::new("4-5", "6-7", "one");
        let identity = Identity { system_identifier: 1, timeline: 1, database: 3, place, is_copy: false };
        Self { tag: row(7), reports: Vec::new(), identity, standby: (row(7), Vec::new()) }
    }

    /// The standby is promoted, with what it has.
    pub fn fail_over(&mut self) {
        (self.tag, self.reports) = self.standby.clone();
        self.identity.timeline += 1;
    }
}

impl TagRows for Coordinator {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn exists(&mut self, _tag: &str) -> bool {
        true
    }

    fn lock_report(&mut self, _tag: &str, _server: i64) -> bool {
        true
    }

    fn lock(&mut self, _tag: &str, _privilege: Privilege) -> TagRow {
        self.tag.clone()
    }

    fn reports(&mut self, _tag: &str, server: Option<i64>) -> Vec<ServerReport> {
        self.reports.iter().filter(|report| server.is_none_or(|server| report.server == server)).cloned().collect()
    }

    fn names(&mut self, _tag: &str, servers: Vec<i64>) -> String {
        format!("{servers:?}")
    }

    fn share(&mut self, row: &TagRow, shared: &SharedTag, report: Option<&ServerReport>) {
        if let Some(report) = report {
            self.delete_report(&row.tag, report.server);
            self.reports.push(report.clone());
        }
        self.tag.definition.max_id = shared.allocation.max_id;
        self.tag.link.history = shared.history.clone();
    }

    fn clear_reports(&mut self, _row: &TagRow, _received: i64) {
        self.reports.iter_mut().for_each(|report| report.history.clear());
    }

    fn delete_report(&mut self, _tag: &str, server: i64) {
        self.reports.retain(|report| report.server != server);
    }
}

/// What goes wrong in a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The process ends before this call of the port.
    pub crash_at: Option<u32>,
    /// The answer to a request for values is lost, or the standby of the coordinator does not answer.
    pub loses_answer: bool,
    pub standby_is_away: bool,
    /// The standby is asynchronous, and lacks the request when it is confirmed.
    pub standby_lags: bool,
    /// The coordinator fails over after it has granted values.
    pub fails_over: bool,
    /// The wait for the server's own standby is canceled.
    pub is_cancelled: bool,
}

/// A process ends in the middle of its work.
struct End;

/// A server with one ring.
pub struct Process {
    pub coordinator: Rc<RefCell<Coordinator>>,
    /// The tag of this server has no others that are attached to it.
    own: Coordinator,
    /// As it is on the disk.
    pub row: TagRow,
    written: Option<TagRow>,
    is_durable: bool,
    pub table: RingTable<'static>,
    /// All ranges that were installed, by any process of this server.
    pub installed: Vec<ValueRun>,
    pub faults: Faults,
    pub calls: Vec<&'static str>,
    connected_to: Option<u32>,
}

impl Process {
    pub fn new(coordinator: &Rc<RefCell<Coordinator>>, row: TagRow) -> Self {
        let mut table = table(1, 1);
        table.attach(row.key, row.version, 1, |_| None);
        Self {
            coordinator: coordinator.clone(),
            own: Coordinator::new(),
            row,
            written: None,
            is_durable: false,
            table,
            installed: Vec::new(),
            faults: Faults::default(),
            calls: Vec::new(),
            connected_to: None,
        }
    }

    pub fn ring(&self, demand: u64) -> RingSnapshot {
        let tenant = self.table.tenants[0].expect("it has one");
        let remaining = self.table.rings[0].remaining(tenant.handle);
        RingSnapshot { index: 0, tenant, remaining, has_room: true, position: 0, demand, turn_due: 0 }
    }

    /// False if the process has ended.
    pub fn survives(&mut self, work: impl FnOnce(&mut Self)) -> bool {
        self.calls.clear();
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        (self.written, self.faults) = (None, Faults::default());
        match outcome {
            Ok(()) => true,
            Err(end) if end.is::<End>() => false,
            Err(failure) => resume_unwind(failure),
        }
    }

    fn effect(&mut self, call: &'static str) {
        if self.faults.crash_at == Some(self.calls.len() as u32) {
            resume_unwind(Box::new(End));
        }
        self.calls.push(call);
    }
}

impl Filling for Process {
    fn now_us(&mut self) -> i64 {
        0
    }

    fn transaction<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> Result<R, NoValues> {
        self.is_durable = false;
        let result = work(self);
        self.effect("commit");
        if let Some(written) = self.written.take() {
            assert!(self.is_durable, "a commit that a crash undoes");
            self.row = written;
        }
        Ok(result)
    }

    fn require_durability(&mut self) {
        self.is_durable = true;
    }

    fn was_cancelled(&mut self) -> bool {
        self.faults.is_cancelled
    }

    fn lock(&mut self, _creation: i64) -> Result<TagRow, NotLocked> {
        self.effect("lock");
        Ok(self.row.clone())
    }

    fn install(&mut self, key: TagKey, new: NewRange) {
        self.effect("install");
        assert!(new.range.last() <= self.row.definition.max_id, "values that the row does not have");
        let is_installed = self.table.install(0, key, &new, &mut turns::Turns::default(), 0);
        self.installed.extend(is_installed.then_some(new.range));
    }
}

impl Refilling for Process {
    type Rows = Coordinator;

    fn rows(&mut self) -> &mut Coordinator {
        &mut self.own
    }

    fn has_room(&mut self) -> bool {
        self.table.rings[0].has_room()
    }

    fn low_water(&mut self, count: u64) -> u64 {
        count / 2
    }

    fn raise(&mut self, row: &TagRow) {
        self.effect("write");
        self.written = Some(row.clone());
    }

    fn exhaust(&mut self, _version: i64) {}

    fn evict(&mut self) {
        self.table.end(0);
    }
}

impl Asking for Process {
    fn random_fraction(&mut self) -> f64 {
        0.5
    }

    fn open(&mut self) -> Result<(), String> {
        self.effect("open");
        self.connected_to = Some(self.coordinator.borrow().identity.timeline);
        Ok(())
    }

    fn answered(&mut self) {}

    fn failures(&mut self) -> u32 {
        0
    }

    fn failed(&mut self, _pause: Duration) -> bool {
        self.connected_to = None;
        false
    }

    fn ask(&mut self, tag: &str, server: Server, count: u64) -> Answer<(Origin, Result<ValueRun, String>)> {
        self.effect("ask");
        let (origin, reply) = rows::request(&mut *self.coordinator.borrow_mut(), tag, server, count).unwrap();
        if self.faults.fails_over {
            self.coordinator.borrow_mut().fail_over();
        }
        if self.faults.loses_answer {
            return Err(Failure::Coordinator(String::new()));
        }
        let granted = match reply {
            Reply::Granted(run) => Ok(run),
            Reply::Waits { unreported } => Err(format!("{unreported:?}")),
            Reply::Exhausted => Err(String::new()),
        };
        Ok((origin, granted))
    }

    fn ask_to_leave(&mut self, tag: &str, server: Server) -> Answer<()> {
        self.effect("leave");
        rows::leave(&mut *self.coordinator.borrow_mut(), tag, server).unwrap();
        Ok(())
    }

    fn confirm(&mut self) -> Answer<()> {
        self.effect("confirm");
        let mut coordinator = self.coordinator.borrow_mut();
        if self.faults.standby_is_away || self.connected_to != Some(coordinator.identity.timeline) {
            return Err(Failure::Coordinator(String::new()));
        }
        if !self.faults.standby_lags {
            coordinator.standby = (coordinator.tag.clone(), coordinator.reports.clone());
        }
        Ok(())
    }
}

impl Supplying for Process {
    fn await_lock(&mut self, _creation: i64) -> Option<TagRow> {
        self.effect("await lock");
        Some(self.row.clone())
    }

    fn record(&mut self, row: &TagRow) -> Option<i64> {
        self.effect("write");
        self.written = Some(row.clone());
        Some(row.version)
    }

    fn forget(&mut self, _creation: i64, _server: i64) {
        self.effect("forget");
        self.is_durable = true;
        let mut row = self.row.clone();
        row.link.received = None;
        self.written = Some(row);
    }

    fn begin_turn(&mut self, _ring: &RingSnapshot) -> Option<(u64, u64)> {
        None
    }

    fn restore_demand(&mut self) {}
}
