//! The floor of a server that starts.

use super::label::moved_ms;
use super::record::Found;

/// Added to times by another server's clock: its ids may have been further ahead than they are after one crash.
const MARGIN_MS: i64 = 10_000;

/// The facts known when a server issues its first id after a start. All times in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    pub wall_ms: i64,
    /// Time of the last checkpoint, by this server's clock or, before a promotion, by the old primary's.
    pub checkpoint_ms: i64,
    /// The server has ended archive or standby recovery.
    pub recovered: bool,
    /// The last commit that was replayed, and the newest prepared transaction, by the old primary's clock.
    pub replayed_ms: Option<i64>,
    pub prepared_ms: Option<i64>,
    /// The end of the last label in WAL, which this server has if it has the ids. `None` if there is none, because the
    /// old primary ran an older release.
    pub label_ms: Option<i64>,
    pub drift_ms: i64,
    pub window_ms: i64,
}

impl Evidence {
    /// The floor: no id issued earlier by this server, or by the primary it followed, has this time or a later one.
    ///
    /// An intact file gives it. Without a file this is the first start: the clock and the last checkpoint give it. A
    /// damaged record may have been the newer one, so the floor allows for one more move of the mark.
    pub fn floor_ms(&self, file: Option<&Found>) -> i64 {
        let own_ms = match file {
            Some(found) if !found.other_is_damaged => found.record.mark_ms,
            Some(found) => {
                let by_clock_ms = self.ahead_of(self.wall_ms.max(self.checkpoint_ms));
                let known = [Some(by_clock_ms), self.past_label_ms()];
                known.into_iter().flatten().fold(self.moved(found.record.mark_ms), i64::max)
            }
            None => self.wall_ms.max(self.checkpoint_ms) + 1,
        };
        if !self.recovered {
            return own_ms;
        }
        let by_clock = [Some(self.checkpoint_ms), self.replayed_ms, self.prepared_ms];
        let by_clock = by_clock.into_iter().flatten().map(|ms| self.ahead_of(ms));
        by_clock.chain(self.past_label_ms()).fold(own_ms, i64::max)
    }

    /// The next mark of the file during recovery, if it is not far enough past what has been replayed. The file
    /// then covers a crash right after a promotion, when PostgreSQL has forgotten the time that was replayed. Half of
    /// the margin is room until the next check.
    pub fn followed_ms(&self, mark_ms: Option<i64>) -> Option<i64> {
        let wanted_ms = self.ahead_of(self.replayed_ms?);
        let enough_ms = wanted_ms - MARGIN_MS / 2;
        mark_ms.is_none_or(|mark_ms| mark_ms < enough_ms).then_some(wanted_ms)
    }

    /// Past the label and past the next one, which the old primary may have written, and used for ids, without
    /// replicating it. The old primary may have been this server, under the same worker id.
    fn past_label_ms(&self) -> Option<i64> {
        Some(self.moved(self.label_ms?))
    }

    /// The latest time of an id issued when a server's clock showed this time. After a crash, ids begin at the mark
    /// that was written for this clock.
    fn ahead_of(&self, clock_ms: i64) -> i64 {
        self.moved(clock_ms) + MARGIN_MS
    }

    fn moved(&self, reached_ms: i64) -> i64 {
        moved_ms(reached_ms, self.drift_ms, self.window_ms)
    }
}
