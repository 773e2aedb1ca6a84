//! Waiting for an event that another process brings about: PostgreSQL's condition variables.

use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::time::Duration;

/// In shared memory. Who waits listens first and then looks at what he waits for, so that no ring is lost in between.
pub struct Bell(UnsafeCell<pg_sys::ConditionVariable>);

// SAFETY: PostgreSQL's own for shared memory, used through its functions only, which lock it.
unsafe impl Sync for Bell {}

impl Bell {
    pub fn new() -> Self {
        Self(UnsafeCell::new(pg_sys::ConditionVariable::default()))
    }

    /// To be called once the bell is at its place.
    pub fn init_at_place(&self) {
        // SAFETY: the postmaster, before any other process exists.
        unsafe { pg_sys::ConditionVariableInit(self.0.get()) };
    }

    /// Puts this process among those to be woken. An error takes it off again.
    pub fn listen(&self) {
        // SAFETY: initialised at its place in shared memory.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.0.get()) };
    }

    /// Sleeps until the bell rings, or for so long. Did it ring? An error when the statement is cancelled.
    pub fn sleep(&self, time: Duration, event: u32) -> bool {
        let ms = time.as_millis().max(1) as i64;
        // SAFETY: as above.
        !unsafe { pg_sys::ConditionVariableTimedSleep(self.0.get(), ms, event) }
    }

    /// Wakes all who listen.
    pub fn ring(&self) {
        // SAFETY: as above.
        unsafe { pg_sys::ConditionVariableBroadcast(self.0.get()) };
    }
}

/// This process listens no longer.
pub fn stop_listening() {
    // SAFETY: does nothing when this process is on no list.
    unsafe { pg_sys::ConditionVariableCancelSleep() };
}
