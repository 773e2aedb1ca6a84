//! The time that ids go by, and how far it is durably promised.
//!
//! Two things keep ids from repeating when the wall clock cannot be trusted. The *mark* is a time in a file: no id has
//! it or a later one, so that after a crash everything begins at it. The *effective clock* is the wall clock where ids are
//! not ahead of that. Where they are, after a backward step or a crash, it is CLOCK_BOOTTIME plus an offset: it goes on
//! from the ids, as fast as time passes, and comes back to the wall clock as far as ids are drawn more slowly.

use crate::sync::{AtomicBool, AtomicI64, AtomicU64, Ordering};

pub mod label;
pub mod record;
pub mod start;

const NS_PER_MS: i64 = 1_000_000;

/// How far the wall clock may move between two samples. Short beside any drift that is of use, long beside an issue.
const SAMPLE_EVERY_MS: i64 = 10;

/// Differences below this are noise of two clocks read one after the other, or the kernel slewing the clock.
const STEP_NS: i64 = 1_000_000;

/// A step forward by more than this is more likely a mistake than time that has passed unseen.
const FAR_NS: i64 = 86_400_000 * NS_PER_MS;

/// Both clocks, read together. Nanoseconds: wall time since 1970, boot time since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub wall_ns: i64,
    pub boot_ns: i64,
}

impl Reading {
    pub fn wall_ms(&self) -> i64 {
        self.wall_ns.div_euclid(NS_PER_MS)
    }

    /// What the wall clock is ahead of the machine's start.
    fn offset_ns(&self) -> i64 {
        self.wall_ns - self.boot_ns
    }
}

/// The wall clock's step between two samples, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Back(i64),
    /// By more than a day.
    FarForward(i64),
}

/// The steps far forward that the wall clock has not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    pub steps: u64,
    /// How far the wall clock is ahead of where it was before the first of them, in nanoseconds.
    pub by_ns: i64,
}

/// There was no step far forward, or the wall clock has taken it back.
const NO_STEP: i64 = i64::MAX;

/// What all processes know of the clocks. In shared memory, in cache lines of its own: see `Generator`.
#[repr(C, align(128))]
pub struct EffectiveClock {
    /// Somebody is taking a sample. Readings told in another order than they were taken would look like steps.
    sampling: AtomicBool,
    /// Wall time of the last sample, in milliseconds: when to take the next.
    sampled_ms: AtomicI64,
    /// The effective clock's offset to boot time. Raised by the wall clock and by a floor, lowered as ids fall back.
    offset_ns: AtomicI64,
    /// The offset at the last sample: what a step is measured against.
    last_offset_ns: AtomicI64,
    steps: AtomicU64,
    largest_step_ns: AtomicI64,
    forward_steps: AtomicU64,
    /// The offset before the first step far forward; `NO_STEP` without one.
    before_forward_ns: AtomicI64,
}

impl EffectiveClock {
    pub fn new(reading: Reading) -> Self {
        Self {
            sampling: AtomicBool::new(false),
            sampled_ms: AtomicI64::new(reading.wall_ms()),
            offset_ns: AtomicI64::new(reading.offset_ns()),
            last_offset_ns: AtomicI64::new(reading.offset_ns()),
            steps: AtomicU64::new(0),
            largest_step_ns: AtomicI64::new(0),
            forward_steps: AtomicU64::new(0),
            before_forward_ns: AtomicI64::new(NO_STEP),
        }
    }

    /// Has the wall clock moved on, or back, so that it is time for a sample? The one look at the hot path.
    #[inline]
    pub fn is_stale(&self, wall_ms: i64) -> bool {
        // One comparison for both directions: a difference below zero is a huge number.
        wall_ms.wrapping_sub(self.sampled_ms.load(Ordering::Relaxed)) as u64 > SAMPLE_EVERY_MS as u64
    }

    /// Takes note of both clocks, unless another process is doing so. Returns the step of the wall clock since the last
    /// sample; to one caller only, however many notice.
    pub fn sample(&self, read: impl FnOnce() -> Option<Reading>) -> Option<Step> {
        if self.sampling.swap(true, Ordering::Acquire) {
            return None;
        }
        let step = read().and_then(|reading| self.note(reading));
        self.sampling.store(false, Ordering::Release);
        step
    }

    fn note(&self, reading: Reading) -> Option<Step> {
        let offset_ns = reading.offset_ns();
        self.offset_ns.fetch_max(offset_ns, Ordering::Relaxed);
        self.sampled_ms.store(reading.wall_ms(), Ordering::Relaxed);
        let step_ns = offset_ns - self.last_offset_ns.swap(offset_ns, Ordering::Relaxed);
        self.note_forward(offset_ns, step_ns);
        if step_ns > FAR_NS {
            return Some(Step::FarForward(step_ns));
        }
        if step_ns > -STEP_NS {
            return None;
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.largest_step_ns.fetch_max(-step_ns, Ordering::Relaxed);
        Some(Step::Back(-step_ns))
    }

    /// For the process that takes the sample: nobody else writes these, but a reset.
    fn note_forward(&self, offset_ns: i64, step_ns: i64) {
        if step_ns > FAR_NS {
            self.forward_steps.fetch_add(1, Ordering::Relaxed);
            self.before_forward_ns.fetch_min(offset_ns - step_ns, Ordering::Relaxed);
        } else if offset_ns.saturating_sub(self.before_forward_ns.load(Ordering::Relaxed)) <= FAR_NS {
            self.before_forward_ns.store(NO_STEP, Ordering::Relaxed);
            self.forward_steps.store(0, Ordering::Relaxed);
        }
    }

    /// The steps far forward, while the wall clock is still there.
    pub fn far_forward(&self, reading: Reading) -> Option<Forward> {
        // Without a step the difference is below zero.
        let by_ns = reading.offset_ns().saturating_sub(self.before_forward_ns.load(Ordering::Relaxed));
        (by_ns > FAR_NS).then(|| Forward { steps: self.forward_steps.load(Ordering::Relaxed), by_ns })
    }

    /// The effective time in nanoseconds since 1970: the wall clock's where that is not behind.
    pub fn now_ns(&self, reading: Reading) -> i64 {
        let behind_ns = self.offset_ns.load(Ordering::Relaxed) - reading.offset_ns();
        // Noise must not let ids be ahead of the wall clock. Waiting for less than a millisecond does no harm.
        reading.wall_ns + if behind_ns < STEP_NS { 0 } else { behind_ns }
    }

    /// The same in milliseconds.
    pub fn now_ms(&self, reading: Reading) -> i64 {
        self.now_ns(reading).div_euclid(NS_PER_MS)
    }

    /// Is the effective time ahead of the wall clock, so that it may be due to be settled?
    pub fn is_ahead(&self, reading: Reading) -> bool {
        self.offset_ns.load(Ordering::Relaxed) - reading.offset_ns() >= STEP_NS
    }

    /// Lowers the effective time to where the next ids are (`next_ms`, the latest of any layout), but not below the wall
    /// clock: what ids have fallen back they do not run ahead again. For the holder of the table's lock, under which
    /// `next_ms` was read and floors are raised: see `Table::settle`.
    pub(crate) fn settle(&self, next_ms: i64, reading: Reading) {
        let offset_ns = self.offset_ns.load(Ordering::Relaxed);
        // Others issue between two samples; they shall not have to wait.
        let next_ns = next_ms.saturating_add(SAMPLE_EVERY_MS).saturating_mul(NS_PER_MS);
        let needed_ns = next_ns.saturating_sub(reading.boot_ns).max(reading.offset_ns());
        if needed_ns < offset_ns {
            // A failure says that a sample has raised the offset to the wall clock's. The next sample settles it.
            let _ = self.offset_ns.compare_exchange(offset_ns, needed_ns, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Makes the effective time at least this: ids that begin at a floor go on from it without waiting.
    /// (One that is less than a millisecond ahead is waited for.) For the holder of the table's lock: see `settle`.
    pub(crate) fn raise(&self, floor_ms: i64, reading: Reading) {
        let offset_ns = floor_ms.saturating_mul(NS_PER_MS).saturating_sub(reading.boot_ns);
        self.offset_ns.fetch_max(offset_ns, Ordering::Relaxed);
    }

    /// Backward steps seen, and the largest in nanoseconds.
    pub fn steps(&self) -> (u64, i64) {
        (self.steps.load(Ordering::Relaxed), self.largest_step_ns.load(Ordering::Relaxed))
    }

    /// Forgets the steps, those far forward too: the operator has seen them.
    pub fn reset_steps(&self) {
        self.steps.store(0, Ordering::Relaxed);
        self.largest_step_ns.store(0, Ordering::Relaxed);
        self.before_forward_ns.store(NO_STEP, Ordering::Relaxed);
        self.forward_steps.store(0, Ordering::Relaxed);
    }
}

/// How far time is promised: durably by the file, and to this server's number by a lease. In shared memory; written by
/// whoever has written the file, and by whoever holds the lease.
#[repr(C, align(128))]
pub struct Mark {
    /// No id has this time or a later one (milliseconds since 1970). `UNKNOWN` until the file has been read.
    mark_ms: AtomicI64,
    /// From this time on it is due to be moved.
    due_ms: AtomicI64,
    /// No id of this server's number has this time or a later one.
    end_ms: AtomicI64,
    /// The earlier of `due_ms` and `end_ms`: what the hot path takes for the mark, so that it looks at one word.
    near_ms: AtomicI64,
}

/// Before every time: nothing may be issued.
const UNKNOWN: i64 = i64::MIN;

/// Where to move the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub mark_ms: i64,
    pub due_ms: i64,
}

impl Target {
    /// The mark at a time that the file has already: it is due to be moved before the first id.
    pub fn at(mark_ms: i64) -> Self {
        Self { mark_ms, due_ms: mark_ms }
    }

    /// Ids have times up to `limit_ms` now. Past it the mark is promised for the window, and half a window more to be
    /// moved in, while others go on: so it is moved once a window at the most.
    pub fn past(limit_ms: i64, window_ms: i64) -> Self {
        let due_ms = limit_ms.saturating_add(window_ms);
        Self { mark_ms: due_ms.saturating_add(window_ms / 2), due_ms }
    }
}

/// What keeps an id from being issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InTheWay {
    /// It has been moved meanwhile.
    Nothing,
    /// The mark, which is to be moved past this time.
    Mark { reserve_ms: i64 },
    /// The end of the lease.
    Lease,
}

impl Mark {
    /// The file is not read yet, and the number is nobody else's at any time.
    pub fn unknown() -> Self {
        Self {
            mark_ms: AtomicI64::new(UNKNOWN),
            due_ms: AtomicI64::new(UNKNOWN),
            end_ms: AtomicI64::new(i64::MAX),
            near_ms: AtomicI64::new(UNKNOWN),
        }
    }

    pub fn is_known(&self) -> bool {
        self.mark_ms() != UNKNOWN
    }

    #[inline]
    pub fn mark_ms(&self) -> i64 {
        // Acquire: whoever sees a mark sees that the file has it.
        self.mark_ms.load(Ordering::Acquire)
    }

    pub fn due_ms(&self) -> i64 {
        self.due_ms.load(Ordering::Relaxed)
    }

    pub fn end_ms(&self) -> i64 {
        // Acquire: as `near_ms`.
        self.end_ms.load(Ordering::Acquire)
    }

    #[inline]
    pub fn near_ms(&self) -> i64 {
        // Acquire: whoever sees where a number ends sees that what was issued under another one has ended, see
        // `Table::begin_anew`; and the mark, as above.
        self.near_ms.load(Ordering::Acquire)
    }

    /// No id has this time or a later one, by the file and by the lease.
    pub fn promised_ms(&self) -> i64 {
        self.mark_ms().min(self.end_ms())
    }

    /// What is in the way of ids up to this time, the first of which was found to be at or past what was promised, `seen_ms`.
    /// By what was seen: either may have been moved since, and then the other one has stopped nobody.
    pub fn in_the_way(&self, seen_ms: i64, time_ms: i64) -> InTheWay {
        let (mark_ms, end_ms) = (self.mark_ms(), self.end_ms());
        if mark_ms.min(end_ms) != seen_ms {
            InTheWay::Nothing
        } else if mark_ms < end_ms {
            // Of a run that the lease ends within, a part can be had.
            InTheWay::Mark { reserve_ms: time_ms.min(end_ms - 1) }
        } else {
            InTheWay::Lease
        }
    }

    /// Publishes what the file has. For the holder of the table's lock; a mark never goes back while the server runs.
    pub fn publish(&self, target: Target) {
        self.mark_ms.fetch_max(target.mark_ms, Ordering::Release);
        self.due_ms.fetch_max(target.due_ms, Ordering::Relaxed);
        // After the mark: `due` read as the mark must never be past it.
        self.publish_near();
    }

    /// Publishes where the times of this server's number end. For the holder of the table's lock, without which another's
    /// half of the minimum could be lost, and a lease outlived.
    pub fn end_at(&self, end_ms: i64) {
        self.end_ms.store(end_ms, Ordering::Release);
        self.publish_near();
    }

    fn publish_near(&self) {
        let near_ms = self.due_ms.load(Ordering::Relaxed).min(self.end_ms.load(Ordering::Relaxed));
        self.near_ms.store(near_ms, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
