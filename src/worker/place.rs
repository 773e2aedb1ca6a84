//! Which process is the keeper, and what is wanted of it.

use pgrx::prelude::*;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicUsize, Ordering::*};

/// In shared memory.
pub struct Place {
    pid: AtomicI32,
    /// The address of its latch, the same in all processes. 0: there is none.
    latch: AtomicUsize,
    /// Somebody needs time beyond this, in milliseconds since 1970; `NOTHING` else.
    needed_ms: AtomicI64,
}

pub const NOTHING: i64 = i64::MIN;
const NOBODY: i32 = 0;
/// Somebody has asked PostgreSQL for a keeper.
const ASKED_FOR: i32 = -1;

impl Place {
    pub fn new() -> Self {
        Self { pid: AtomicI32::new(NOBODY), latch: AtomicUsize::new(0), needed_ms: AtomicI64::new(NOTHING) }
    }

    /// The keeper's process, if there is one.
    pub fn pid(&self) -> Option<i32> {
        Some(self.pid.load(Relaxed)).filter(|pid| *pid > 0)
    }

    /// Has the keeper ask the coordinator now, for more than this time.
    pub fn ask_beyond(&self, time_ms: i64) {
        // Before the latch, as the keeper resets that before it looks.
        self.needed_ms.fetch_max(time_ms, Release);
        let latch = self.latch.load(Acquire);
        if latch != 0 {
            // SAFETY: the latch of a process slot in shared memory. Should its process have ended meanwhile, the next one wakes
            // for nothing.
            unsafe { pg_sys::SetLatch(latch as *mut pg_sys::Latch) };
        }
    }

    /// What was asked for since the last look.
    pub fn take_needed_ms(&self) -> i64 {
        self.needed_ms.swap(NOTHING, AcqRel)
    }

    /// Is it for the caller to ask PostgreSQL for a keeper? To one of those who find that there is none.
    pub fn may_start(&self) -> bool {
        // Looked at first, because it is looked at often.
        self.pid.load(Relaxed) == NOBODY && self.pid.compare_exchange(NOBODY, ASKED_FOR, AcqRel, Relaxed).is_ok()
    }

    /// There is none to be had.
    pub fn give_up(&self) {
        // A failure says that one has come all the same.
        let _ = self.pid.compare_exchange(ASKED_FOR, NOBODY, AcqRel, Relaxed);
    }

    /// Takes the place for this process, unless another has it.
    pub fn take(&self) -> bool {
        let own = |holder| (holder <= NOBODY).then(|| std::process::id() as i32);
        let is_free = self.pid.fetch_update(AcqRel, Acquire, own).is_ok();
        if is_free {
            // SAFETY: every process has its latch.
            self.latch.store(unsafe { pg_sys::MyLatch } as usize, Release);
        }
        is_free
    }

    pub fn leave(&self) {
        if self.pid() == Some(std::process::id() as i32) {
            self.latch.store(0, Release);
            self.pid.store(NOBODY, Release);
        }
    }
}
