//! The effective clock, and the steps of the wall clock.

use super::{NS_PER_MS, Reading};
use crate::sync::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// How far the wall clock may move between two samples. Short compared with a useful drift, long compared with an
/// issue.
pub(super) const SAMPLE_EVERY_MS: i64 = 10;

/// While ids are ahead, the effective clock is lowered this long after the last time at the latest. Twice the time after
/// which one process does, so that others have to only if that one is late.
pub(super) const LOWER_WITHIN_MS: i64 = 2 * SAMPLE_EVERY_MS;

/// Smaller differences come from reading two clocks one after the other, or from the kernel slewing the clock.
const STEP_NS: i64 = 1_000_000;

/// A larger step forward is more likely a mistake than time that passed unseen.
const FAR_NS: i64 = 86_400_000 * NS_PER_MS;

/// A step of the wall clock between two samples, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    Back(i64),
    /// By more than a day.
    FarForward(i64),
}

/// The steps far forward that the wall clock has not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardSteps {
    pub steps: u64,
    /// How far the wall clock is ahead of where it was before the first of them, in nanoseconds.
    pub by_ns: i64,
}

/// The wall clock has made no step far forward, or has taken it back.
const NO_STEP: i64 = i64::MAX;

/// The effective clock was not lowered since the wall clock has raised it.
const NOT_LOWERED: i64 = i64::MIN;

/// The state of the clocks. In shared memory, in cache lines of its own: see `Generator`.
#[repr(C, align(128))]
pub struct EffectiveClock {
    /// A process is taking a sample. Readings noted in another order than they were taken would look like steps.
    sampling: AtomicBool,
    /// Wall time of the last sample, in milliseconds.
    sampled_ms: AtomicI64,
    /// The effective clock minus boot time. Raised by the wall clock and by a floor, lowered as ids fall back.
    offset_ns: AtomicI64,
    /// Boot time at which ids were read to lower the effective clock, or `NOT_LOWERED`.
    lowered_ns: AtomicI64,
    /// Boot time at which a process took it on itself to do that.
    claimed_ns: AtomicI64,
    /// The wall clock minus boot time at the last sample, to detect the next step.
    last_offset_ns: AtomicI64,
    steps: AtomicU64,
    largest_step_ns: AtomicI64,
    forward_steps: AtomicU64,
    /// The wall clock minus boot time before the first step far forward, or `NO_STEP`.
    before_forward_ns: AtomicI64,
}

impl EffectiveClock {
    pub fn new(reading: Reading) -> Self {
        Self {
            sampling: AtomicBool::new(false),
            sampled_ms: AtomicI64::new(reading.wall_ms()),
            offset_ns: AtomicI64::new(reading.offset_ns()),
            lowered_ns: AtomicI64::new(NOT_LOWERED),
            claimed_ns: AtomicI64::new(NOT_LOWERED),
            last_offset_ns: AtomicI64::new(reading.offset_ns()),
            steps: AtomicU64::new(0),
            largest_step_ns: AtomicI64::new(0),
            forward_steps: AtomicU64::new(0),
            before_forward_ns: AtomicI64::new(NO_STEP),
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
        let offset_ns = reading.offset_ns();
        if self.offset_ns.fetch_max(offset_ns, Ordering::Relaxed) < offset_ns {
            // If the wall clock goes back, it leaves the effective clock here, and ids may be anywhere before.
            self.lowered_ns.store(NOT_LOWERED, Ordering::Relaxed);
        }
        self.sampled_ms.store(reading.wall_ms(), Ordering::Relaxed);
        let step_ns = offset_ns - self.last_offset_ns.swap(offset_ns, Ordering::Relaxed);
        self.note_forward(offset_ns, step_ns);
        if step_ns > FAR_NS {
            return Some(ClockStep::FarForward(step_ns));
        }
        if step_ns > -STEP_NS {
            return None;
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.largest_step_ns.fetch_max(-step_ns, Ordering::Relaxed);
        Some(ClockStep::Back(-step_ns))
    }

    /// For the process that takes the sample: only it and a reset write these.
    fn note_forward(&self, offset_ns: i64, step_ns: i64) {
        if step_ns > FAR_NS {
            self.forward_steps.fetch_add(1, Ordering::Relaxed);
            self.before_forward_ns.fetch_min(offset_ns - step_ns, Ordering::Relaxed);
        } else if offset_ns.saturating_sub(self.before_forward_ns.load(Ordering::Relaxed)) <= FAR_NS {
            self.before_forward_ns.store(NO_STEP, Ordering::Relaxed);
            self.forward_steps.store(0, Ordering::Relaxed);
        }
    }

    /// The steps far forward, until the wall clock takes them back.
    pub fn far_forward(&self, reading: Reading) -> Option<ForwardSteps> {
        // Without a step the difference is negative.
        let by_ns = reading.offset_ns().saturating_sub(self.before_forward_ns.load(Ordering::Relaxed));
        (by_ns > FAR_NS).then(|| ForwardSteps { steps: self.forward_steps.load(Ordering::Relaxed), by_ns })
    }

    /// The effective time in nanoseconds since 1970.
    pub fn now_ns(&self, reading: Reading) -> i64 {
        let behind_ns = self.offset_ns.load(Ordering::Relaxed) - reading.offset_ns();
        // Noise must not let ids get ahead of the wall clock. Waiting for less than a millisecond does no harm.
        reading.wall_ns + if behind_ns < STEP_NS { 0 } else { behind_ns }
    }

    pub fn now_ms(&self, reading: Reading) -> i64 {
        self.now_ns(reading).div_euclid(NS_PER_MS)
    }

    /// True if the effective clock is ahead of the wall clock, so that it may have to be lowered.
    pub fn is_ahead(&self, reading: Reading) -> bool {
        self.offset_ns.load(Ordering::Relaxed) - reading.offset_ns() >= STEP_NS
    }

    /// The same by the last sample, for the hot path, which does not read the boot time.
    #[inline]
    pub fn was_ahead(&self) -> bool {
        self.offset_ns.load(Ordering::Relaxed) - self.last_offset_ns.load(Ordering::Relaxed) >= STEP_NS
    }

    /// True if the caller has to lower the effective clock before it issues by it, because ids may have fallen back since
    /// that was last done. One process at a time, and any process if that one is late: a burst then gets ids no further
    /// ahead than they were, but for `LOWER_WITHIN_MS`.
    pub fn claim_lowering(&self, reading: Reading) -> bool {
        let is_past = |from_ns: i64, ms| reading.boot_ns.saturating_sub(from_ns) > ms * NS_PER_MS;
        // Acquire: a process that finds the clock lowered sees where to.
        let lowered_ns = self.lowered_ns.load(Ordering::Acquire);
        if !is_past(lowered_ns, SAMPLE_EVERY_MS) || !self.is_ahead(reading) {
            return false;
        }
        let claimed_ns = self.claimed_ns.load(Ordering::Relaxed);
        let claim = || {
            let claimed = (claimed_ns, reading.boot_ns);
            self.claimed_ns.compare_exchange(claimed.0, claimed.1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        is_past(lowered_ns, LOWER_WITHIN_MS) || (is_past(claimed_ns, SAMPLE_EVERY_MS) && claim())
    }

    /// Lowers the effective clock to where the next ids are (`next_ms`, the latest of any layout), but not below the
    /// wall clock: a lead that ids have lost does not return. For a holder of the generators' lock, under which `next_ms`
    /// was read and floors are raised: see `GeneratorTable::lower_clock`. Several processes may do this at the same time:
    /// the clocks are read before the ids, so ids that are issued afterwards need not wait for a slow process.
    pub(crate) fn lower(&self, next_ms: i64, reading: Reading) {
        let offset_ns = self.offset_ns.load(Ordering::Relaxed);
        // Room for ids that other backends issue between two samples, so that they need not wait.
        let next_ns = next_ms.saturating_add(SAMPLE_EVERY_MS).saturating_mul(NS_PER_MS);
        let needed_ns = next_ns.saturating_sub(reading.boot_ns).max(reading.offset_ns());
        let lower = || self.offset_ns.compare_exchange(offset_ns, needed_ns, Ordering::Relaxed, Ordering::Relaxed);
        // A failure means that a sample has raised the offset to the wall clock's, or another process has lowered it. If
        // ids are still ahead, the next draw lowers it.
        if needed_ns >= offset_ns || lower().is_ok() {
            self.lowered_ns.fetch_max(reading.boot_ns, Ordering::Release);
        }
    }

    /// Raises the effective clock to a floor, so that ids that begin there need not wait. (A floor less than a
    /// millisecond ahead is waited for.) For the exclusive holder of the generators' lock: see `lower`.
    pub(crate) fn raise(&self, floor_ms: i64, reading: Reading) {
        let offset_ns = floor_ms.saturating_mul(NS_PER_MS).saturating_sub(reading.boot_ns);
        self.offset_ns.fetch_max(offset_ns, Ordering::Relaxed);
    }

    /// The number of backward steps, and the largest in nanoseconds.
    pub fn steps(&self) -> (u64, i64) {
        (self.steps.load(Ordering::Relaxed), self.largest_step_ns.load(Ordering::Relaxed))
    }

    /// Forgets all steps, also those far forward: the operator has acknowledged them.
    pub fn reset_steps(&self) {
        self.steps.store(0, Ordering::Relaxed);
        self.largest_step_ns.store(0, Ordering::Relaxed);
        self.before_forward_ns.store(NO_STEP, Ordering::Relaxed);
        self.forward_steps.store(0, Ordering::Relaxed);
    }
}
