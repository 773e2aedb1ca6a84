//! Acquiring leases: the queue, the waits and the rows, as the procedures of the core reach them.

use super::definitions::KnownDefinition;
use super::locks::{self, Precedence};
use super::rows::{self, COLUMNS, LeaseRow, LockedRow, ROWS, slot_key};
use super::status::{self, COUNTERS};
use super::terms::{self, HeldTerm, Wanted};
use super::{definitions, errors, pending, sweep};
use crate::pg::advisory_lock::{AdvisoryLock, Limit, Mode, Scope, acquire_for_transaction};
use crate::pg::latch::ConditionVariable;
use crate::pg::row::{Key, LatestRows, Version, Wait};
use crate::pg::snapshot::Moment;
use crate::pg::{session, system_clock, xact};
use crate::place;
use idgen_core::lease::{
    self, Acquirer, Change, FIRST_SHARED, GrantRows, Lease, LeaseDefinition, LeaseLock, Patience, Term, Tried,
};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::{Duration, Instant};

impl Wanted<'_> {
    /// Acquires a term of each lease, in their order, or none. If the limit passes, `None` or an error, as the limit says.
    pub fn acquire(&self, names: &[&str], function: &CStr, limit: Limit) -> Option<Vec<HeldTerm>> {
        xact::require_read_write(function);
        if place::is_wal_lost() {
            errors::holders_unknown().raise();
        }
        // A call that can only fail does not wait in the queue.
        for name in names.iter().filter(|_| self.shared) {
            if let Some(definition) = definitions::of_within(limit, name)?.definition {
                refuse_to_share_slots(name, &definition);
            }
        }
        let began = Instant::now();
        let bypasses = names.iter().map(|name| locks::bypasses_queue(name, self.shared)).collect();
        let mut call = Call { wanted: self, names, bypasses, limit, known: None, precedence: Precedence::default() };
        let granted = lease::acquire(&mut call);
        COUNTERS.add(began.elapsed().as_micros() as u64, |counters| &counters.wait_us);
        let Some(granted) = granted else {
            return limit.time_out();
        };
        // Only here, where nothing is rolled back any more.
        let finish = |Grant { term, is_take_over }| {
            COUNTERS.add(1, |counters| if is_take_over { &counters.take_overs } else { &counters.grants });
            term
        };
        let granted: Vec<HeldTerm> = granted.into_iter().map(finish).collect();
        self.end_statement(names);
        Some(granted)
    }

    /// After terms of these leases have begun.
    fn end_statement(&self, names: &[&str]) {
        self.commit_or_warn(names[0]);
        // The rest of this statement, and cursors that are open, see what was there before it waited. In a stricter level, so does
        // all that is left of this transaction.
        let moment = match xact::is_read_committed() {
            true => Moment::now(),
            false if self.is_own_statement => Moment::end_of_transaction(),
            false => return,
        };
        pending::running().acquired.extend(names.iter().map(|name| ((*name).to_owned(), moment.clone())));
    }

    pub fn commit_or_warn(&self, name: &str) {
        match self.is_own_statement {
            true => xact::commit_with_statement(),
            false => errors::not_held_before_commit(name).warn(),
        }
    }

    /// Raises 40001 if what runs after the call in its transaction sees by a snapshot that was taken before it, unless that shows
    /// all that was written under the lease.
    fn refuse_older_snapshot(&self, name: &str, shows_all: impl FnOnce() -> bool) {
        if !self.is_own_statement && !xact::is_read_committed() && !shows_all() {
            errors::snapshot_too_old(name).raise();
        }
    }
}

/// A lease with several slots has no shared terms.
fn refuse_to_share_slots(name: &str, definition: &LeaseDefinition) {
    if definition.slots > 1 {
        errors::cannot_share(name, definition.slots).raise();
    }
}

struct Call<'a> {
    wanted: &'a Wanted<'a>,
    names: &'a [&'a str],
    bypasses: Vec<bool>,
    limit: Limit,
    /// Of the lease that is attempted.
    known: Option<KnownDefinition>,
    precedence: Precedence,
}

impl Call<'_> {
    fn limit(&self, patience: Patience) -> Limit {
        match patience {
            Patience::OfTheCall => self.limit,
            Patience::None => Limit::answer(Duration::ZERO),
        }
    }

    fn lease_lock(&self, at: usize, lock: LeaseLock) -> AdvisoryLock {
        locks::lock(self.names[at], lock, Mode::of(lock == LeaseLock::Definition))
    }
}

impl Acquirer for Call<'_> {
    type Term = Grant;

    fn leases(&self) -> usize {
        self.names.len()
    }

    fn lock(&mut self, at: usize, lock: LeaseLock, patience: Patience) -> bool {
        acquire_for_transaction(&self.lease_lock(at, lock), self.limit(patience))
    }

    fn unlock(&mut self, at: usize, lock: LeaseLock) {
        self.lease_lock(at, lock).release(Scope::Transaction);
    }

    fn bypasses(&self, at: usize) -> bool {
        self.bypasses[at]
    }

    fn is_defined(&mut self, at: usize, patience: Patience) -> Option<bool> {
        self.known = definitions::of_within(self.limit(patience), self.names[at]);
        self.known.map(|known| known.definition.is_some())
    }

    fn wants_shared(&self) -> bool {
        self.wanted.shared
    }

    fn grant(&mut self, at: usize, are_shared_over: bool, patience: Patience) -> Option<Tried<Grant>> {
        let mut tried = None;
        ROWS.write_within(self.limit(patience), |rows| {
            let granted = rows.latest(|latest| {
                let (mut attempt, lease) = Attempt::new(self, at, latest);
                if self.wanted.shared {
                    refuse_to_share_slots(self.names[at], &lease.definition);
                }
                lease::grant(&mut attempt, &lease, self.wanted.shared, are_shared_over)
            });
            // A session that sleeps has no lock on the table: an ALTER TABLE would wait for it, and renewals for that.
            let is_granted = matches!(granted, Some(Ok(_)));
            tried = Some(granted);
            is_granted.then_some(())
        });
        tried
    }

    fn now_us(&self) -> i64 {
        system_clock::boot_us()
    }

    fn changes(&self, at: usize) -> u64 {
        locks::condition(self.names[at]).map_or(0, ConditionVariable::broadcasts)
    }

    fn sleep(&mut self, at: usize, changes: u64, until_us: Option<i64>) -> bool {
        let left = self.limit.left();
        if left == Some(Duration::ZERO) {
            return false;
        }
        let until = until_us.map(|until_us| until_us.saturating_sub(system_clock::boot_us()).max(0) as u64);
        if until != Some(0) {
            let time = until.map_or(Duration::MAX, Duration::from_micros).min(left.unwrap_or(Duration::MAX));
            locks::sleep(self.names[at], changes, time);
        }
        check_for_interrupts!();
        true
    }

    fn precede(&mut self, at: usize, slots: &[i32]) -> bool {
        self.precedence.move_to(self.names[at], slots, self.limit)
    }

    fn wait_for_rows(&mut self, at: usize, slots: &[i32]) {
        let name = self.names[at];
        self.wanted.refuse_older_snapshot(name, || false);
        rows::wait_for_rows(name, slots, self.limit);
    }

    fn undo_unless_granted<T>(&mut self, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        xact::in_subtransaction(|| work(self)).unwrap_or_else(|cause| cause.rethrow())
    }
}

/// A term that begins when the transaction commits.
struct Grant {
    term: HeldTerm,
    /// The last holder had not released the slot.
    is_take_over: bool,
}

/// An attempt, and the lease as it was when the attempt began.
struct Attempt<'a> {
    wanted: &'a Wanted<'a>,
    name: &'a str,
    rows: &'a LatestRows<'a, COLUMNS>,
    known: KnownDefinition,
    /// The terms of the lease, with their versions.
    found: Vec<(Term, Version)>,
    definition: LeaseDefinition,
}

impl<'a> Attempt<'a> {
    /// The lock delay of an ended session begins when it is first seen here. A shared term does not depend on others.
    ///
    /// While a lease is defined with one slot, it gets other rows only after that of the slot was deleted. So where this process
    /// has seen no other row, under the same definition, and the row is as it has written it since, it reads no others. A
    /// transaction that has written may have deleted some, and can be rolled back.
    fn new(call: &'a Call, at: usize, rows: &'a LatestRows<COLUMNS>) -> (Self, Lease) {
        static SEEN_ALONE: Mutex<Option<(String, u64)>> = Mutex::new(None);
        COUNTERS.add(1, |counters| &counters.probes);
        let (wanted, name, known) = (call.wanted, call.names[at], call.known.expect("the definition was read"));
        let definition = known.definition.unwrap_or_else(rows::undefined);
        let read = |row: &LeaseRow| (rows::term(row, Some(definition.lock_delay_us)), row.version());
        let can_be_alone = !wanted.shared && known.definition.is_some_and(|defined| defined.slots == 1);
        let is_seen = |(seen, changes): &(String, u64)| seen == name && *changes == known.changes;
        let alone = (can_be_alone && SEEN_ALONE.lock().as_ref().is_some_and(is_seen))
            .then(|| rows.find_last(&slot_key(name, 0), |row| Some(read(row))))
            .flatten();
        let slots = [Key::Text(name), Key::IntBelow(FIRST_SHARED)];
        let wanted_rows = if wanted.shared { &slots[..] } else { &slots[..1] };
        let found = alone.map_or_else(|| rows.all(wanted_rows, read), |row| vec![row]);
        let is_alone = matches!(&found[..], [(term, _)] if term.slot == 0);
        if can_be_alone && alone.is_none() && is_alone && xact::id_if_any().is_none() {
            *SEEN_ALONE.lock() = Some((name.to_owned(), known.changes));
        }
        let terms: Vec<Term> = found.iter().map(|(term, _)| *term).collect();
        let now = rows::now_for(&terms);
        (Self { wanted, name, rows, known, found, definition }, Lease { definition, terms, now })
    }

    fn ttl_us(&self) -> i64 {
        self.wanted.ttl_us.unwrap_or(self.definition.ttl_us)
    }

    fn term(&self, slot: i32) -> Option<&(Term, Version)> {
        self.found.iter().find(|(term, _)| term.slot == slot)
    }

    /// Locks the row of a slot, as this attempt has read it. `None` if it has changed since, or is locked.
    fn lock(&self, slot: i32) -> Option<(&Term, LockedRow<'a>)> {
        let (term, version) = self.term(slot)?;
        let locked = self.rows.try_lock(*version)?;
        status::notify_expired(self.name, &locked.row());
        Some((term, locked))
    }

    /// Records what the end of the transaction has to do for a new term.
    fn begun(&self, term: HeldTerm, is_take_over: bool) -> Grant {
        let name = self.name;
        pending::require_durability();
        pending::record(|effects| effects.lock(term.token));
        pending::wake_at_end(name);
        status::notify_event(name, term.slot, "granted", term.owner.as_deref());
        if let Some(key) = term.session_key {
            pending::bind(name, &term, key, self.definition.lock_delay_us);
        }
        crate::pg::crash_point!("lease: grant written");
        Grant { term, is_take_over }
    }
}

impl GrantRows for Attempt<'_> {
    type Term = Grant;

    /// Raises 40001 if the transaction's one snapshot may be older than the last holder's writes. A holder that did not
    /// release the slot may have written at any time.
    fn refuse_older_snapshot(&mut self, slot: i32, ends: &[i32]) {
        let name = self.name;
        let is_released = |slot: i32| self.term(slot).is_none_or(|(term, _)| term.depth == 0 && !term.revoked);
        self.wanted.refuse_older_snapshot(name, || match self.wanted.shared {
            true => {
                ends.iter().all(|slot| is_released(*slot)) && !rows::have_changed(name, Key::IntBelow(FIRST_SHARED))
            }
            false => {
                // The others are those of shared terms, and of slots that only an earlier definition has.
                let own_and_others = [Key::Int(slot), Key::IntFrom(self.definition.slots)];
                ends.is_empty()
                    && is_released(slot)
                    && !own_and_others.into_iter().any(|slots| rows::have_changed(name, slots))
            }
        });
    }

    fn undo_unless_begun<T>(&mut self, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        xact::in_subtransaction(|| work(self)).unwrap_or_else(|cause| cause.rethrow())
    }

    fn free(&mut self, slot: i32) -> Option<()> {
        let (term, locked) = self.lock(slot)?;
        if term.depth > 0 {
            locked.update(&rows::new_values(Change::Free { since_us: system_clock::boot_us(), revoked: false }));
        }
        Some(())
    }

    fn delete(&mut self, slot: i32) -> Option<()> {
        self.lock(slot)?.1.delete();
        Some(())
    }

    fn take(&mut self, slot: i32) -> Option<Grant> {
        let (last, locked) = self.lock(slot)?;
        let is_take_over = last.depth > 0 || last.revoked;
        let term = terms::take(locked, self.wanted, self.ttl_us());
        Some(self.begun(term, is_take_over))
    }

    fn insert(&mut self, slot: i32) -> Option<Grant> {
        let term = terms::insert(self.name, slot, self.wanted, self.ttl_us())?;
        // No release deletes the row if the holder vanishes.
        if self.wanted.shared || self.known.definition.is_none() {
            sweep::sweep_if_due();
        }
        Some(self.begun(term, false))
    }

    fn announce_shared_grant(&mut self) {
        locks::lock(self.name, LeaseLock::SharedGrants, Mode::Shared).acquire(Scope::Transaction);
    }

    /// All users can read it in `idgen.leases`, so it must not tell the token.
    fn shared_number(&mut self) -> i32 {
        FIRST_SHARED + (session::random_i64() as u32 % (i32::MAX - FIRST_SHARED) as u32) as i32
    }

    fn is_locked(&mut self, slot: i32) -> bool {
        let key = slot_key(self.name, slot);
        xact::rolled_back(|| ROWS.write(|rows| rows.lock(&key, Wait::Skip, |_| true).map(drop)).is_none())
    }
}
