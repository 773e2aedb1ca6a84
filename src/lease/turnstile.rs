//! Where those queue who want a lease: an advisory lock of its name. Only whoever has it looks at the rows, so a grant costs
//! the same however many wait, and nobody overtakes.

use crate::bell::{self, Bell};
use crate::clock;
use crate::lock::acquire::hand_over;
use crate::lock::manager::{Lock, Mode, Scope, Space};
use crate::lock::wait::{self, Limit};
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
}

/// The bell of a name, by its place; `None` without preload.
pub fn bell(name: &str) -> Option<&'static Bell> {
    let place = NameHash::of(name).check as usize % BELLS;
    shmem::shared().map(|shared| &shared.lease_bells[place])
}

impl Turnstile {
    pub fn of(name: &str) -> Self {
        Self { lock: Lock::new(Space::LeaseQueue, NameHash::of(name).key, Mode::Exclusive), bell: bell(name) }
    }

    /// Waits for its turn. False when the time is over. The turn ends with the transaction at the latest.
    pub fn enter(&self, limit: Limit) -> bool {
        if self.lock.try_take(Scope::Transaction).is_some() {
            return true;
        }
        let is_in = wait::in_session(&self.lock, limit).is_some();
        if is_in {
            hand_over(&self.lock);
        }
        is_in
    }

    pub fn leave(&self) {
        self.lock.release(Scope::Transaction);
    }

    /// To be called before each look at the rows, so that what happens after it ends the sleep.
    pub fn listen(&self) {
        if let Some(bell) = self.bell {
            bell.listen();
        }
    }

    pub fn stop_listening(&self) {
        bell::stop_listening();
    }

    /// Sleeps until something happens, for at most so long.
    pub fn sleep(&self, left: Duration) {
        match self.bell {
            Some(bell) => {
                bell.sleep(left.min(LOOK_EVERY), pg_compat::wait_for_lease());
            }
            None => {
                clock::sleep(left.min(LOOK_EVERY_UNPRELOADED));
                check_for_interrupts!();
            }
        }
    }
}
