//! The steps of the wall clock, found by comparing it with CLOCK_BOOTTIME.

use super::{Reading, US_PER_MS};
use crate::sync::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// How far the wall clock may move between two samples. Long compared with an issue, so that samples cost nothing.
const SAMPLE_EVERY_MS: i64 = 10;

/// Smaller differences come from reading two clocks one after the other, or from the kernel slewing the clock.
const STEP_US: i64 = US_PER_MS;

/// A larger step forward is more likely a mistake than time that passed unseen.
const FAR_US: i64 = 86_400_000 * US_PER_MS;

/// A step of the wall clock between two samples, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    Back(i64),
    /// By more than a day.
    FarForward(i64),
}

/// The wall clock has made no step far forward, or has taken it back.
const NO_STEP: i64 = i64::MAX;

/// In shared memory, in cache lines of its own: see `Generator`.
#[repr(C, align(128))]
pub struct ClockSteps {
    /// A process is taking a sample. Readings noted in another order than they were taken would look like steps.
    sampling: AtomicBool,
    /// Wall time of the last sample, in milliseconds.
    sampled_ms: AtomicI64,
    /// The wall clock minus boot time at the last sample.
    offset_us: AtomicI64,
    steps: AtomicU64,
    largest_step_us: AtomicI64,
    forward_steps: AtomicU64,
    /// The wall clock minus boot time before the first step far forward, or `NO_STEP`.
    before_forward_us: AtomicI64,
}

impl ClockSteps {
    pub fn new(reading: Reading) -> Self {
        Self {
            sampling: AtomicBool::new(false),
            sampled_ms: AtomicI64::new(reading.wall_ms()),
            offset_us: AtomicI64::new(reading.offset_us()),
            steps: AtomicU64::new(0),
            largest_step_us: AtomicI64::new(0),
            forward_steps: AtomicU64::new(0),
            before_forward_us: AtomicI64::new(NO_STEP),
        }
    }

    /// True if the wall clock has moved on, or back, so that a sample is due. The only check on the hot path.
    #[inline]
    pub fn is_stale(&self, wall_ms: i64) -> bool {
        // One comparison for both directions: as unsigned, a negative difference is huge.
        wall_ms.wrapping_sub(self.sampled_ms.load(Ordering::Relaxed)) as u64 > SAMPLE_EVERY_MS as u64
    }

    /// Notes both clocks, unless another process is doing so. Returns the step of the wall clock since the last sample.
    /// Each step is returned to one caller only.
    pub fn sample(&self, read: impl FnOnce() -> Option<Reading>) -> Option<ClockStep> {
        if self.sampling.swap(true, Ordering::Acquire) {
            return None;
        }
        let step = read().and_then(|reading| self.note(reading));
        self.sampling.store(false, Ordering::Release);
        step
    }

    fn note(&self, reading: Reading) -> Option<ClockStep> {
        let offset_us = reading.offset_us();
        self.sampled_ms.store(reading.wall_ms(), Ordering::Relaxed);
        let step_us = offset_us - self.offset_us.swap(offset_us, Ordering::Relaxed);
        self.note_forward(offset_us, step_us);
        if step_us > FAR_US {
            return Some(ClockStep::FarForward(step_us));
        }
        if step_us > -STEP_US {
            return None;
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.largest_step_us.fetch_max(-step_us, Ordering::Relaxed);
        Some(ClockStep::Back(-step_us))
    }

    /// For the process that takes the sample: only it and a reset write these.
    fn note_forward(&self, offset_us: i64, step_us: i64) {
        if step_us > FAR_US {
            self.forward_steps.fetch_add(1, Ordering::Relaxed);
            self.before_forward_us.fetch_min(offset_us - step_us, Ordering::Relaxed);
        } else if offset_us.saturating_sub(self.before_forward_us.load(Ordering::Relaxed)) <= FAR_US {
            self.before_forward_us.store(NO_STEP, Ordering::Relaxed);
            self.forward_steps.store(0, Ordering::Relaxed);
        }
    }

    /// The steps far forward that the wall clock has not taken back: their number, and how far it is ahead of where it was
    /// before the first of them, in microseconds.
    pub fn far_forward(&self, reading: Reading) -> Option<(u64, i64)> {
        // Without a step the difference is negative.
        let by_us = reading.offset_us().saturating_sub(self.before_forward_us.load(Ordering::Relaxed));
        (by_us > FAR_US).then(|| (self.forward_steps.load(Ordering::Relaxed), by_us))
    }

    /// The number of backward steps, and the largest in microseconds.
    pub fn backward(&self) -> (u64, i64) {
        (self.steps.load(Ordering::Relaxed), self.largest_step_us.load(Ordering::Relaxed))
    }

    /// Forgets all steps, also those far forward: the operator has acknowledged them.
    pub fn reset(&self) {
        self.steps.store(0, Ordering::Relaxed);
        self.largest_step_us.store(0, Ordering::Relaxed);
        self.before_forward_us.store(NO_STEP, Ordering::Relaxed);
        self.forward_steps.store(0, Ordering::Relaxed);
    }
}
