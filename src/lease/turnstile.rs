//! Where those queue who want a lease: an advisory lock of its name. Only whoever has it looks at the rows, so a grant costs
//! the same however many wait, and nobody overtakes.

use super::define;
use crate::lock::acquire::in_transaction;
use crate::lock::manager::{Lock, Mode, Scope, Space};
use crate::lock::wait::Limit;
use crate::pg::condition_variable::ConditionVariable;
use crate::pg::latch;
use crate::pg::wait_event::WaitEvent;
use crate::shmem::Part;
use idgen_core::lock::NameHash;
use pgrx::prelude::*;
use std::time::Duration;

/// Names share condition variables; a broadcast for another name costs a read of the rows.
pub static CONDITIONS: Part<&'static [ConditionVariable]> =
    Part::new(c"idgen lease conditions", |room| room.array(CONDITION_COUNT, ConditionVariable::new));
const CONDITION_COUNT: usize = 256;

/// How long the head sleeps at the most, when it is woken by whoever ends a term. Some ends are silent: DISCARD ALL in a
/// bound session, the COMMIT of a prepared transaction.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long without shared memory, where nobody wakes it.
const LOOK_EVERY_UNPRELOADED: Duration = Duration::from_millis(100);

/// As `pg_stat_activity` shows the head of a queue.
const LEASE_WAIT: WaitEvent = WaitEvent::named(c"IdgenLease");

pub struct Turnstile {
    lock: Lock,
    condition: Option<&'static ConditionVariable>,
    /// This transaction has defined the name: until it ends nobody else is granted a slot, and the head of the queue may wait for
    /// its end.
    is_alone: bool,
}

/// The condition variable of a name; `None` without preload.
pub fn condition(name: &str) -> Option<&'static ConditionVariable> {
    let place = NameHash::of(name).check as usize % CONDITION_COUNT;
    CONDITIONS.get().map(|conditions| &conditions[place])
}

impl Turnstile {
    pub fn of(name: &str) -> Self {
        Self {
            lock: Lock::new(Space::LeaseQueue, NameHash::of(name).key, Mode::Exclusive),
            condition: condition(name),
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
    pub fn broadcasts(&self) -> u64 {
        self.condition.map_or(0, ConditionVariable::broadcasts)
    }

    /// Sleeps until something happens, for at most so long; not if it has happened since that count was read.
    pub fn sleep(&self, broadcasts: u64, left: Duration) {
        match self.condition {
            Some(condition) => condition.sleep_unless_broadcast_since(broadcasts, left.min(LOOK_EVERY), LEASE_WAIT),
            None => {
                latch::sleep(left.min(LOOK_EVERY_UNPRELOADED));
                check_for_interrupts!();
            }
        }
    }
}
