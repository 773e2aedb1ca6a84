//! The floor of a server that starts.

use super::label::{MarkLabel, moved_ms};
use super::record::Found;
use crate::coordinator::has_one_writer;

/// Added to times by another server's clock: its ids may have been further ahead than they are after one crash.
const MARGIN_MS: i64 = 10_000;

/// The facts known when a server issues its first id after a start. All times in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Counts only if a record of the file is damaged: no id need have been issued under this clock.
    pub wall_ms: i64,
    /// The number of the life of the data, from `idgen_place`.
    pub life: &'a str,
    /// The label is of an earlier timeline: the server was promoted, and has issued nothing since. The number shows it only
    /// if idgen was preloaded while the server followed.
    pub is_promoted: bool,
    /// The end of the last label in WAL, which this server has if it has the ids. `None` if there is none: no id was
    /// issued, or no worker could write the label.
    pub label_ms: Option<i64>,
    /// The last checkpoint, by this server's clock or, before a promotion, by the old primary's. Without a label, this time and
    /// the next two count: ids may have been issued under these clocks or not. This one also counts beside a damaged record.
    pub checkpoint_ms: i64,
    /// The last commit that was replayed, and the newest prepared transaction, by the old primary's clock.
    pub replayed_ms: Option<i64>,
    pub prepared_ms: Option<i64>,
    pub drift_ms: i64,
    pub window_ms: i64,
}

impl Evidence<'_> {
    /// The data may be newer than the file: it is of another life. Without a file, other servers may have written the data.
    pub fn is_replayed(&self, file: Option<&Found>) -> bool {
        let is_own = file.map_or_else(|| has_one_writer(self.life), |found| found.record.continues_in(self.life));
        self.is_promoted || !is_own
    }

    /// The floor: no id issued earlier by this server, or by the primary it followed, has this time or a later one.
    ///
    /// A file that is intact, and not older than the data, gives it. Otherwise the label does, and without a label the
    /// times of commits: under a wrong clock, commits without ids would take the floor along.
    pub fn floor_ms(&self, file: Option<&Found>) -> i64 {
        let is_replayed = self.is_replayed(file);
        let known_ms = self.past_label_ms().unwrap_or_else(|| self.past_commits_ms(is_replayed));
        let Some(found) = file else {
            return known_ms;
        };
        let mark_ms = found.record.mark_ms;
        if found.other_is_damaged {
            // It may have been the newer one, written one move later or after a long pause.
            let by_clock_ms = self.ahead_of(self.wall_ms.max(self.checkpoint_ms));
            return known_ms.max(by_clock_ms).max(moved_ms(mark_ms, self.drift_ms, self.window_ms));
        }
        let is_older_than_data = is_replayed || self.label_ms > Some(found.record.latest_label_ms);
        if is_older_than_data { mark_ms.max(known_ms) } else { mark_ms }
    }

    /// Past the label and past the next one, which the old primary may have written, and used for ids, without
    /// replicating it. The old primary may have been this server, under the same worker id.
    fn past_label_ms(&self) -> Option<i64> {
        self.label_ms.map(|ms| MarkLabel::reach_ms(ms, self.drift_ms, self.window_ms))
    }

    fn past_commits_ms(&self, is_replayed: bool) -> i64 {
        if !is_replayed {
            // The first start.
            return self.checkpoint_ms.saturating_add(1);
        }
        self.ahead_of([self.replayed_ms, self.prepared_ms].into_iter().flatten().fold(self.checkpoint_ms, i64::max))
    }

    /// The latest time of an id issued when a server's clock showed this time. After a crash, ids begin at the mark
    /// that was written for this clock.
    fn ahead_of(&self, clock_ms: i64) -> i64 {
        moved_ms(clock_ms, self.drift_ms, self.window_ms).saturating_add(MARGIN_MS)
    }
}
