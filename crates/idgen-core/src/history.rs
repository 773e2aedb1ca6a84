//! The history of a coordinator: whether its database knows all that it has granted.
//!
//! A row of the database records the server, timeline, database and data directory that grant from it. If another one
//! continues with the data, the last grants may be missing: a promoted standby lacks what had not been replicated, and
//! a restored dump lacks everything after it. What follows from that is a matter of what is granted: new rectangles of
//! worker ids begin after every rectangle that may be missing, and segments wait for what their servers have received.

use crate::coordinator::Place;
use std::fmt;

/// Identifies what grants from a database: a copy of the database has another identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub system_identifier: u64,
    pub timeline: u32,
    pub database: u32,
    /// A standby has another one.
    pub place: Place,
    /// Another server began the timeline, and these are a copy of its data. Not a part of the text.
    pub is_copy: bool,
}

/// Whether the grants in a database are those of what grants from it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryState {
    /// All its grants come from this database.
    Own,
    /// Another server or database made its grants, or the data have been another server's or a backup since.
    Interrupted,
    /// The data directory was copied. Both copies would grant the same.
    Copied,
}

impl Identity {
    /// The state of a history that was recorded with this text: that of an identity, also of an earlier release.
    pub fn state_of(&self, recorded: &str) -> HistoryState {
        match recorded.strip_prefix(&self.server()).map(Place::parse) {
            Some(place) if self.place.continues(&place) => HistoryState::Own,
            Some(place) if self.place.is_directory_of(&place) => HistoryState::Interrupted,
            Some(_) => HistoryState::Copied,
            // Its origin may not have granted yet in this timeline.
            None if self.is_copy => HistoryState::Copied,
            None => HistoryState::Interrupted,
        }
    }

    /// The text of this identity, if it has recorded a history in the form of an earlier release. Otherwise what was recorded.
    pub fn in_the_present_form(&self, recorded: String) -> String {
        match self.state_of(&recorded) {
            HistoryState::Own => self.to_string(),
            HistoryState::Interrupted | HistoryState::Copied => recorded,
        }
    }

    fn server(&self) -> String {
        format!("{}/{}/{}/", self.system_identifier, self.timeline, self.database)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server(), self.place)
    }
}

/// The history of the worker ids of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The text of the identity that has granted.
    pub identity: String,
    /// When it was last interrupted; `None` if it is complete.
    pub since_us: Option<i64>,
    /// The longest time from the clock to the end of a rectangle, under any settings so far.
    pub longest_us: i64,
    /// How often it was interrupted. What was granted in an earlier epoch cannot be renewed.
    pub epoch: i32,
}

impl History {
    /// The end of the rectangles that an interruption may have forgotten; `None` if the history is complete.
    pub fn forgotten_until_us(&self) -> Option<i64> {
        self.since_us.map(|since_us| since_us.saturating_add(self.longest_us))
    }

    /// The history after an interruption that is noticed now. An earlier interruption counts too: rectangles granted after
    /// it began ahead of the clock.
    pub fn interrupted(&self, identity: &Identity, now_us: i64) -> Self {
        let since_us = self.forgotten_until_us().map_or(now_us, |until_us| now_us.max(until_us));
        let epoch = self.epoch.wrapping_add(1);
        History { identity: identity.to_string(), since_us: Some(since_us), longest_us: self.longest_us, epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(directory: &str, number: &str) -> Place {
        Place::new(directory, "6-7", number)
    }

    fn identity() -> Identity {
        Identity { system_identifier: 1, timeline: 2, database: 3, place: place("4-5", "one"), is_copy: false }
    }

    #[test]
    fn history_is_interrupted_in_another_server_timeline_or_database_or_by_a_restore_and_copied_in_another_directory() {
        let recorded = identity().to_string();
        let copied = Identity { place: place("8-9", "one"), ..identity() };
        assert_eq!(identity().state_of(&recorded), HistoryState::Own);
        assert_eq!(copied.state_of(&recorded), HistoryState::Copied);
        let restored = Identity { place: place("4-5", "another"), is_copy: true, ..identity() };
        assert_eq!(restored.state_of(&recorded), HistoryState::Interrupted, "in the same directory");
        for other in [
            Identity { system_identifier: 9, ..identity() },
            Identity { timeline: 9, ..identity() },
            Identity { database: 9, ..identity() },
            Identity { timeline: 9, ..copied.clone() },
        ] {
            assert_eq!(other.state_of(&recorded), HistoryState::Interrupted, "{other:?}");
            let copy_of_other = Identity { is_copy: true, ..other };
            assert_eq!(copy_of_other.state_of(&recorded), HistoryState::Copied, "{copy_of_other:?}");
        }
        let decided = Identity { is_copy: true, ..copied };
        assert_eq!(decided.state_of(&decided.to_string()), HistoryState::Own);
        assert_eq!(identity().state_of(""), HistoryState::Interrupted, "a dump");
        assert_eq!(identity().state_of("1/2/3/4-5 -"), HistoryState::Own, "a row of 0.14.1");
    }

    #[test]
    fn interruption_soon_after_another_counts_from_where_grants_began() {
        let since_us = |history: &History, now_us| history.interrupted(&identity(), now_us).since_us;
        let complete = History { identity: String::new(), since_us: None, longest_us: 90, epoch: 4 };
        let after = complete.interrupted(&identity(), 1000);
        assert_eq!((after.identity, after.longest_us, after.epoch), (identity().to_string(), 90, 5));
        assert_eq!(since_us(&complete, 1000), Some(1000));
        let interrupted = History { since_us: Some(990), ..complete };
        assert_eq!(since_us(&interrupted, 1000), Some(1080));
        assert_eq!(since_us(&interrupted, 5000), Some(5000));
        // The clock went back.
        assert_eq!(since_us(&interrupted, 0), Some(1080));
    }
}
