//! What belongs to a ring beside the ring: who waits for it, and how its refills go.

use crate::pg_compat;
use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// In shared memory, one for each ring.
#[repr(align(64))]
pub struct Slot {
    /// How many values are wanted beyond what is there; 0 is no wish. Taken by the refill worker.
    pub demand: AtomicU64,
    /// The row has no more values below its bound.
    pub exhausted: AtomicBool,
    pub refills: AtomicU64,
    /// How long the last refill took, from the worker's look at the row to the values in the ring.
    pub refill_us: AtomicU64,
    pub waits: AtomicU64,
    pub wait_us: AtomicU64,
    /// The ring's position when the statistics were reset.
    pub reset_at: AtomicU64,
    /// Who finds the ring dry sleeps here.
    refilled: UnsafeCell<pg_sys::ConditionVariable>,
}

// SAFETY: the condition variable is PostgreSQL's own for shared memory, and is used through its functions only, which
// lock it; everything else is atomic.
unsafe impl Sync for Slot {}

impl Slot {
    pub fn new() -> Self {
        Self {
            demand: AtomicU64::new(0),
            exhausted: AtomicBool::new(false),
            refills: AtomicU64::new(0),
            refill_us: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            wait_us: AtomicU64::new(0),
            reset_at: AtomicU64::new(0),
            refilled: UnsafeCell::new(pg_sys::ConditionVariable::default()),
        }
    }

    /// To be called once the slot is at its place.
    pub fn init_at_place(&self) {
        // SAFETY: the postmaster, before any other process exists.
        unsafe { pg_sys::ConditionVariableInit(self.refilled.get()) };
    }

    /// A tag moves in.
    pub fn begin(&self, position: u64) {
        self.demand.store(0, Relaxed);
        self.exhausted.store(false, Relaxed);
        self.refill_us.store(0, Relaxed);
        self.reset(position);
    }

    /// Sets the statistics to zero.
    pub fn reset(&self, position: u64) {
        for counter in [&self.refills, &self.waits, &self.wait_us] {
            counter.store(0, Relaxed);
        }
        self.reset_at.store(position, Relaxed);
    }

    /// Puts this process on the list of those to be woken. To be called before the last look at the ring.
    pub fn prepare_to_sleep(&self) {
        // SAFETY: initialised at its place in shared memory. An error takes this process off the list.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.refilled.get()) };
    }

    /// Sleeps until woken, or for so long. Was it woken? An error when the statement is cancelled.
    pub fn sleep(&self, time: Duration) -> bool {
        let ms = time.as_millis().max(1) as i64;
        // SAFETY: as above.
        !unsafe { pg_sys::ConditionVariableTimedSleep(self.refilled.get(), ms, pg_compat::wait_for_refill()) }
    }

    pub fn wake_all(&self) {
        // SAFETY: as above.
        unsafe { pg_sys::ConditionVariableBroadcast(self.refilled.get()) };
    }
}

/// No longer on any list.
pub fn cancel_sleep() {
    // SAFETY: does nothing when this process is on no list.
    unsafe { pg_sys::ConditionVariableCancelSleep() };
}

/// What kept the refill worker from refilling a ring, as text of fixed size. Under the segments' lock.
#[derive(Clone, Copy)]
pub struct LastError {
    length: usize,
    bytes: [u8; 200],
}

impl Default for LastError {
    fn default() -> Self {
        Self { length: 0, bytes: [0; 200] }
    }
}

impl LastError {
    /// Keeps as much of the text as there is room for, in whole characters.
    pub fn set(&mut self, text: &str) {
        self.length = text.floor_char_boundary(self.bytes.len());
        self.bytes[..self.length].copy_from_slice(&text.as_bytes()[..self.length]);
    }

    pub fn clear(&mut self) {
        self.length = 0;
    }

    pub fn is_clear(&self) -> bool {
        self.length == 0
    }

    /// `None` when the last refill went well.
    pub fn text(&self) -> Option<String> {
        (!self.is_clear()).then(|| String::from_utf8_lossy(&self.bytes[..self.length]).into_owned())
    }
}
