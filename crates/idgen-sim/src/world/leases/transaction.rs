//! A transaction of a session: it sees what others have committed and what it has changed, holds its locks until it ends, and
//! rolls back unless it commits.

use super::Leasing;
use super::judge::{Note, Sent};
use super::locks::{Lock, Mode};
use crate::world::disk::Entry;
use crate::world::effects::Canceled;
use crate::world::process::Process;
use crate::world::rows::{Key, LeaseRow, Row};
use crate::world::server::Phase;
use idgen_core::lease::{Effects, LeaseDefinition, Now, SeenEnded, Session, Term, TokenSequence};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

/// As `lock_timeout`: a wait that is longer fails, as one in a deadlock does.
const LOCK_TIMEOUT_US: i64 = 60_000_000;

/// What a process remembers from one transaction to the next.
#[derive(Default)]
pub struct Memory {
    /// It has raised the sequence of tokens.
    has_raised: Cell<bool>,
    seen: RefCell<SeenEnded>,
}

pub struct Transaction<'a> {
    pub process: &'a Process<'a>,
    pub leasing: Rc<Leasing>,
    memory: &'a Memory,
    work: RefCell<Work>,
    pub effects: RefCell<Effects>,
    survives_failover: Cell<bool>,
}

/// What a savepoint undoes.
#[derive(Clone, Default)]
struct Work {
    /// `None`: deleted.
    changes: BTreeMap<Key, Option<Row>>,
    locked: Vec<(Lock, Mode)>,
    notes: Vec<Note>,
    /// Sessions' locks that the end gives up: of terms that were bound if it rolls back, of released ones if it commits.
    bound: Vec<i64>,
    unbound: Vec<i64>,
}

impl<'a> Transaction<'a> {
    pub fn begin(process: &'a Process<'a>, leasing: &Rc<Leasing>, memory: &'a Memory) -> Self {
        Self {
            process,
            leasing: leasing.clone(),
            memory,
            work: RefCell::default(),
            effects: RefCell::default(),
            survives_failover: Cell::new(false),
        }
    }

    pub fn get(&self, key: Key) -> Option<Row> {
        let committed = || self.process.server(|server| server.directory.rows().get(&key).cloned());
        self.work.borrow().changes.get(&key).cloned().unwrap_or_else(committed)
    }

    pub fn set(&self, key: Key, row: Option<Row>) {
        self.work.borrow_mut().changes.insert(key, row);
    }

    pub fn row(&self, name: usize, slot: i32) -> Option<LeaseRow> {
        match self.get(Key::Lease(name, slot)) {
            Some(Row::Lease(row)) => Some(row),
            _ => None,
        }
    }

    pub fn set_row(&self, name: usize, slot: i32, row: LeaseRow) {
        self.set(Key::Lease(name, slot), Some(Row::Lease(row)));
    }

    /// The rows of a lease, by their slots.
    pub fn rows(&self, name: usize) -> BTreeMap<i32, LeaseRow> {
        let committed = self.process.server(|server| server.directory.rows());
        let work = self.work.borrow();
        let range = || Key::Lease(name, i32::MIN)..=Key::Lease(name, i32::MAX);
        let mut rows: BTreeMap<i32, LeaseRow> = BTreeMap::new();
        let changes = work.changes.range(range()).map(|(key, row)| (key, row.as_ref()));
        for (key, row) in committed.range(range()).map(|(key, row)| (key, Some(row))).chain(changes) {
            match (key, row) {
                (Key::Lease(_, slot), Some(Row::Lease(row))) => drop(rows.insert(*slot, row.clone())),
                (Key::Lease(_, slot), _) => drop(rows.remove(slot)),
                _ => {}
            }
        }
        rows
    }

    pub fn delete_row(&self, name: usize, slot: i32) {
        self.set(Key::Lease(name, slot), None);
    }

    pub fn definition(&self, name: usize) -> Option<LeaseDefinition> {
        match self.get(Key::LeaseDefinition(name)) {
            Some(Row::LeaseDefinition(definition)) => Some(definition),
            _ => None,
        }
    }

    /// The clock of leases, which rows name.
    pub fn clock(&self) -> Rc<str> {
        self.leasing.running.borrow()[self.process.server].clock.clone()
    }

    pub fn boot_us(&self) -> i64 {
        let now_us = self.process.world.now_us.get();
        self.process.server(|server| server.boot_us(now_us))
    }

    pub fn now(&self) -> Now {
        Now { now_us: self.boot_us(), began_us: self.leasing.running.borrow()[self.process.server].began_us }
    }

    pub fn start(&self) -> u64 {
        self.leasing.running.borrow()[self.process.server].start
    }

    /// The end of a session is remembered if its slot has this lock delay.
    pub fn term(&self, slot: i32, row: &LeaseRow, lock_delay_us: Option<i64>) -> Term {
        let LeaseRow { token, depth, ttl_us, ends_us, revoked, .. } = *row;
        let session = row.session.map_or(Session::None, |(start, key)| {
            if start != self.start() {
                Session::EndedWithServer
            } else if self.leasing.locks.is_held(Lock::Session(key)) {
                Session::Lives
            } else {
                let (now_us, mut seen) = (self.boot_us(), self.memory.seen.borrow_mut());
                let ended = &mut self.leasing.running.borrow_mut()[self.process.server].ended;
                let shared_us = ended.since_us(key, now_us, lock_delay_us);
                Session::Ended { since_us: seen.since_us(key, now_us, lock_delay_us, shared_us) }
            }
        });
        Term { slot, token, depth, ends_us, ttl_us, revoked, by_this_clock: row.clock == self.clock(), session }
    }

    pub fn try_lock(&self, lock: Lock, mode: Mode) -> bool {
        let is_locked = self.leasing.locks.try_lock(lock, self.process.id, mode);
        if is_locked {
            self.work.borrow_mut().locked.push((lock, mode));
        }
        is_locked
    }

    /// Waits for a lock. False if the time has passed.
    pub fn lock_until(&self, lock: Lock, mode: Mode, until_us: i64) -> bool {
        let is_locked = self.leasing.locks.lock(self.process, lock, mode, until_us);
        if is_locked {
            self.work.borrow_mut().locked.push((lock, mode));
        }
        is_locked
    }

    /// Waits for a lock. The statement fails if that is too long.
    pub fn lock(&self, lock: Lock, mode: Mode) {
        if !self.lock_until(lock, mode, self.process.world.now_us.get() + LOCK_TIMEOUT_US) {
            resume_unwind(Box::new(Canceled));
        }
    }

    pub fn unlock(&self, lock: Lock, mode: Mode) {
        let mut work = self.work.borrow_mut();
        if let Some(index) = work.locked.iter().rposition(|locked| *locked == (lock, mode)) {
            work.locked.remove(index);
            self.leasing.locks.unlock(lock, self.process.id, mode);
            self.process.world.signal(self.process.server);
        }
    }

    /// Undoes the work, with its locks, unless it returns something.
    pub fn undo_unless<T>(&self, work: impl FnOnce() -> Option<T>) -> Option<T> {
        let before = self.work.borrow().clone();
        let result = work();
        if result.is_none() {
            let undone = std::mem::replace(&mut *self.work.borrow_mut(), before);
            let work = self.work.borrow();
            self.unlock_after(&undone.locked, work.locked.len());
            self.unbind(&undone.bound[work.bound.len()..]);
            let is_grant = |note: &&Note| matches!(note, Note::Granted { .. });
            for _ in undone.notes[work.notes.len()..].iter().filter(is_grant) {
                let mut granting = self.leasing.granting.borrow_mut();
                let last = granting.iter().rposition(|(_, process)| *process == self.process.id);
                granting.remove(last.expect("it was noted"));
            }
        }
        result
    }

    fn unlock_after(&self, locked: &[(Lock, Mode)], count: usize) {
        for (lock, mode) in locked.iter().skip(count) {
            self.leasing.locks.unlock(*lock, self.process.id, *mode);
        }
    }

    fn unbind(&self, keys: &[i64]) {
        keys.iter().for_each(|key| self.leasing.locks.unlock(Lock::Session(*key), self.process.id, Mode::Exclusive));
    }

    /// The session holds the lock of a new term.
    pub fn bind(&self, key: i64) {
        assert!(self.leasing.locks.try_lock(Lock::Session(key), self.process.id, Mode::Exclusive), "the key is new");
        self.work.borrow_mut().bound.push(key);
    }

    pub fn unbind_at_commit(&self, key: i64) {
        self.work.borrow_mut().unbound.push(key);
    }

    pub fn survive_failover(&self) {
        self.survives_failover.set(true);
    }

    pub fn sent(&self) -> Sent {
        self.leasing.judged.borrow().sent(self.process.world.now_us.get())
    }

    /// A wait for a lease must not be longer than its terms.
    pub fn judge_wait(&self, name: usize, until_us: i64) {
        let free_at_us = self.leasing.judged.borrow().free_at_us(name);
        let late_us = until_us + self.process.server(|server| server.booted_us) - free_at_us;
        if late_us > 0 {
            let broken = format!("L2: a wait for a lease ends {late_us} us after its terms");
            self.process.world.break_promise(self.process.server, broken);
        }
    }

    /// Waits for other transactions that have begun a term of the lease.
    pub fn wait_for_grants(&self, name: usize) {
        let is_other = |(of, process): &(usize, u64)| *of == name && *process != self.process.id;
        while self.leasing.granting.borrow().iter().any(is_other) {
            self.process.check_interrupts();
            self.process.wait(Duration::from_secs(1));
        }
    }

    pub fn note(&self, note: Note) {
        if let Note::Granted { name, .. } = note {
            self.leasing.granting.borrow_mut().push((name, self.process.id));
        }
        self.work.borrow_mut().notes.push(note);
    }

    /// Commits. Without a flush, a crash can lose it; a term that begins or is extended is flushed.
    pub fn commit(self, is_flushed: bool) {
        self.process.step();
        let (changes, notes) = {
            let mut work = self.work.borrow_mut();
            (std::mem::take(&mut work.changes), std::mem::take(&mut work.notes))
        };
        let survives_failover = self.survives_failover.get();
        if !changes.is_empty() {
            let entry = self.write(changes, is_flushed || survives_failover);
            self.leasing.commit(self.process, &entry, &notes);
        }
        // Others do not get the locks before.
        let is_synchronous = survives_failover && self.wait_for_standby();
        self.unbind(&std::mem::take(&mut self.work.borrow_mut().unbound));
        self.work.borrow_mut().bound.clear();
        self.leasing.judged.borrow_mut().told(&notes, is_synchronous);
        let tokens = notes.iter().filter_map(|note| match note {
            Note::Granted { name, token, .. } => Some((*name, *token)),
            _ => None,
        });
        self.leasing.tokens.borrow_mut().extend(tokens);
    }

    fn write(&self, changes: BTreeMap<Key, Option<Row>>, is_flushed: bool) -> Rc<Entry> {
        let now_us = self.process.world.now_us.get();
        self.process.change(|server| {
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
        })
    }

    /// False if the wait was ended by the setting.
    fn wait_for_standby(&self) -> bool {
        let length = self.process.server(|server| server.directory.wal.flushed);
        let has_all = || {
            self.process.world.servers.borrow().iter().any(|server| {
                !server.is_void && server.phase == Phase::Recovering && server.directory.wal.entries.len() >= length
            })
        };
        while self.leasing.is_synchronous.get() && !has_all() {
            self.process.sleep(Duration::from_millis(5));
        }
        self.leasing.is_synchronous.get()
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        let Leasing { locks, granting, .. } = &*self.leasing;
        locks.unlock_all(self.process.id);
        granting.borrow_mut().retain(|(_, process)| *process != self.process.id);
        self.unbind(&self.work.borrow().bound);
        self.process.world.signal(self.process.server);
    }
}

impl TokenSequence for &Transaction<'_> {
    fn has_raised(&self) -> bool {
        self.memory.has_raised.get()
    }

    fn locked<T>(&mut self, is_exclusive: bool, work: impl FnOnce(&mut Self) -> T) -> T {
        let mode = if is_exclusive { Mode::Exclusive } else { Mode::Share };
        self.lock(Lock::Tokens, mode);
        let result = work(self);
        self.unlock(Lock::Tokens, mode);
        result
    }

    fn raise(&mut self) {
        let last = self.last_token();
        let now_us = self.process.world.now_us.get();
        let wall_us = self.process.server(|server| server.wall_us(now_us));
        self.leasing.judged.borrow_mut().read_wall_clock(wall_us);
        self.process.step();
        self.set_token(last.max(wall_us));
        self.memory.has_raised.set(true);
    }

    fn next(&mut self) -> i64 {
        self.process.step();
        self.set_token(self.last_token() + 1);
        self.last_token()
    }
}

impl Transaction<'_> {
    fn last_token(&self) -> i64 {
        match self.process.server(|server| server.directory.rows().get(&Key::LeaseTokens).cloned()) {
            Some(Row::Token(token)) => token,
            _ => 0,
        }
    }

    /// No transaction undoes it.
    fn set_token(&self, token: i64) {
        self.process.commit(vec![(Key::LeaseTokens, Row::Token(token))], false);
    }
}
