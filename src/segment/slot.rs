//! The segments' state in shared memory: the rings, and what belongs to each beside the ring.

use crate::pg::condition_variable::ConditionVariable;
use crate::settings;
use crate::shmem::{FixedText, Locked, Part};
use idgen_core::segment::Ring;
use idgen_core::segment::refillers::Refillers;
use idgen_core::segment::table::Table;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Drawing takes no lock.
pub static RINGS: Part<&'static [Ring]> =
    Part::new(c"idgen segment rings", |room| room.array(settings::max_segments(), Ring::new));

/// One slot for each ring.
pub static SLOTS: Part<&'static [Slot]> =
    Part::new(c"idgen segment slots", |room| room.array(settings::max_segments(), Slot::new));

/// Which tag lives in which ring, and the refill workers.
pub static SEGMENTS: Locked<Segments> = Locked::new(c"idgen segments", 40, |room| {
    let count = settings::max_segments();
    // SAFETY: fixed by the time PostgreSQL asks how much memory is wanted. Every refill worker is one of these.
    let worker_count = unsafe { pg_sys::max_worker_processes } as usize;
    Segments {
        table: Table::new(RINGS.get().map_or(&[], |rings| *rings), room.array(count, || None)),
        errors: room.array(count, LastError::default),
        refillers: Refillers(room.array(worker_count, || None)),
    }
});

/// What the holder of the segments' lock works on.
pub struct Segments {
    pub table: Table<'static>,
    /// The error of the last refill of each ring.
    pub errors: &'static mut [LastError],
    pub refillers: Refillers<'static>,
}

pub fn ring(index: usize) -> &'static Ring {
    &RINGS.require()[index]
}

pub fn slots() -> &'static [Slot] {
    SLOTS.require()
}

pub fn slot(index: usize) -> &'static Slot {
    &slots()[index]
}

/// In cache lines of its own, as the ring.
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
    pub refilled: ConditionVariable,
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
            refilled: ConditionVariable::new(),
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
