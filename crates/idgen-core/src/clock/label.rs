//! A text in WAL that tells how late the times of ids may be, for replicas and servers restored to a point in time.
//!
//! The label is in WAL before any id at a time that an earlier label does not cover. So a server that has replayed an
//! id has replayed a label past it, whatever the clocks showed.

use super::Target;
use std::fmt;

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
