//! Where time begins when a server starts.

use super::label::moved_ms;
use super::record::Found;

/// Added to times that another server's clock has written: its ids may have been further ahead than after one crash.
const MARGIN_MS: i64 = 10_000;

/// What is known at the first generation after a start. All times in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    pub wall_ms: i64,
    /// From the control file; by this server's clock or, before a promotion, by the old primary's.
    pub checkpoint_ms: i64,
    /// The server has come out of archive or standby recovery.
    pub recovered: bool,
    /// The last commit that was replayed, and the newest prepared transaction: by the old primary's clock.
    pub replayed_ms: Option<i64>,
    pub prepared_ms: Option<i64>,
    /// How far the times of ids might go, as the newest server has written it that could issue them. It is in WAL, so this
    /// server has it if it has the ids. `None` where none was written: that server had an older release.
    pub label_ms: Option<i64>,
    pub drift_ms: i64,
    pub window_ms: i64,
}

impl Evidence {
    /// The time at which everything begins: no id that this server, or the primary it follows, has issued before has
    /// this time or a later one.
    ///
    /// A file with both its records says so by itself. Without a file this is a first start, and the clock and the last
    /// checkpoint have to do. With one record of two, the other may have been the newer, and moved the mark on once more.
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

    /// Where the file's mark has to be moved to while the server is in recovery, if it is not far enough past what has been
    /// replayed. So that a crash right after a promotion, when PostgreSQL has forgotten the replayed time, finds it there.
    /// Half of the margin is room for the next look.
    pub fn followed_ms(&self, mark_ms: Option<i64>) -> Option<i64> {
        let wanted_ms = self.ahead_of(self.replayed_ms?);
        let enough_ms = wanted_ms - MARGIN_MS / 2;
        mark_ms.is_none_or(|mark_ms| mark_ms < enough_ms).then_some(wanted_ms)
    }

    /// Past the label, and past the one that may have been written next and is lost: with it the old primary has issued
    /// ids that never came here. It may be this very server, which then has them under its worker id.
    fn past_label_ms(&self) -> Option<i64> {
        Some(self.moved(self.label_ms?))
    }

    /// The latest time that an id can have, issued when a server's clock said this: after a crash ids begin at the mark
    /// that was written for this clock.
    fn ahead_of(&self, clock_ms: i64) -> i64 {
        self.moved(clock_ms) + MARGIN_MS
    }

    fn moved(&self, reached_ms: i64) -> i64 {
        moved_ms(reached_ms, self.drift_ms, self.window_ms)
    }
}
