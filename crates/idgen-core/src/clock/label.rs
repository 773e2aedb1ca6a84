//! How far the times of ids may go, in words that WAL carries: every replica knows them, and so does a server restored to a
//! point in time.
//!
//! The label is in WAL before any id with a time that it does not cover. So a server that has replayed an id has replayed a
//! label past it, whatever the clocks said.

use super::Target;
use std::fmt;

/// The first word of the text. Another one is of a release that means something else by the rest.
const VERSION: &str = "1";

/// The least time between two labels. The window may be shorter.
const SPAN_MS: i64 = 1000;

/// As written by the newest server that could issue ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The timeline that it was written in. In a later one nothing was issued yet: the server was promoted since.
    pub timeline: u32,
    /// No id has this time or a later one (milliseconds since 1970).
    pub until_ms: i64,
}

impl Label {
    /// `None` for anything that this release does not write.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [VERSION, "timeline", timeline, "until", until_ms] = words[..] else {
            return None;
        };
        Some(Self { timeline: timeline.parse().ok()?, until_ms: until_ms.parse().ok()? })
    }

    /// How far a label reaches that is written now: the mark can be moved once more before it needs the next.
    pub fn reach_ms(mark_ms: i64, drift_ms: i64, window_ms: i64) -> i64 {
        moved_ms(mark_ms, drift_ms, window_ms.max(SPAN_MS))
    }

    /// Is it time to write a label? The next move of the mark has to have room; a label that was written for a mark a little
    /// before this one is far enough.
    pub fn is_due(until_ms: i64, mark_ms: i64, drift_ms: i64, window_ms: i64) -> bool {
        until_ms < moved_ms(mark_ms, drift_ms, window_ms).saturating_sub(window_ms / 4)
    }
}

/// Where the mark is moved to at the most by ids that have come to it.
pub fn moved_ms(mark_ms: i64, drift_ms: i64, window_ms: i64) -> i64 {
    Target::past(mark_ms.saturating_add(drift_ms), window_ms).mark_ms
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{VERSION} timeline {} until {}", self.timeline, self.until_ms)
    }
}
