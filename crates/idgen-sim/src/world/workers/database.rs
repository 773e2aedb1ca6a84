//! The rows of a simulated coordinator, as the procedures of the core reach them in a transaction of one of its sessions.

use super::coordinator::Coordination;
use super::judge::Note;
use crate::world::disk::Entry;
use crate::world::place;
use crate::world::process::Process;
use crate::world::rows::{Key, Row, WorkerRecord};
use crate::world::server::Phase;
use idgen_core::history::{History, Identity};
use idgen_core::worker::granting::{Free, Grant, GrantRows, PoolDefinition};
use idgen_core::worker::holding::{Held, HeldRows, Lock};
use idgen_core::worker::recording::{HistoryStore, Label};
use idgen_core::worker::search::{Search, WorkerRow};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

pub const POOLS: [&str; 2] = ["first", "second"];

pub fn pool_index(name: &str) -> usize {
    POOLS.iter().position(|pool| *pool == name).expect("a pool of this world")
}

/// A transaction. It sees what others have committed, and rolls back unless it commits.
pub struct Transaction<'a> {
    process: &'a Process<'a>,
    coordination: Rc<Coordination>,
    identity: Identity,
    /// `None`: deleted.
    changes: BTreeMap<Key, Option<Row>>,
    locked: Vec<Key>,
    notes: Vec<Note>,
    /// It began before the coordinator could know that it was set back.
    is_unaware: bool,
    /// The setting, as the session has read it.
    max_lead_us: i64,
    /// The earliest and the latest time that it has read: the clock may step between two readings.
    clock_us: Cell<(i64, i64)>,
}

impl<'a> Transaction<'a> {
    pub fn begin(process: &'a Process<'a>, coordination: &Rc<Coordination>) -> Self {
        let identity = process.server(|server| place::identity(&server.directory));
        let is_unaware = coordination.judged.borrow().is_unaware;
        Self {
            process,
            is_unaware,
            max_lead_us: coordination.max_lead_us.get(),
            coordination: coordination.clone(),
            identity,
            changes: BTreeMap::new(),
            locked: Vec::new(),
            notes: Vec::new(),
            clock_us: Cell::new((i64::MAX, i64::MIN)),
        }
    }

    pub fn get(&self, key: Key) -> Option<Row> {
        let committed = || self.process.server(|server| server.directory.rows().get(&key).cloned());
        self.changes.get(&key).cloned().unwrap_or_else(committed)
    }

    pub fn set(&mut self, key: Key, row: Row) {
        self.changes.insert(key, Some(row));
    }

    pub fn delete(&mut self, key: Key) {
        self.changes.insert(key, None);
    }

    pub fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    pub fn pool(&self, pool: usize) -> Option<PoolDefinition> {
        match self.get(Key::Pool(pool)) {
            Some(Row::Pool(pool)) => Some(pool),
            _ => None,
        }
    }

    pub fn worker(&self, pool: usize, worker_id: i32) -> Option<WorkerRecord> {
        match self.get(Key::Worker(pool, worker_id)) {
            Some(Row::Worker(record)) => Some(record),
            _ => None,
        }
    }

    pub fn workers(&self, pool: usize) -> Vec<WorkerRecord> {
        (0..super::MOST_WORKER_IDS).filter_map(|worker_id| self.worker(pool, worker_id)).collect()
    }

    /// Waits for a lock that lasts until the transaction ends. A row of a pool is shared by those that grant from it.
    pub fn lock_row(&mut self, key: Key, is_shared: bool) {
        loop {
            self.process.step();
            if self.coordination.try_lock(key, self.process.id, is_shared) {
                return self.locked.push(key);
            }
            self.process.sleep(Duration::from_millis(2));
        }
    }

    fn unlock_after(&mut self, count: usize) {
        for key in self.locked.drain(count..) {
            self.coordination.unlock(key, self.process.id);
        }
    }

    /// Commits. A crash can lose what is not flushed.
    pub fn commit(mut self, is_flushed: bool) {
        self.process.step();
        let (changes, notes) = (std::mem::take(&mut self.changes), std::mem::take(&mut self.notes));
        if changes.is_empty() {
            return;
        }
        let now_us = self.process.world.now_us.get();
        let entry = self.process.change(|server| {
            let wall_ms = server.wall_ms(now_us);
            let directory = &mut server.directory;
            let mut rows = (*directory.rows()).clone();
            for (key, row) in changes {
                match row {
                    Some(row) => drop(rows.insert(key, row)),
                    None => drop(rows.remove(&key)),
                }
            }
            let entry = Rc::new(Entry { timeline: directory.control.timeline, wall_ms, rows: Rc::new(rows) });
            directory.wal.entries.push(entry.clone());
            if is_flushed {
                directory.flush();
            }
            entry
        });
        self.coordination.judge(self.process, entry, notes, self.is_unaware);
    }

    fn put(&mut self, pool: usize, record: WorkerRecord) {
        self.set(Key::Worker(pool, record.row.worker_id), Row::Worker(record));
    }

    fn longest_us(&self, pool: &str) -> i64 {
        let ttl_us = self.pool(pool_index(pool)).map_or(0, |pool| pool.ttl_us);
        ttl_us + self.max_lead_us(ttl_us)
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.unlock_after(0);
    }
}

impl HistoryStore for Transaction<'_> {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn now_us(&self) -> i64 {
        let now_us = self.process.world.now_us.get();
        let clock_us = self.process.server(|server| server.wall_us(now_us));
        let (earliest_us, latest_us) = self.clock_us.get();
        self.clock_us.set((earliest_us.min(clock_us), latest_us.max(clock_us)));
        clock_us
    }

    fn started_us(&self) -> i64 {
        self.coordination.started_us(self.process.server)
    }

    fn max_lead_us(&self, ttl_us: i64) -> i64 {
        ttl_us.max(self.max_lead_us)
    }

    fn writing_us(&self) -> i64 {
        self.coordination.writing_us(self.process.server, self.process.world.now_us.get())
    }

    fn has_rows(&mut self) -> bool {
        (0..POOLS.len()).any(|pool| !self.workers(pool).is_empty())
    }

    fn read(&mut self) -> Option<History> {
        self.process.step();
        match self.get(Key::WorkerHistory) {
            Some(Row::WorkerHistory(history)) => Some(history),
            _ => None,
        }
    }

    fn lock(&mut self) {
        self.lock_row(Key::WorkerHistory, false);
    }

    fn write(&mut self, history: &History, replaces: bool) {
        self.process.step();
        let before = self.read();
        if replaces || before.is_none() {
            match before {
                None => self.notes.extend(history.since_us.map(|since_us| Note::Begun { since_us })),
                Some(before) if before.epoch != history.epoch => {
                    let (clock_us, _) = self.clock_us.get();
                    self.note(Note::Interrupted { clock_us });
                }
                Some(_) => {}
            }
            self.set(Key::WorkerHistory, Row::WorkerHistory(history.clone()));
        }
    }

    fn read_label(&mut self) -> Option<Label> {
        match self.get(Key::WorkerLabel) {
            Some(Row::WorkerLabel(label)) => Some(label),
            _ => None,
        }
    }

    fn lock_label(&mut self) {
        self.lock_row(Key::WorkerLabel, false);
    }

    fn write_label(&mut self, label: Option<Label>) {
        match label {
            Some(label) => self.set(Key::WorkerLabel, Row::WorkerLabel(label)),
            None => self.delete(Key::WorkerLabel),
        }
    }

    fn longest_ttl_us(&mut self) -> i64 {
        (0..POOLS.len()).filter_map(|pool| self.pool(pool)).map(|pool| pool.ttl_us).max().unwrap_or(0)
    }
}

impl GrantRows for Transaction<'_> {
    fn share_pool(&mut self, pool: &str) -> Option<PoolDefinition> {
        self.lock_row(Key::Pool(pool_index(pool)), true);
        self.pool(pool_index(pool))
    }

    fn undo_unless_found<R>(&mut self, work: impl FnOnce(&mut Self) -> Option<R>) -> Option<R> {
        let (changes, locked, notes) = (self.changes.clone(), self.locked.len(), self.notes.len());
        let found = work(self);
        if found.is_none() {
            self.changes = changes;
            self.notes.truncate(notes);
            self.unlock_after(locked);
        }
        found
    }

    fn lock_free(&mut self, search: &Search) -> Option<Free> {
        self.process.step();
        let pool = pool_index(search.pool);
        let is_free = |row: &WorkerRow| !self.coordination.is_locked(Key::Worker(pool, row.worker_id), self.process.id);
        let rows: Vec<_> = self.workers(pool).into_iter().map(|record| record.row).filter(is_free).collect();
        let WorkerRow { worker_id, not_after_us, .. } = *search.pick(rows.iter())?;
        let key = Key::Worker(pool, worker_id);
        assert!(self.coordination.try_lock(key, self.process.id, false), "it was not locked");
        self.locked.push(key);
        Some(Free { worker_id, used_until_us: not_after_us })
    }

    fn find(&mut self, search: &Search) -> Option<i32> {
        self.process.step();
        let rows: Vec<_> = self.workers(pool_index(search.pool)).into_iter().map(|record| record.row).collect();
        search.pick(rows.iter()).map(|row| row.worker_id)
    }

    fn wait_for(&mut self, pool: &str, worker_id: i32) {
        self.process.world.reach("a grant waits for a worker id that is locked");
        let count = self.locked.len();
        self.lock_row(Key::Worker(pool_index(pool), worker_id), false);
        self.unlock_after(count);
    }

    fn random(&mut self) -> u64 {
        self.process.world.identity() << 11
    }

    fn grant(&mut self, pool: &str, grant: &Grant) {
        self.process.step();
        let Grant { worker_id, token, owner, rectangle, epoch } = *grant;
        let (owner, not_after_us) = (owner.map(str::to_owned), Some(rectangle.not_after_us));
        let row = WorkerRow { worker_id, token: Some(token), owner, not_after_us, epoch };
        self.put(pool_index(pool), WorkerRecord { row, rectangle, acquired_us: Some(self.now_us()) });
        let ((_, clock_us), longest_us) = (self.clock_us.get(), self.longest_us(pool));
        self.note(Note::Granted { worker_id, token, rectangle, clock_us, longest_us });
    }

    fn survive_failover(&mut self) {
        unreachable!("keepers report the time that they have reached");
    }
}

impl HeldRows for Transaction<'_> {
    fn held(&mut self, pool: &str, token: i64, lock: Lock) -> Option<Held> {
        let pool = pool_index(pool);
        let of_token = |record: &WorkerRecord| record.row.token == Some(token);
        if lock == Lock::Row {
            let worker_id = self.workers(pool).into_iter().find(of_token)?.row.worker_id;
            self.lock_row(Key::Worker(pool, worker_id), false);
        }
        let history = self.read();
        let ttl_us = self.pool(pool)?.ttl_us;
        let epoch = history.as_ref().map_or(0, |history| history.epoch);
        let record = self.workers(pool).into_iter().find(of_token).filter(|record| record.row.epoch == epoch)?;
        Some(Held {
            worker_id: record.row.worker_id,
            rectangle: record.rectangle,
            acquired_us: record.acquired_us.unwrap_or(i64::MIN),
            ttl_us,
            history,
            is_uncommitted: false,
        })
    }

    fn extend(&mut self, pool: &str, token: i64, held: &Held, not_after_us: i64) -> bool {
        let index = pool_index(pool);
        self.lock_row(Key::Worker(index, held.worker_id), false);
        let is_same = |record: &WorkerRecord| {
            record.row.token == Some(token) && record.rectangle.not_after_us == held.rectangle.not_after_us
        };
        let Some(mut record) = self.worker(index, held.worker_id).filter(is_same) else { return false };
        record.rectangle.not_after_us = not_after_us;
        record.row.not_after_us = Some(not_after_us);
        let ((_, clock_us), longest_us) = (self.clock_us.get(), held.ttl_us + self.max_lead_us(held.ttl_us));
        self.put(index, record);
        self.note(Note::Extended { token, not_after_us, clock_us, longest_us });
        true
    }

    fn wait_for_standbys(&mut self) {
        let length = self.process.server(|server| server.directory.wal.flushed);
        let has_all = |world: &crate::world::World| {
            let servers = world.servers.borrow();
            servers[..super::COORDINATORS].iter().any(|server| {
                !server.is_void && server.phase == Phase::Recovering && server.directory.wal.entries.len() >= length
            })
        };
        self.process.step();
        while self.coordination.is_synchronous.get() && !has_all(self.process.world) {
            self.process.sleep(Duration::from_millis(5));
        }
    }

    fn release(&mut self, pool: &str, worker_id: i32, used_until_us: i64) {
        let index = pool_index(pool);
        let mut record = self.worker(index, worker_id).expect("it is locked");
        let token = record.row.token.take().expect("it is held");
        record.rectangle.not_after_us = used_until_us;
        record.row.not_after_us = Some(used_until_us);
        self.put(index, record);
        self.note(Note::Released { token, used_until_us });
    }
}
