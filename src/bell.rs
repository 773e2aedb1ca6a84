//! Waiting for an event that another process brings about: PostgreSQL's condition variables.

use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};
use std::time::Duration;

/// In shared memory. Who waits listens first and then looks at what he waits for, so that no ring is lost in between. Where
/// looking ends listening, as a rolled back subtransaction does, he counts the rings instead.
pub struct Bell {
    condition: UnsafeCell<pg_sys::ConditionVariable>,
    rings: AtomicU64,
}

// SAFETY: PostgreSQL's own for shared memory, used through its functions only, which lock it.
unsafe impl Sync for Bell {}

impl Bell {
    pub fn new() -> Self {
        Self { condition: UnsafeCell::new(pg_sys::ConditionVariable::default()), rings: AtomicU64::new(0) }
    }

    /// To be called once the bell is at its place.
    pub fn init_at_place(&self) {
        // SAFETY: the postmaster, before any other process exists.
        unsafe { pg_sys::ConditionVariableInit(self.condition.get()) };
    }

    /// Puts this process among those to be woken. An error takes it off again.
    pub fn listen(&self) {
        // SAFETY: initialised at its place in shared memory.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.condition.get()) };
    }

    /// Sleeps until the bell rings, or for so long. Did it ring? An error when the statement is cancelled.
    pub fn sleep(&self, time: Duration, event: u32) -> bool {
        let ms = time.as_millis().max(1) as i64;
        // SAFETY: as above.
        !unsafe { pg_sys::ConditionVariableTimedSleep(self.condition.get(), ms, event) }
    }

    /// How often it has rung.
    pub fn rings(&self) -> u64 {
        self.rings.load(Acquire)
    }

    /// As `sleep`, but not if it has rung since that count was read.
    pub fn sleep_unless_rung(&self, rings: u64, time: Duration, event: u32) {
        self.listen();
        if self.rings() == rings {
            self.sleep(time, event);
        }
        stop_listening();
    }

    /// Wakes all who listen.
    pub fn ring(&self) {
        // Before: whoever begins to listen too late to be woken counts it.
        self.rings.fetch_add(1, AcqRel);
        // SAFETY: as above.
        unsafe { pg_sys::ConditionVariableBroadcast(self.condition.get()) };
    }
}

/// This process listens no longer.
pub fn stop_listening() {
    // SAFETY: does nothing when this process is on no list.
    unsafe { pg_sys::ConditionVariableCancelSleep() };
}
