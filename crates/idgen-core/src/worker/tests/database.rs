//! A coordinator's database in memory, with one transaction at a time.

use crate::coordinator::{CoordinatorId, Place};
use crate::history::{History, Identity};
use crate::worker::granting::{Free, Grant, GrantRows, PoolDefinition};
use crate::worker::holding::{Held, HeldRows, Lock};
use crate::worker::recording::{HistoryStore, Label, begin, bounds};
use crate::worker::search::{Search, WorkerRow};
use crate::worker::{PoolBounds, Rectangle};

pub const POOL: &str = "servers";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    WorkerId(Lock),
    History,
}

/// A clone is a copy of the data directory.
#[derive(Clone)]
pub struct Database {
    pub identity: Identity,
    pub now_us: i64,
    pub started_us: i64,
    pub pool: PoolDefinition,
    pub rows: Vec<(WorkerRow, Rectangle, i64)>,
    pub history: Option<History>,
    pub label: Option<Label>,
    /// Tokens so far, which are never drawn twice.
    pub drawn: u64,
    /// The commit waits for the standbys.
    pub survives_failover: bool,
    /// What was locked, in order.
    pub locked: Vec<Locked>,
}

impl Database {
    /// Of a primary on its first timeline.
    pub fn new(workers: i32, ttl_us: i64) -> Self {
        let place = Place::new("4-5", "6-7", "one");
        let row = |worker_id| {
            let row = WorkerRow { worker_id, token: None, owner: None, not_after_us: None, epoch: 0 };
            (row, Rectangle { not_before_us: i64::MIN, not_after_us: i64::MIN }, 0)
        };
        let mut database = Self {
            identity: Identity { system_identifier: 1, timeline: 1, database: 3, place, is_copy: false },
            now_us: 1000,
            started_us: 500,
            pool: PoolDefinition { range: 0..=workers - 1, ttl_us },
            rows: Vec::new(),
            history: None,
            label: None,
            drawn: 0,
            survives_failover: false,
            locked: Vec::new(),
        };
        // With the first pool, before its rows.
        begin(&mut database);
        database.rows = (0..workers).map(row).collect();
        database
    }

    pub fn id(&self) -> CoordinatorId {
        CoordinatorId { system_identifier: self.identity.system_identifier, database: self.identity.database }
    }

    /// A standby that has this state, and is promoted.
    pub fn promoted(&self, timeline: u32, now_us: i64) -> Self {
        Self { identity: Identity { timeline, ..self.identity.clone() }, now_us, started_us: now_us, ..self.clone() }
    }

    pub fn bounds(&self) -> PoolBounds {
        let history = self.history.as_ref().expect("it has begun");
        bounds(self, history, self.pool.ttl_us)
    }

    pub fn row(&mut self, worker_id: i32) -> &mut (WorkerRow, Rectangle, i64) {
        self.rows.iter_mut().find(|(row, ..)| row.worker_id == worker_id).expect("a worker id of the pool")
    }

    fn set_end(&mut self, worker_id: i32, not_after_us: i64) {
        let (row, rectangle, _) = self.row(worker_id);
        (row.not_after_us, rectangle.not_after_us) = (Some(not_after_us), not_after_us);
    }
}

impl HistoryStore for Database {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn now_us(&self) -> i64 {
        self.now_us
    }

    fn started_us(&self) -> i64 {
        self.started_us
    }

    fn max_lead_us(&self, ttl_us: i64) -> i64 {
        ttl_us * 3 / 2
    }

    fn writing_us(&self) -> i64 {
        self.now_us - self.started_us
    }

    fn has_rows(&mut self) -> bool {
        !self.rows.is_empty()
    }

    fn read(&mut self) -> Option<History> {
        self.history.clone()
    }

    fn lock(&mut self) {
        self.locked.push(Locked::History);
    }

    fn write(&mut self, history: &History, replaces: bool) {
        if replaces || self.history.is_none() {
            self.history = Some(history.clone());
        }
    }

    fn read_label(&mut self) -> Option<Label> {
        self.label
    }

    fn lock_label(&mut self) {}

    fn write_label(&mut self, label: Option<Label>) {
        self.label = label;
    }

    fn longest_ttl_us(&mut self) -> i64 {
        self.pool.ttl_us
    }
}

impl GrantRows for Database {
    fn share_pool(&mut self, pool: &str) -> Option<PoolDefinition> {
        (pool == POOL).then(|| self.pool.clone())
    }

    fn undo_unless_found<R>(&mut self, work: impl FnOnce(&mut Self) -> Option<R>) -> Option<R> {
        let before = self.clone();
        let found = work(self);
        if found.is_none() {
            *self = before;
        }
        found
    }

    fn lock_free(&mut self, search: &Search) -> Option<Free> {
        let row = search.pick(self.rows.iter().map(|(row, ..)| row))?;
        Some(Free { worker_id: row.worker_id, used_until_us: row.not_after_us })
    }

    fn find(&mut self, search: &Search) -> Option<i32> {
        self.lock_free(search).map(|free| free.worker_id)
    }

    fn wait_for(&mut self, _pool: &str, _worker_id: i32) {
        unreachable!("no other transaction locks a row");
    }

    fn random(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn << 11
    }

    fn grant(&mut self, _pool: &str, grant: &Grant) {
        let Grant { worker_id, token, owner, rectangle, epoch } = *grant;
        let (token, owner, not_after_us) = (Some(token), owner.map(str::to_owned), Some(rectangle.not_after_us));
        *self.row(worker_id) = (WorkerRow { worker_id, token, owner, not_after_us, epoch }, rectangle, self.now_us);
    }

    fn survive_failover(&mut self) {
        self.survives_failover = true;
    }
}

impl HeldRows for Database {
    fn held(&mut self, _pool: &str, token: i64, lock: Lock) -> Option<Held> {
        self.locked.push(Locked::WorkerId(lock));
        let epoch = self.history.as_ref().map_or(0, |history| history.epoch);
        let is_current = |row: &WorkerRow| row.token == Some(token) && row.epoch == epoch;
        let (row, rectangle, acquired_us) = self.rows.iter().find(|(row, ..)| is_current(row))?;
        Some(Held {
            worker_id: row.worker_id,
            rectangle: *rectangle,
            acquired_us: *acquired_us,
            ttl_us: self.pool.ttl_us,
            history: self.history.clone(),
            is_uncommitted: false,
        })
    }

    fn extend(&mut self, _pool: &str, _token: i64, held: &Held, not_after_us: i64) -> bool {
        self.set_end(held.worker_id, not_after_us);
        true
    }

    fn wait_for_standbys(&mut self) {}

    fn release(&mut self, _pool: &str, worker_id: i32, used_until_us: i64) {
        self.set_end(worker_id, used_until_us);
        self.row(worker_id).0.token = None;
    }
}
