//! Where those queue who want a lease: an advisory lock of its name. Only whoever has it looks at the rows, so a grant costs
//! the same however many wait, and nobody overtakes.

use super::define;
use crate::bell::Bell;
use crate::clock;
use crate::lock::acquire::in_transaction;
use crate::lock::manager::{Lock, Mode, Scope, Space};
use crate::lock::wait::Limit;
use crate::{pg_compat, shmem};
use idgen_core::lock::NameHash;
use pgrx::prelude::*;
use std::time::Duration;

/// How many bells there are. Names share them; a ring for another name costs a look at the rows.
pub const BELLS: usize = 256;

/// How long the head sleeps at the most, when it is woken by whoever ends a term. Some ends are silent: DISCARD ALL in a
/// bound session, the COMMIT of a prepared transaction.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long without shared memory, where nobody wakes it.
const LOOK_EVERY_UNPRELOADED: Duration = Duration::from_millis(100);

pub struct Turnstile {
    lock: Lock,
    bell: Option<&'static Bell>,
    /// This transaction has defined the name: until it ends nobody else is granted a slot, and the head of the queue may wait for
    /// its end.
    is_alone: bool,
}

/// The bell of a name, by its place; `None` without preload.
pub fn bell(name: &str) -> Option<&'static Bell> {
    let place = NameHash::of(name).check as usize % BELLS;
    shmem::shared().map(|shared| &shared.lease_bells[place])
}

impl Turnstile {
    pub fn of(name: &str) -> Self {
        Self {
            lock: Lock::new(Space::LeaseQueue, NameHash::of(name).key, Mode::Exclusive),
            bell: bell(name),
            is_alone: define::lock(name, Mode::Exclusive).is_held(),
        }
    }

    /// Waits for its turn. False when the time is over. The turn ends with the transaction at the latest.
    pub fn enter(&self, limit: Limit) -> bool {
        self.is_alone || in_transaction(&self.lock, limit)
    }

    pub fn leave(&self) {
        if !self.is_alone {
            self.lock.release(Scope::Transaction);
        }
    }

    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// How often something has happened. To be read before each look at the rows, for the sleep after it.
    pub fn rings(&self) -> u64 {
        self.bell.map_or(0, Bell::rings)
    }

    /// Sleeps until something happens, for at most so long; not if it has happened since that count was read.
    pub fn sleep(&self, rings: u64, left: Duration) {
        match self.bell {
            Some(bell) => bell.sleep_unless_rung(rings, left.min(LOOK_EVERY), pg_compat::wait_for_lease()),
            None => {
                clock::sleep(left.min(LOOK_EVERY_UNPRELOADED));
                check_for_interrupts!();
            }
        }
    }
}
