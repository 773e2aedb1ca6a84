//! Precedence of a take-over that waits for a row: fences that come later wait for it.
//!
//! Fences share the row's lock, and PostgreSQL grants it past a stronger request that waits. So transactions that overlap
//! would keep a take-over waiting for ever. A take-over that waits holds an advisory lock of the slot, which each fence
//! takes shared, and releases at once, before it locks the row.

use crate::lock::acquire::in_transaction;
use crate::lock::manager::{Lock, Mode, Scope, Space};
use crate::lock::wait::Limit;
use idgen_core::lock::NameHash;
use std::time::Instant;

/// Slots that collide only wait for each other. Not by the token: everybody sees locks, and the token is a secret.
fn lock(name: &str, slot: i32, mode: Mode) -> Lock {
    let slot = i64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    Lock::new(Space::LeaseFence, NameHash::of(name).key ^ slot, mode)
}

/// Has a fence wait for a take-over that waits for the slot. Not in a transaction that holds a lock on the slot's row: the
/// take-over waits for the end of that transaction.
pub fn let_pass(name: &str, slot: i32) {
    let lock = lock(name, slot, Mode::Shared);
    lock.take(Scope::Transaction);
    lock.release(Scope::Transaction);
}

/// Held by a take-over, for slots whose rows others have locked. The end of the transaction releases it at the latest.
pub struct Precedence {
    locks: Vec<(i32, Lock)>,
    pub since: Instant,
}

impl Precedence {
    pub fn new() -> Self {
        Self { locks: Vec::new(), since: Instant::now() }
    }

    /// False when the time is over.
    pub fn take(&mut self, name: &str, slot: i32, limit: Limit) -> bool {
        if self.locks.iter().any(|(taken, _)| *taken == slot) {
            return true;
        }
        let lock = lock(name, slot, Mode::Exclusive);
        let is_taken = in_transaction(&lock, limit);
        if is_taken {
            self.locks.push((slot, lock));
        }
        is_taken
    }

    /// Ends it for other slots: their terms were renewed, or they are free.
    pub fn keep(&mut self, slots: &[i32]) {
        self.locks.retain(|(slot, lock)| slots.contains(slot) || !lock.release(Scope::Transaction));
    }

    pub fn end(self) {
        self.locks.iter().for_each(|(_, lock)| {
            lock.release(Scope::Transaction);
        });
    }
}
