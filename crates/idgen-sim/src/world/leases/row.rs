//! The row of one term, as the procedures of a holder and of a definer reach it.

use super::judge::{Note, Sent};
use super::locks::{Lock, Mode};
use super::transaction::Transaction;
use crate::world::rows::LeaseRow;
use idgen_core::lease::{Change, FIRST_SHARED, HeldRow, TermRow};

pub struct OneRow<'t, 'a> {
    pub transaction: &'t Transaction<'a>,
    pub name: usize,
    pub by: By,
    /// When the call was sent.
    pub since: Sent,
}

#[derive(Clone, Copy)]
pub enum By {
    Token(i64),
    Slot(i32),
}

fn held(row: &LeaseRow) -> HeldRow {
    HeldRow { token: row.token, depth: row.depth, ttl_us: row.ttl_us }
}

impl OneRow<'_, '_> {
    fn find(&self) -> Option<(i32, LeaseRow)> {
        match self.by {
            By::Token(token) => self.transaction.rows(self.name).into_iter().find(|(_, row)| row.token == token),
            By::Slot(slot) => self.transaction.row(self.name, slot).map(|row| (slot, row)),
        }
    }

    /// The row, if it is wanted, and is so once it is locked.
    fn lock(&self, mode: Mode, waits: bool, is_wanted: impl Fn(&HeldRow) -> bool) -> Option<(i32, LeaseRow)> {
        let transaction = self.transaction;
        let is_it = |row: &LeaseRow| is_wanted(&held(row));
        let (slot, _) = self.find().filter(|(_, row)| is_it(row))?;
        let lock = Lock::Row(self.name, slot);
        match waits {
            true => transaction.lock(lock, mode),
            false => transaction.try_lock(lock, mode).then_some(())?,
        }
        let locked = transaction.row(self.name, slot).filter(is_it);
        if locked.is_none() {
            transaction.unlock(lock, mode);
        }
        locked.map(|row| (slot, row))
    }
}

impl TermRow for OneRow<'_, '_> {
    /// The slot, and the row as it was.
    type Found = (i32, LeaseRow);

    fn now_us(&self) -> i64 {
        self.transaction.boot_us()
    }

    fn update(&self, change: impl Fn(&HeldRow) -> Option<Change>) -> Option<Self::Found> {
        let transaction = self.transaction;
        // Asked before the row is locked, too, as on a server, which asks again only if it has waited.
        let (slot, before) = self.lock(Mode::Change, true, |held| change(held).is_some())?;
        let mut row = before.clone();
        let token = row.token;
        match change(&held(&before))? {
            Change::Extend { depth, ttl_us, ends_us } => {
                let deepens = depth > before.depth;
                (row.depth, row.ttl_us, row.ends_us, row.clock) = (depth, ttl_us, ends_us, transaction.clock());
                // Its holder lives on without the session.
                let is_alive = |key: i64| transaction.leasing.locks.is_held(Lock::Session(key));
                row.session = row.session.filter(|(_, key)| is_alive(*key));
                transaction.effects.borrow_mut().lock(token);
                let (is_bound, since) = (row.session.is_some(), self.since);
                transaction.note(Note::Extended { token, ttl_us, deepens, since, is_bound });
            }
            Change::Release { depth } => {
                row.depth = depth;
                transaction.note(Note::Shallower { token });
            }
            Change::Free { since_us, revoked } => {
                (row.depth, row.ends_us, row.clock, row.revoked) = (0, since_us, transaction.clock(), revoked);
                let locked_us = transaction.sent().at_us;
                let note = if revoked { Note::Revoked { token, locked_us } } else { Note::Released { token } };
                self.freed(&before, note);
                row.session = None;
            }
        }
        transaction.process.step();
        transaction.set_row(self.name, slot, row);
        Some((slot, before))
    }

    fn delete_or_update(
        &self,
        is_over: impl Fn(&HeldRow) -> bool,
        change: impl Fn(&HeldRow) -> Option<Change>,
    ) -> Option<Self::Found> {
        let is_defined = self.transaction.definition(self.name).is_some();
        let may_go = self.find().is_some_and(|(slot, _)| !is_defined || slot >= FIRST_SHARED);
        let Some((slot, before)) = may_go.then(|| self.lock(Mode::Exclusive, false, is_over)).flatten() else {
            return self.update(change);
        };
        self.transaction.delete_row(self.name, slot);
        self.freed(&before, Note::Released { token: before.token });
        Some((slot, before))
    }

    fn survive_failover(&self) {
        self.transaction.survive_failover();
    }

    fn slot(&self) -> Option<i32> {
        self.find().map(|(slot, _)| slot)
    }

    fn has_locked(&self) -> bool {
        matches!(self.by, By::Token(token) if self.transaction.effects.borrow().has_locked(token))
    }

    fn yield_to_take_over(&self, slot: i32) {
        let lock = Lock::Fence(self.name, slot);
        self.transaction.lock(lock, Mode::Share);
        self.transaction.unlock(lock, Mode::Share);
    }

    fn share(&self, is_wanted: impl Fn(&HeldRow) -> bool) -> Option<i32> {
        let (slot, row) = self.lock(Mode::Share, true, is_wanted)?;
        let token = row.token;
        let since = self.transaction.sent();
        self.transaction.note(Note::Fenced { token, since });
        Some(slot)
    }
}

impl OneRow<'_, '_> {
    fn freed(&self, row: &LeaseRow, note: Note) {
        self.transaction.effects.borrow_mut().release(row.token);
        row.session.into_iter().for_each(|(_, key)| self.transaction.unbind_at_commit(key));
        self.transaction.note(note);
    }
}
