//! A transaction on the rows of tags: locks, the trigger of the table, the commit, and what the core's procedures of a
//! coordinator do with rows.

use super::super::disk::Entry;
use super::super::place;
use super::super::rows::{Key, Row};
use super::memory::Memory;
use super::{Backend, TAGS};
use idgen_core::history::Identity;
use idgen_core::segment::fleet::rows::{Privilege, TagRows};
use idgen_core::segment::fleet::{ServerReport, SharedTag};
use idgen_core::segment::tag::{NotLocked, TagDefinition, TagRow};
use idgen_core::segment::{DROPPED, TagKey};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Duration;

/// An error that ends a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised(pub &'static str);

pub const UNKNOWN: Raised = Raised("there is no such segment");

/// Runs what may raise an error.
pub fn guarded<R>(work: impl FnOnce() -> R) -> Result<R, Raised> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|reason| match reason.downcast::<Raised>() {
        Ok(raised) => *raised,
        Err(reason) => resume_unwind(reason),
    })
}

pub fn raise(raised: Raised) -> ! {
    resume_unwind(Box::new(raised))
}

/// The row of a tag that is locked.
struct Lock {
    memory: Rc<Memory>,
    tag: usize,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.memory.locks.borrow_mut().remove(&self.tag);
    }
}

/// A change after which the values of a ring are no longer those of its row.
struct Ended {
    key: TagKey,
    version: i64,
    stride: i64,
    is_link: bool,
}

/// How long a backend waits for a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Transaction<'a> {
    pub backend: &'a Backend<'a>,
    identity: Identity,
    changes: BTreeMap<Key, Option<Row>>,
    locks: Vec<Lock>,
    ended: Vec<Ended>,
    /// Tags of which a server has received more than was granted.
    noticed: Vec<usize>,
    is_announced: bool,
    is_flushed: bool,
    /// The commit also waits for the standby.
    pub is_durable: bool,
}

impl<'a> Transaction<'a> {
    pub fn new(backend: &'a Backend<'a>) -> Self {
        let identity = backend.process.server(|server| place::identity(&server.directory));
        let (changes, locks, ended) = (BTreeMap::new(), Vec::new(), Vec::new());
        let [is_announced, is_flushed, is_durable] = [false; 3];
        let noticed = Vec::new();
        Self { backend, identity, changes, locks, ended, noticed, is_announced, is_flushed, is_durable }
    }

    /// A server has reported to it that values of the tag are lost.
    pub fn has_noticed(&self, tag: usize) -> bool {
        self.noticed.contains(&tag)
    }

    pub fn read(&self, key: Key) -> Option<Row> {
        match self.changes.get(&key) {
            Some(changed) => changed.clone(),
            None => self.backend.process.server(|server| server.directory.rows().get(&key).cloned()),
        }
    }

    pub fn tag(&self, tag: usize) -> Option<TagRow> {
        match self.read(Key::Segment(tag)) {
            Some(Row::Segment(row)) => Some(row),
            _ => None,
        }
    }

    fn known(&self, tag: usize) -> Vec<ServerReport> {
        let committed = self.backend.process.server(|server| server.directory.rows());
        let mut all: BTreeMap<Key, Option<Row>> =
            committed.iter().map(|(key, row)| (*key, Some(row.clone()))).collect();
        all.extend(self.changes.clone());
        let range = all.range(Key::Report(tag, i64::MIN)..=Key::Report(tag, i64::MAX));
        let report = |row: &Option<Row>| match row {
            Some(Row::Report(report)) => Some(report.clone()),
            _ => None,
        };
        range.filter_map(|(_, row)| report(row)).collect()
    }

    fn try_lock(&mut self, tag: usize) -> bool {
        let is_own = self.locks.iter().any(|lock| lock.tag == tag);
        if !is_own && !self.backend.memory.locks.borrow_mut().insert(tag) {
            return false;
        }
        if !is_own {
            self.locks.push(Lock { memory: self.backend.memory.clone(), tag });
        }
        true
    }

    /// Locks the row of a tag, also one that does not exist. Raises an error after a while.
    pub fn await_lock(&mut self, tag: usize) {
        self.backend.process.step();
        let until_us = self.backend.world().now_us.get() + LOCK_TIMEOUT.as_micros() as i64;
        while !self.try_lock(tag) {
            if self.backend.world().now_us.get() >= until_us {
                raise(Raised("another transaction keeps the row locked"));
            }
            self.backend.process.sleep(Duration::from_millis(10));
        }
    }

    pub fn lock_creation(&mut self, creation: i64) -> Result<usize, NotLocked> {
        self.backend.process.step();
        let is_it = |transaction: &Self, tag| transaction.tag(tag).is_some_and(|row| row.key.creation == creation);
        let tag = (0..TAGS.len()).find(|tag| is_it(self, *tag)).ok_or(NotLocked::Gone)?;
        if self.try_lock(tag) { Ok(tag) } else { Err(NotLocked::Busy) }
    }

    /// Writes a row of a tag, as the trigger and the checks let it.
    pub fn write(&mut self, tag: usize, mut new: TagRow, is_allocation: bool) -> TagRow {
        let TagDefinition { step, min_step, max_step, .. } = new.definition;
        if !(min_step..=max_step).contains(&step) {
            let broken = format!("S3: {step} is no step between {min_step} and {max_step}");
            self.backend.world().break_promise(self.backend.process.server, broken);
        }
        let old = self.tag(tag);
        if let Some(old) = &old {
            let (before, after) = (old.basis(), new.basis());
            let is_new_version = before.is_another_version(&after, is_allocation);
            new.version = old.version + i64::from(is_new_version);
            if is_new_version {
                let (key, version, stride) = (old.key, new.version, new.definition.stride);
                let is_link = before.is_attached != after.is_attached;
                self.ended.push(Ended { key, version, stride, is_link });
            }
            self.is_announced |= !(is_allocation && before.keeps_values(&after));
        } else {
            new.version = 1;
            let is_known = new.link.history.is_some() || !self.known(tag).is_empty();
            new.link.history = is_known.then(String::new);
            self.is_announced = true;
        }
        self.changes.insert(Key::Segment(tag), Some(Row::Segment(new.clone())));
        new
    }

    pub fn delete(&mut self, tag: usize) {
        let Some(old) = self.tag(tag) else { return };
        self.ended.push(Ended { key: old.key, version: DROPPED, stride: 1, is_link: false });
        for mut report in self.known(tag) {
            report.max_id = report.max_id.max(old.definition.max_id);
            self.changes.insert(Key::Report(tag, report.server), Some(Row::Report(report)));
        }
        self.changes.insert(Key::Segment(tag), None);
        self.is_announced = true;
    }

    /// False if the wait for the standby was canceled.
    pub fn commit(mut self) -> bool {
        let backend = self.backend;
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            return true;
        }
        backend.process.step();
        let position = self.append(changes);
        let mut was_confirmed = true;
        if self.is_durable || self.is_announced || backend.world().below(2) == 0 {
            backend.process.step();
            self.is_flushed = true;
            backend.process.directory(|directory| directory.wal.flushed = directory.wal.flushed.max(position));
            // A crash does not undo it any more.
            let mut judge = backend.shared.judge.borrow_mut();
            self.noticed.iter().for_each(|tag| judge.snapshot_is_noticed(*tag));
            drop(judge);
            let standby = super::COORDINATORS - 1 - backend.server().min(1);
            backend.world().signal(standby);
        }
        if self.is_durable {
            was_confirmed = backend.await_standby(position, i64::MAX);
        }
        self.announce();
        was_confirmed
    }

    fn append(&self, changes: BTreeMap<Key, Option<Row>>) -> usize {
        let now_us = self.backend.world().now_us.get();
        self.backend.process.change(|server| {
            let wall_ms = server.wall_ms(now_us);
            let mut rows = (*server.directory.rows()).clone();
            for (key, row) in changes {
                match row {
                    Some(row) => drop(rows.insert(key, row)),
                    None => drop(rows.remove(&key)),
                }
            }
            let timeline = server.directory.control.timeline;
            server.directory.wal.entries.push(Rc::new(Entry { timeline, wall_ms, rows: Rc::new(rows) }));
            server.directory.wal.entries.len()
        })
    }

    /// Ends the rings of the rows before, and tells other processes.
    fn announce(&mut self) {
        let (backend, memory) = (self.backend, &self.backend.memory);
        if !self.ended.is_empty() {
            backend.process.step();
            let mut is_link = false;
            for ended in self.ended.drain(..) {
                is_link |= ended.is_link;
                let attachment = memory.table(|table| table.supersede(ended.key, ended.version, ended.stride));
                if let Some(attachment) = attachment.filter(|attachment| attachment.is_new) {
                    memory.begin(attachment.index);
                }
            }
            memory.link_changes.set(memory.link_changes.get() + u64::from(is_link));
            backend.signal();
        }
        if self.is_announced {
            backend.process.step();
            memory.announced.set(memory.announced.get() + 1);
        }
    }
}

fn index_of(tag: &str) -> usize {
    TAGS.iter().position(|name| *name == tag).expect("a tag of this world")
}

impl TagRows for Transaction<'_> {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn exists(&mut self, tag: &str) -> bool {
        self.tag(index_of(tag)).is_some()
    }

    fn lock_report(&mut self, tag: &str, server: i64) -> bool {
        self.await_lock(index_of(tag));
        self.read(Key::Report(index_of(tag), server)).is_some()
    }

    fn lock(&mut self, tag: &str, _privilege: Privilege) -> TagRow {
        self.await_lock(index_of(tag));
        self.tag(index_of(tag)).unwrap_or_else(|| raise(UNKNOWN))
    }

    fn reports(&mut self, tag: &str, server: Option<i64>) -> Vec<ServerReport> {
        let mut reports = self.known(index_of(tag));
        reports.retain(|report| server.is_none_or(|server| report.server == server));
        reports
    }

    fn names(&mut self, _tag: &str, servers: Vec<i64>) -> String {
        format!("{servers:?}")
    }

    fn share(&mut self, row: &TagRow, shared: &SharedTag, report: Option<&ServerReport>) {
        let (tag, mut row) = (index_of(&row.tag), row.clone());
        if let Some(report) = report {
            let key = Key::Report(tag, report.server);
            // A tag that was created again waits for reports, whether values were lost or not.
            let is_own = row.link.history.as_deref() == Some(&self.identity.to_string());
            if is_own && report.max_id > row.definition.max_id && self.read(key).is_some() {
                self.noticed.push(tag);
            }
            self.changes.insert(key, Some(Row::Report(report.clone())));
        }
        row.definition.max_id = row.definition.max_id.max(shared.allocation.max_id);
        row.link.history = shared.history.clone();
        self.write(tag, row, true);
    }

    fn clear_reports(&mut self, row: &TagRow, _received: i64) {
        self.backend.world().reach("a report shows that grants are lost");
        let tag = index_of(&row.tag);
        for mut report in self.known(tag) {
            report.history.clear();
            self.changes.insert(Key::Report(tag, report.server), Some(Row::Report(report)));
        }
    }

    fn delete_report(&mut self, tag: &str, server: i64) {
        self.changes.insert(Key::Report(index_of(tag), server), None);
    }
}
