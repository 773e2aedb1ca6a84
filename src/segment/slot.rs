//! What belongs to a ring beside the ring: who waits for it, and how its refills go.

use crate::bell::Bell;
use crate::fixed_text::FixedText;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// In shared memory, one for each ring, and in cache lines of its own as that.
#[repr(align(128))]
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
    pub refilled: Bell,
}

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
            refilled: Bell::new(),
        }
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
}

/// What kept the refill worker from refilling a ring; clear when the last refill went well. Under the segments' lock.
pub type LastError = FixedText<200>;
