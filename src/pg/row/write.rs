//! Locking one version of a row, and writing it.

use super::super::spi::as_role;
use super::super::xact::{self, Durability};
use super::scan::{Key, LatestRows, NO_VERSION, Row, Values, Version, page_of};
use super::{Rows, changed_under_lock, heap};
use pg_sys::LockTupleMode::*;
use pgrx::prelude::*;
use std::ptr::null_mut;

/// What to do about a row that another transaction has locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Skip,
    Block,
}

/// A version of a row that this transaction has locked against everyone, also against those that share its key. No newer one
/// is committed.
pub struct Locked<'a, const N: usize>(Copied<'a, N>);

/// A copy of a version.
struct Copied<'a, const N: usize> {
    rows: &'a Rows<N>,
    tuple: pg_sys::HeapTuple,
    buffer: pg_sys::Buffer,
    values: Values,
}

/// The new value of a column; `None` is NULL.
pub type NewValue = (usize, Option<pg_sys::Datum>);

enum NotLocked {
    /// By a transaction that is not waited for.
    IsLocked,
    /// A newer version is committed, or the row is deleted.
    WasReplaced,
}

use NotLocked::*;

impl<const N: usize> Rows<N> {
    /// Locks the newest version of the first row of a key that is wanted, against everyone. `None` if there is none, or if a
    /// transaction that is not waited for has locked it. A version that is not wanted is never locked, so that others can
    /// write it.
    pub fn lock(&self, key: &[Key], wait: Wait, is_wanted: impl Fn(&Row<N>) -> bool) -> Option<Locked<'_, N>> {
        self.newest(
            key,
            |row| is_wanted(row).then(|| row.version()),
            |version| self.lock_version(version, LockTupleExclusive, wait).map(Locked),
        )
    }

    /// The same with the key shared: others may write the row, but neither lock it against everyone nor delete it. Returns what
    /// was read.
    pub fn share<R>(&self, key: &[Key], read: impl Fn(&Row<N>) -> Option<R>) -> Option<R> {
        let read = |row: &Row<N>| Some((row.version(), read(row)?));
        self.newest(key, read, |(version, found)| {
            let locked = self.lock_version(version, LockTupleKeyShare, Wait::Block)?;
            // A newer version is locked too, where it does not conflict. After the commit, PostgreSQL counts the lock and the
            // write of a savepoint as the write only, which does not conflict, although it is a take-over.
            match locked.row().was_replaced() {
                false => Ok(found),
                true => self.latest(|latest| latest.find(key, &read)).map(|(_, found)| found).ok_or(WasReplaced),
            }
        })
    }

    /// Updates the newest version of the first row of a key for which there is a change, beside those who share the key. A crash
    /// may undo it. Waits for others who have locked it, and then asks for the change again: it may depend on the time. If it
    /// must not be older than that by any chance, `locks_first` locks the row in any case.
    pub fn update<R, V: AsRef<[NewValue]>>(
        &self,
        key: &[Key],
        locks_first: bool,
        change: impl Fn(&Row<N>) -> Option<(V, R)>,
    ) -> Option<R> {
        let found = |row: &Row<N>| {
            let (values, changed) = change(row)?;
            // SAFETY: a scan shows the row.
            let is_free = !locks_first && unsafe { row.is_free() };
            Some((row.version(), is_free.then(|| self.modified(row, values.as_ref())), changed))
        };
        self.newest(key, found, |(version, free, changed)| {
            if let Some(tuple) = free {
                crate::pg::crash_point!("row: found free");
                // SAFETY: the relation is open, and a snapshot shows the version. Who has locked it since then is waited for:
                // the change then stands as of before.
                return unsafe { self.write(version, tuple) }.map(|()| changed);
            }
            let locked = self.lock_version(version, LockTupleNoKeyExclusive, Wait::Block)?;
            // By the clock of now.
            let (values, changed) = change(&locked.row()).ok_or(WasReplaced)?;
            // SAFETY: as above. Only those who share the key can be waited for, and they are not.
            unsafe { self.write(version, self.modified(&locked.row(), values.as_ref())) }.map(|()| changed)
        })
    }

    /// Passes the newest version of the row that `read` accepts to the attempt, and again if another transaction replaced it in
    /// the meantime.
    fn newest<V, R>(
        &self,
        key: &[Key],
        read: impl Fn(&Row<N>) -> Option<V>,
        attempt: impl Fn(V) -> Result<R, NotLocked>,
    ) -> Option<R> {
        loop {
            match self
                .latest(|latest| latest.find_last(key, &read).or_else(|| latest.find(key, &read)).map(&attempt))?
            {
                Ok(result) => return Some(result),
                Err(IsLocked) => return None,
                Err(WasReplaced) => {}
            }
            check_for_interrupts!();
        }
    }

    /// The version is one that a snapshot still shows. Returns a copy.
    fn lock_version(
        &self,
        version: Version,
        mode: pg_sys::LockTupleMode::Type,
        wait: Wait,
    ) -> Result<Copied<'_, N>, NotLocked> {
        let policy = match wait {
            Wait::Skip => pg_sys::LockWaitPolicy::LockWaitSkip,
            Wait::Block => pg_sys::LockWaitPolicy::LockWaitBlock,
        };
        // SAFETY: the relation is open and a heap, and the version is not vacuumed by the above. The tuple is copied before its
        // page is released.
        unsafe {
            let mut tuple = pg_sys::HeapTupleData {
                t_self: version.position,
                t_tableOid: (*self.relation).rd_id,
                ..Default::default()
            };
            let (mut buffer, mut failure) = (0, pg_sys::TM_FailureData::default());
            // Only who shares the key follows a row that another transaction is about to replace. The stronger modes would lock
            // its newer version too, and report the one that was asked for as replaced: nobody would know of that lock.
            let (command, follow) = (pg_sys::GetCurrentCommandId(true), mode == LockTupleKeyShare);
            let outcome = pg_sys::heap_lock_tuple(
                self.relation,
                &mut tuple,
                command,
                mode,
                policy,
                follow,
                &mut buffer,
                &mut failure,
            );
            let locked = outcome_of(outcome).map(|()| Copied::new(self, pg_sys::heap_copytuple(&mut tuple), buffer));
            pg_sys::ReleaseBuffer(buffer);
            locked
        }
    }

    fn modified(&self, row: &Row<N>, new: &[NewValue]) -> pg_sys::HeapTuple {
        let Values { mut values, mut is_null } = row.values.clone();
        for (column, value) in new {
            let index = self.numbers[*column] as usize - 1;
            (values[index], is_null[index]) = (value.unwrap_or(pg_sys::Datum::null()), value.is_none());
        }
        // SAFETY: the relation is open, and the values have the types of its columns. They are copied while the row has them.
        unsafe { pg_sys::heap_form_tuple((*self.relation).rd_att, values.as_mut_ptr(), is_null.as_mut_ptr()) }
    }

    /// Replaces a version by a tuple, which it frees: a call can write many. The next command of this transaction sees that.
    ///
    /// # Safety
    /// A snapshot shows the version.
    unsafe fn write(&self, version: Version, tuple: pg_sys::HeapTuple) -> Result<(), NotLocked> {
        let (relation, mut position) = (self.relation, version.position);
        // SAFETY: the relation is open and a heap, and the version is not vacuumed by the above.
        unsafe {
            pg_sys::CheckCmdReplicaIdentity(relation, pg_sys::CmdType::CMD_UPDATE);
            let (outcome, indexes) = heap::heap_update(relation, &mut position, tuple);
            if let Err(cause) = outcome_of(outcome) {
                pg_sys::heap_freetuple(tuple);
                return Err(cause);
            }
            if indexes != 0 {
                self.add_index_entries(tuple, indexes);
            }
            let (position, is_near) = ((*tuple).t_self, page_of((*tuple).t_self) == page_of(version.position));
            *self.last.lock() = if is_near { ((*relation).rd_id, Version { position, ..version }) } else { NO_VERSION };
            pg_sys::heap_freetuple(tuple);
            pg_sys::CommandCounterIncrement();
        }
        Ok(())
    }

    /// Of a tuple that is no longer on the page of the version before, with the rights of the table's owner: a superuser can add
    /// an index on an expression.
    ///
    /// # Safety
    /// The tuple was written.
    #[cold]
    unsafe fn add_index_entries(&self, tuple: pg_sys::HeapTuple, which: u32) {
        let relation = self.relation;
        // SAFETY: the relation is open, and everything is freed with the state.
        let add = || unsafe {
            let state = pg_sys::CreateExecutorState();
            let context = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
            let mut target = pg_sys::ResultRelInfo::default();
            pg_sys::InitResultRelInfo(&mut target, relation, 0, null_mut(), 0);
            pg_sys::ExecOpenIndices(&mut target, false);
            let slot = pg_sys::MakeSingleTupleTableSlot((*relation).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
            pg_sys::ExecStoreHeapTuple(tuple, slot, false);
            heap::insert_index_tuples(&mut target, state, slot, which);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::ExecCloseIndices(&mut target);
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::FreeExecutorState(state);
        };
        // SAFETY: the relation is open.
        as_role(unsafe { (*(*relation).rd_rel).relowner }, pg_sys::SECURITY_NOFORCE_RLS, add);
    }
}

impl<'a, const N: usize> LatestRows<'a, N> {
    /// Locks a version that was found here against everyone. `None` if it is not the newest any more, or another transaction
    /// has locked it.
    pub fn try_lock(&self, version: Version) -> Option<Locked<'a, N>> {
        self.rows.lock_version(version, LockTupleExclusive, Wait::Skip).ok().map(Locked)
    }
}

fn outcome_of(outcome: pg_sys::TM_Result::Type) -> Result<(), NotLocked> {
    match outcome {
        pg_sys::TM_Result::TM_Ok => Ok(()),
        pg_sys::TM_Result::TM_WouldBlock | pg_sys::TM_Result::TM_BeingModified => Err(IsLocked),
        _ => Err(WasReplaced),
    }
}

impl<'a, const N: usize> Copied<'a, N> {
    fn new(rows: &'a Rows<N>, tuple: pg_sys::HeapTuple, buffer: pg_sys::Buffer) -> Self {
        // SAFETY: the relation is open, and the tuple is a copy of one of its.
        unsafe {
            let mut values = Values::new(rows.relation);
            values.fill(rows.relation, tuple);
            Self { rows, tuple, buffer, values }
        }
    }

    fn row(&self) -> Row<'_, N> {
        Row { numbers: &self.rows.numbers, tuple: self.tuple, buffer: self.buffer, values: &self.values }
    }
}

impl<const N: usize> Drop for Copied<'_, N> {
    fn drop(&mut self) {
        // SAFETY: a copy of its own.
        unsafe { pg_sys::heap_freetuple(self.tuple) };
    }
}

impl<const N: usize> Locked<'_, N> {
    pub fn row(&self) -> Row<'_, N> {
        self.0.row()
    }

    /// A transaction that waits to share the key finds another version. A crash after the commit does not undo it.
    pub fn update(self, values: &[NewValue]) {
        xact::require_durability(Durability::Crash);
        let tuple = self.0.rows.modified(&self.row(), values);
        // SAFETY: the relation is open, and the lock keeps the version.
        let outcome = unsafe { self.0.rows.write(self.row().version(), tuple) };
        outcome.unwrap_or_else(|_| changed_under_lock().raise());
    }

    pub fn delete(self) {
        let mut version = self.row().version().position;
        // SAFETY: the relation is open, and the lock keeps the version.
        let outcome = unsafe {
            pg_sys::CheckCmdReplicaIdentity(self.0.rows.relation, pg_sys::CmdType::CMD_DELETE);
            let outcome = heap::heap_delete(self.0.rows.relation, &mut version);
            pg_sys::CommandCounterIncrement();
            outcome
        };
        outcome_of(outcome).unwrap_or_else(|_| changed_under_lock().raise());
    }
}
