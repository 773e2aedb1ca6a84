//! PostgreSQL's condition variables: sleep until another process signals.

use super::wait_event::WaitEvent;
use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};
use std::time::Duration;

/// Lives in shared memory. Prepare to sleep before testing the condition; otherwise a wakeup is lost. Where the test
/// cancels the sleep, as a subtransaction that rolls back does, read the number of broadcasts first instead.
pub struct ConditionVariable {
    variable: UnsafeCell<pg_sys::ConditionVariable>,
    broadcasts: AtomicU64,
}

// SAFETY: PostgreSQL makes the type for shared memory; only its own functions touch it, and they lock it.
unsafe impl Sync for ConditionVariable {}

impl ConditionVariable {
    pub fn new() -> Self {
        let mut variable = pg_sys::ConditionVariable::default();
        // SAFETY: initialises a local. The result has no address in it, so it can be moved until a process waits.
        unsafe { pg_sys::ConditionVariableInit(&mut variable) };
        Self { variable: UnsafeCell::new(variable), broadcasts: AtomicU64::new(0) }
    }

    /// Adds this process to the waiters. An error removes it.
    pub fn prepare_to_sleep(&self) {
        // SAFETY: initialised, and in shared memory.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.variable.get()) };
    }

    /// Sleeps until a broadcast, at most `time`; true if there was one. Raises when the statement is canceled, also if there
    /// is nothing to sleep for.
    pub fn sleep(&self, time: Duration, event: &WaitEvent) -> bool {
        check_for_interrupts!();
        let ms = time.as_millis().max(1) as i64;
        // SAFETY: as in `prepare_to_sleep`.
        !unsafe { pg_sys::ConditionVariableTimedSleep(self.variable.get(), ms, event.id()) }
    }

    pub fn broadcasts(&self) -> u64 {
        self.broadcasts.load(Acquire)
    }

    /// Sleeps unless there was a broadcast since this count was read. Raises as [`ConditionVariable::sleep`].
    pub fn sleep_unless_broadcast_since(&self, broadcasts: u64, time: Duration, event: &WaitEvent) {
        check_for_interrupts!();
        self.prepare_to_sleep();
        if self.broadcasts() == broadcasts {
            self.sleep(time, event);
        }
        Self::cancel_sleep();
    }

    /// Wakes all waiters.
    pub fn broadcast(&self) {
        // Count first: a process that prepares too late to be woken sees the new count.
        self.broadcasts.fetch_add(1, AcqRel);
        // SAFETY: as in `prepare_to_sleep`.
        unsafe { pg_sys::ConditionVariableBroadcast(self.variable.get()) };
    }

    /// Removes this process from the waiters of whatever variable it prepared for.
    pub fn cancel_sleep() {
        // SAFETY: does nothing if this process waits for none.
        unsafe { pg_sys::ConditionVariableCancelSleep() };
    }
}
