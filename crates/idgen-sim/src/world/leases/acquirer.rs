//! A call that acquires leases, as the procedures of the core reach its server.

use super::judge::{Note, Sent};
use super::locks::{Lock, Mode};
use super::transaction::Transaction;
use crate::world::rows::LeaseRow;
use idgen_core::lease::{
    Acquirer, FIRST_SHARED, GrantRows, Lease, LeaseDefinition, LeaseLock, Obstacle, Patience, Term, Tried, draw,
    end_us, grant,
};
use std::collections::BTreeMap;
use std::time::Duration;

pub const UNDEFINED: LeaseDefinition = LeaseDefinition { slots: 1, ttl_us: 3_000_000, lock_delay_us: 0 };

pub struct Call<'t, 'a> {
    pub transaction: &'t Transaction<'a>,
    /// In order.
    pub names: Vec<usize>,
    pub wants_shared: bool,
    pub binds: bool,
    /// In true time.
    pub until_us: i64,
    pub since: Sent,
    pub defined: Option<LeaseDefinition>,
    pub precedes_in: Vec<i32>,
}

/// The longest sleep of the head of a queue: some ends signal nothing.
const LONGEST_SLEEP_US: i64 = 1_000_000;
/// How long the head of a queue waits for a row before it attempts again.
const LONGEST_ROW_WAIT_US: i64 = 2_000_000;

impl Call<'_, '_> {
    fn until_us(&self, patience: Patience) -> i64 {
        match patience {
            Patience::OfTheCall => self.until_us,
            Patience::None => 0,
        }
    }

    fn lock_and_mode(&self, at: usize, lock: LeaseLock) -> (Lock, Mode) {
        match lock {
            LeaseLock::Queue => (Lock::Queue(self.names[at]), Mode::Exclusive),
            LeaseLock::Definition => (Lock::Definition(self.names[at]), Mode::Share),
            LeaseLock::SharedGrants => (Lock::SharedGrant(self.names[at]), Mode::Exclusive),
        }
    }
}

impl Acquirer for Call<'_, '_> {
    type Term = i64;

    fn leases(&self) -> usize {
        self.names.len()
    }

    fn lock(&mut self, at: usize, lock: LeaseLock, patience: Patience) -> bool {
        let (tag, mode) = self.lock_and_mode(at, lock);
        let is_behind = lock == LeaseLock::Queue && self.transaction.leasing.locks.waiting(tag) > 0;
        let is_locked = self.transaction.lock_until(tag, mode, self.until_us(patience));
        if is_locked && is_behind {
            self.transaction.process.world.reach("a waiter for a lease is served in its turn");
        }
        is_locked
    }

    fn unlock(&mut self, at: usize, lock: LeaseLock) {
        let (tag, mode) = self.lock_and_mode(at, lock);
        self.transaction.unlock(tag, mode);
    }

    fn bypasses(&self, _at: usize) -> bool {
        false
    }

    fn is_defined(&mut self, at: usize, _patience: Patience) -> Option<bool> {
        self.transaction.process.step();
        self.defined = self.transaction.definition(self.names[at]);
        Some(self.defined.is_some())
    }

    fn wants_shared(&self) -> bool {
        self.wants_shared
    }

    fn grant(&mut self, at: usize, are_shared_over: bool, _patience: Patience) -> Option<Tried<i64>> {
        self.transaction.process.step();
        let (transaction, name) = (self.transaction, self.names[at]);
        let definition = self.defined.unwrap_or(UNDEFINED);
        // Refused on a server.
        if self.wants_shared && definition.slots > 1 {
            return None;
        }
        let mut rows = transaction.rows(name);
        rows.retain(|slot, _| !self.wants_shared || *slot < FIRST_SHARED);
        let delay_us = Some(definition.lock_delay_us);
        let terms: Vec<Term> = rows.iter().map(|(slot, row)| transaction.term(*slot, row, delay_us)).collect();
        let lease = Lease { definition, terms, now: transaction.now() };
        let (binds, since) = (self.binds, self.since);
        let mut attempt = Attempt { transaction, name, rows, definition, binds, since };
        let tried = grant(&mut attempt, &lease, self.wants_shared, are_shared_over);
        if let Some(Err(Obstacle::NoSlot { until_us: Some(until_us) })) = &tried {
            transaction.judge_wait(name, *until_us);
        }
        Some(tried)
    }

    fn now_us(&self) -> i64 {
        self.transaction.boot_us()
    }

    fn changes(&self, at: usize) -> u64 {
        self.transaction.leasing.judged.borrow().sent(0).events as u64 + self.names[at] as u64
    }

    fn sleep(&mut self, at: usize, changes: u64, until_us: Option<i64>) -> bool {
        let process = self.transaction.process;
        process.step();
        let left_us = self.until_us - process.world.now_us.get();
        if left_us <= 0 {
            return false;
        }
        let time_us = until_us.map_or(LONGEST_SLEEP_US, |until_us| until_us.saturating_sub(self.now_us()).max(0));
        if time_us > 0 && self.changes(at) == changes {
            process.wait(Duration::from_micros(time_us.min(LONGEST_SLEEP_US).min(left_us) as u64));
        }
        process.check_interrupts();
        true
    }

    fn precede(&mut self, at: usize, slots: &[i32]) -> bool {
        let name = self.names[at];
        for slot in self.precedes_in.extract_if(.., |slot| !slots.contains(slot)) {
            self.transaction.unlock(Lock::Fence(name, slot), Mode::Exclusive);
        }
        for slot in slots {
            if !self.precedes_in.contains(slot) {
                if !self.transaction.lock_until(Lock::Fence(name, *slot), Mode::Exclusive, self.until_us) {
                    return false;
                }
                self.precedes_in.push(*slot);
            }
        }
        true
    }

    fn wait_for_rows(&mut self, at: usize, slots: &[i32]) {
        let process = self.transaction.process;
        process.world.reach("a take-over waits for a fence or a grant");
        for slot in slots {
            let lock = Lock::Row(self.names[at], *slot);
            let until_us = self.until_us.min(process.world.now_us.get() + LONGEST_ROW_WAIT_US);
            if self.transaction.lock_until(lock, Mode::Exclusive, until_us) {
                self.transaction.unlock(lock, Mode::Exclusive);
            }
        }
    }

    fn undo_unless_granted<T>(&mut self, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let transaction = self.transaction;
        transaction.undo_unless(|| work(self))
    }
}

/// An attempt, and the rows as it has read them.
struct Attempt<'t, 'a> {
    transaction: &'t Transaction<'a>,
    name: usize,
    rows: BTreeMap<i32, LeaseRow>,
    definition: LeaseDefinition,
    binds: bool,
    since: Sent,
}

impl Attempt<'_, '_> {
    fn lock(&self, slot: i32) -> Option<()> {
        self.transaction.process.step();
        let lock = Lock::Row(self.name, slot);
        self.transaction.try_lock(lock, Mode::Exclusive).then_some(())?;
        let is_same = self.transaction.row(self.name, slot).as_ref() == self.rows.get(&slot);
        if !is_same {
            self.transaction.unlock(lock, Mode::Exclusive);
        }
        is_same.then_some(())
    }

    fn begin(&self, slot: i32) -> i64 {
        let Self { transaction, name, definition, binds, since, .. } = *self;
        let token = draw(&mut &*transaction);
        let process = transaction.process;
        let session = binds.then(|| (transaction.start(), process.world.identity() as i64));
        let ttl_us = definition.ttl_us;
        let ends_us = end_us(transaction.boot_us(), ttl_us);
        let clock = transaction.clock();
        transaction.set_row(name, slot, LeaseRow { token, depth: 1, ttl_us, ends_us, clock, revoked: false, session });
        session.into_iter().for_each(|(_, key)| transaction.bind(key));
        transaction.survive_failover();
        transaction.effects.borrow_mut().lock(token);
        transaction.note(Note::Granted { name, slot, token, ttl_us, since, bound: binds.then_some(process.id) });
        token
    }
}

impl GrantRows for Attempt<'_, '_> {
    type Term = i64;

    fn refuse_older_snapshot(&mut self, _slot: i32, _ends: &[i32]) {}

    fn undo_unless_begun<T>(&mut self, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let transaction = self.transaction;
        transaction.undo_unless(|| work(self))
    }

    fn free(&mut self, slot: i32) -> Option<()> {
        self.lock(slot)?;
        let mut row = self.rows[&slot].clone();
        if row.depth > 0 {
            self.transaction.process.world.reach("an expired term makes room for another slot");
            (row.depth, row.ends_us, row.clock) = (0, self.transaction.boot_us(), self.transaction.clock());
            (row.revoked, row.session) = (false, None);
            self.transaction.set_row(self.name, slot, row);
        }
        Some(())
    }

    fn delete(&mut self, slot: i32) -> Option<()> {
        self.lock(slot)?;
        self.transaction.delete_row(self.name, slot);
        Some(())
    }

    fn take(&mut self, slot: i32) -> Option<i64> {
        self.lock(slot)?;
        if self.rows[&slot].depth > 0 {
            self.transaction.process.world.reach("a lease is taken over after its term");
        }
        Some(self.begin(slot))
    }

    fn insert(&mut self, slot: i32) -> Option<i64> {
        let lock = Lock::Row(self.name, slot);
        self.transaction.lock(lock, Mode::Exclusive);
        if self.transaction.row(self.name, slot).is_some() {
            self.transaction.unlock(lock, Mode::Exclusive);
            return None;
        }
        Some(self.begin(slot))
    }

    fn announce_shared_grant(&mut self) {
        self.transaction.lock(Lock::SharedGrant(self.name), Mode::Share);
        let now_us = self.transaction.process.world.now_us.get();
        if self.transaction.leasing.judged.borrow().held(self.name, now_us) > 0 {
            self.transaction.process.world.reach("a shared term begins beside another");
        }
    }

    fn shared_number(&mut self) -> i32 {
        FIRST_SHARED + self.transaction.process.world.identity() as i32
    }

    fn is_locked(&mut self, slot: i32) -> bool {
        let lock = Lock::Row(self.name, slot);
        let is_free = self.transaction.try_lock(lock, Mode::Exclusive);
        if is_free {
            self.transaction.unlock(lock, Mode::Exclusive);
        }
        !is_free
    }
}
