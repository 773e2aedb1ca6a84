//! Which process is the keeper, and what is wanted of it.

use pgrx::prelude::*;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicUsize, Ordering::*};

/// In shared memory.
pub struct Handle {
    /// 0: there is none.
    pid: AtomicI32,
    /// The address of its latch, the same in all processes. 0: there is none.
    latch: AtomicUsize,
    /// A session needs time beyond this, in milliseconds since 1970; `NOTHING` else.
    needed_ms: AtomicI64,
}

pub const NOTHING: i64 = i64::MIN;

impl Handle {
    pub fn new() -> Self {
        Self { pid: AtomicI32::new(0), latch: AtomicUsize::new(0), needed_ms: AtomicI64::new(NOTHING) }
    }

    /// The keeper's process, if there is one.
    pub fn pid(&self) -> Option<i32> {
        Some(self.pid.load(Relaxed)).filter(|pid| *pid > 0)
    }

    /// Has the keeper ask the coordinator now, for more than this time.
    pub fn ask_beyond(&self, time_ms: i64) {
        // Before the latch, as the keeper resets that before it looks.
        self.needed_ms.fetch_max(time_ms, Release);
        self.wake();
    }

    /// Has the keeper look at its settings, and at what is asked for.
    pub fn wake(&self) {
        let latch = self.latch.load(Acquire);
        if latch != 0 {
            // SAFETY: the latch of a process slot in shared memory. If its process has ended, the next one wakes for nothing.
            unsafe { pg_sys::SetLatch(latch as *mut pg_sys::Latch) };
        }
    }

    /// What was asked for since the last look.
    pub fn take_needed_ms(&self) -> i64 {
        self.needed_ms.swap(NOTHING, AcqRel)
    }

    /// This process is the keeper. PostgreSQL starts the next one when the last has ended.
    pub fn enter(&self) {
        self.pid.store(std::process::id() as i32, Relaxed);
        // SAFETY: every process has its latch.
        self.latch.store(unsafe { pg_sys::MyLatch } as usize, Release);
    }

    pub fn leave(&self) {
        self.latch.store(0, Release);
        self.pid.store(0, Release);
    }
}
