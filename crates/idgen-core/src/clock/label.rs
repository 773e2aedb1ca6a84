//! A text in WAL that tells how late the times of ids may be, for replicas and servers restored to a point in time.
//!
//! The label is in WAL before any id at a time that an earlier label does not cover. So a server that has replayed an
//! id has replayed a label past it, whatever the clocks showed.

use super::Target;
use crate::sync::{AtomicI64, Ordering};
use std::fmt;
use std::time::Duration;

/// The first word of the text. Another version would give the rest another meaning.
const VERSION: &str = "1";

/// The minimum time between two labels. The window may be shorter.
const SPAN_MS: i64 = 1000;

/// The last label of the server that could issue ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkLabel {
    /// The timeline that it was written in. On a later one, the server was promoted since and has issued nothing.
    pub timeline: u32,
    /// No id has this time or a later one (milliseconds since 1970).
    pub until_ms: i64,
}

impl MarkLabel {
    /// `None` for any text that this release does not write.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [VERSION, "timeline", timeline, "until", until_ms] = words[..] else {
            return None;
        };
        Some(Self { timeline: timeline.parse().ok()?, until_ms: until_ms.parse().ok()? })
    }

    /// How far a new label reaches: the mark can move once more before the next label is needed.
    pub fn reach_ms(mark_ms: i64, drift_ms: i64, window_ms: i64) -> i64 {
        moved_ms(mark_ms, drift_ms, window_ms.max(SPAN_MS))
    }

    /// How far the next label reaches: as far as the mark, and the ids that wait for a label, need it and the file allows
    /// it. Never before the mark, also if a failed write has left nothing allowed.
    pub fn next_ms(mark_ms: i64, wanted_ms: i64, allowed_ms: i64, drift_ms: i64, window_ms: i64) -> i64 {
        Self::reach_ms(mark_ms.max(wanted_ms), drift_ms, window_ms).min(allowed_ms).max(mark_ms)
    }

    /// True if the label does not cover the next move of the mark, where one written for a slightly earlier mark is
    /// enough; or if it is further ahead than that: it was written for ids that were not issued after all, and a server
    /// that is promoted would begin past it. A label as far as the file allows is never due for being short.
    pub fn is_due(until_ms: i64, mark_ms: i64, allowed_ms: i64, drift_ms: i64, window_ms: i64) -> bool {
        let enough_ms = moved_ms(mark_ms, drift_ms, window_ms).saturating_sub(window_ms / 4);
        until_ms < enough_ms.min(allowed_ms) || until_ms > Self::reach_ms(mark_ms, drift_ms, window_ms)
    }
}

/// The latest mark after one more move, by ids that have reached this one.
pub fn moved_ms(mark_ms: i64, drift_ms: i64, window_ms: i64) -> i64 {
    Target::past(mark_ms.saturating_add(drift_ms), window_ms).mark_ms
}

impl fmt::Display for MarkLabel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{VERSION} timeline {} until {}", self.timeline, self.until_ms)
    }
}

/// How far the label in WAL lets the mark move.
pub struct LabelReach {
    /// The time of the label that was committed since the server started. [`Labels`] changes it under the lock under which
    /// the mark moves: so it can be lowered, to a time that the mark has not reached.
    until_ms: AtomicI64,
    /// The latest mark that has passed a label. A word of its own, so that no process takes back what another one notes.
    passed_ms: AtomicI64,
}

impl LabelReach {
    #[allow(clippy::new_without_default, reason = "it is made in place, in shared memory")]
    pub fn new() -> Self {
        Self { until_ms: AtomicI64::new(i64::MIN), passed_ms: AtomicI64::new(i64::MIN) }
    }

    /// Relaxed: the file's lock orders it for a process that moves the mark.
    pub fn until_ms(&self) -> i64 {
        self.until_ms.load(Ordering::Relaxed)
    }

    /// True if the mark may move to this time. Certain for the holder of the file's lock only.
    pub fn reaches(&self, mark_ms: i64) -> bool {
        self.until_ms() >= mark_ms
    }

    /// Call after the mark has moved to this time. True if it has passed the label, and none had before.
    pub fn follow(&self, mark_ms: i64) -> bool {
        let until_ms = self.until_ms();
        until_ms < mark_ms && self.passed_ms.fetch_max(mark_ms, Ordering::Relaxed) <= until_ms
    }

    /// The mark has passed the label: replicas do not know how far ids go.
    pub fn is_passed(&self) -> bool {
        !self.reaches(self.passed_ms.load(Ordering::Relaxed))
    }
}

/// The labels that workers write. Behind the lock of the file.
#[derive(Default)]
pub struct Labels {
    /// No label in the catalog, and none that a worker is writing, is later.
    pub latest_ms: i64,
    /// Counts them, so that a worker sees whether its own is still the newest.
    count: u64,
}

/// A label that a worker is about to write.
pub struct NextLabel {
    pub until_ms: i64,
    /// It takes back a later one.
    pub is_lower: bool,
    number: u64,
}

impl Labels {
    /// Notes the time of the next label. One that goes back, because ids were not issued after all, limits the mark from
    /// here on.
    pub fn begin(&mut self, reach: &LabelReach, until_ms: i64) -> NextLabel {
        let is_lower = until_ms < self.latest_ms;
        self.latest_ms = self.latest_ms.max(until_ms);
        reach.until_ms.fetch_min(until_ms, Ordering::Relaxed);
        self.count += 1;
        NextLabel { until_ms, is_lower, number: self.count }
    }

    /// The label is in WAL. If another worker has begun the next one, that one says how far the mark may go. True if the
    /// mark had passed the label before, and has not passed this one.
    pub fn commit(&mut self, reach: &LabelReach, label: &NextLabel) -> bool {
        let was_passed = reach.is_passed();
        if self.count == label.number {
            self.latest_ms = label.until_ms;
            reach.until_ms.store(label.until_ms, Ordering::Relaxed);
        }
        was_passed && !reach.is_passed()
    }
}

/// How long the mark waits for the worker, which takes some milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after a failure before the worker is requested again.
pub const RETRY: Duration = Duration::from_secs(1);

/// A series of failures ends after this many pauses without a request.
const LULL: i64 = 5;

/// The worker that writes the label: whether one is pending, and whether the last one has failed. Times are those of
/// CLOCK_BOOTTIME, in microseconds.
#[derive(Default)]
pub struct LabelWorker {
    /// When the worker was requested; negative once that request has failed; 0 if none is pending.
    requested_us: AtomicI64,
    /// Since when no worker has written the label, the first of which has failed then; 0 if none has failed lately.
    failing_since_us: AtomicI64,
}

impl LabelWorker {
    /// True if the caller has to start a worker: none is pending, and none has failed just now.
    pub fn request(&self, now_us: i64) -> bool {
        let requested_us = self.requested_us.load(Ordering::Relaxed);
        let pause_us = if requested_us < 0 { RETRY } else { PATIENCE }.as_micros() as i64;
        let since_us = now_us - requested_us.abs();
        // Of several callers, one starts it.
        let starts = (requested_us == 0 || since_us >= pause_us)
            && self.requested_us.compare_exchange(requested_us, now_us, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // After that long without a request, earlier failures do not count.
        if starts && (requested_us == 0 || since_us >= LULL * pause_us) {
            self.failing_since_us.store(0, Ordering::Relaxed);
        }
        starts
    }

    /// True if the mark may pass the label for a caller that has waited so long, because workers fail: a worker that is pending
    /// has had a moment; or none is pending, and the caller has waited, or they have failed for long. Not after one failure:
    /// other processes can have used up the slots of workers just now.
    pub fn is_given_up(&self, now_us: i64, waited_us: i64) -> bool {
        let (moment_us, long_us) = (RETRY.as_micros() as i64, PATIENCE.as_micros() as i64);
        // Acquire, and before the failure is read: of a worker that has succeeded after a failure, a process sees either the
        // request or that there is no failure any more.
        let requested_us = self.requested_us.load(Ordering::Acquire);
        let pending_us = Some(now_us - requested_us).filter(|pending_us| requested_us > 0 && *pending_us < long_us);
        let failing_since_us = self.failing_since_us.load(Ordering::Relaxed);
        let is_over = match pending_us {
            Some(pending_us) => waited_us >= long_us || waited_us >= moment_us && pending_us >= moment_us,
            None => waited_us >= moment_us || now_us - failing_since_us >= long_us,
        };
        failing_since_us != 0 && is_over
    }

    pub fn succeed(&self) {
        self.failing_since_us.store(0, Ordering::Relaxed);
        // Release, and last: see `is_given_up`.
        self.requested_us.store(0, Ordering::Release);
    }

    pub fn fail(&self, now_us: i64) {
        self.requested_us.store(-now_us, Ordering::Relaxed);
        self.time_out(now_us);
    }

    /// A caller has waited for the worker in vain. It is pending still.
    pub fn time_out(&self, now_us: i64) {
        let _ = self.failing_since_us.compare_exchange(0, now_us, Ordering::Relaxed, Ordering::Relaxed);
    }
}
