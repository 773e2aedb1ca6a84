//! The coordinator's history: whether this database knows every rectangle that was granted.
//!
//! A row of the database records the server, timeline, database and data directory that grant from it. If another one
//! continues with the data, the last grants may be missing: a promoted standby lacks what had not been replicated, and
//! a restored dump lacks everything after it. New rectangles then begin after every rectangle that may be missing.

use crate::coordinator::Place;

/// Identifies a coordinator: a copy of its database has another identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// As PostgreSQL stores it in a bigint.
    pub system_identifier: i64,
    pub timeline: i32,
    pub database: u32,
    /// A standby has another one.
    pub place: Place,
}

/// The history of this database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub identity: Identity,
    /// When it was last interrupted; `None` if it is complete.
    pub since_us: Option<i64>,
    /// Since the interruption, id times of lower tokens may have been granted to other holders.
    pub first_token: i64,
    /// The longest time from the clock to the end of a rectangle, under any settings so far.
    pub longest_us: i64,
}

/// Whether the history is that of the database which grants from it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryState {
    /// All its grants come from this database.
    Own,
    /// Another server or database made its grants, or the data have been another server's or a backup since.
    Interrupted,
    /// The data directory was copied. Both copies would grant the same rectangles.
    Copied,
}

/// What a database without a history tells of its past.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    /// No lease was defined in this database, and no worker id granted, as far as it knows.
    pub is_new: bool,
    pub now_us: i64,
    /// When this server began to write: at its start or its promotion.
    pub began_us: i64,
    /// The end of the wait that a dropped database or extension of this server has left, if one has granted.
    pub label_until_us: Option<i64>,
}

impl History {
    /// The first one of a database. Without a row, grants may be forgotten: the row is written with the first definition.
    /// What a new database has forgotten ended with a promotion or a restore, which the first server never had.
    pub fn begun(identity: Identity, past: Past) -> Self {
        let is_first_server = identity.timeline == 1 && !identity.place.has_followed_other_wal();
        let since_us = match past.label_until_us {
            Some(until_us) => Some(past.now_us.max(until_us)),
            None if !past.is_new => Some(past.now_us),
            None if is_first_server => None,
            None => Some(past.began_us),
        };
        History { identity, since_us, first_token: 0, longest_us: 0 }
    }

    pub fn state(&self, now: &Identity) -> HistoryState {
        let recorded = &self.identity;
        let is_same = (recorded.system_identifier, recorded.timeline, recorded.database)
            == (now.system_identifier, now.timeline, now.database);
        match is_same {
            true if now.place.continues(&recorded.place) => HistoryState::Own,
            true if !now.place.is_directory_of(&recorded.place) => HistoryState::Copied,
            _ => HistoryState::Interrupted,
        }
    }

    /// The time of an interruption that is noticed now. An earlier interruption counts too: rectangles granted after it
    /// began ahead of the clock.
    pub fn interrupted_us(&self, now_us: i64) -> i64 {
        self.since_us.map_or(now_us, |since_us| now_us.max(since_us.saturating_add(self.longest_us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::life_number;

    fn place(directory: &str, number: &str) -> Place {
        Place::new(directory, "6-7", number)
    }

    fn identity() -> Identity {
        Identity { system_identifier: 1, timeline: 2, database: 3, place: place("4-5", "one") }
    }

    #[test]
    fn history_is_interrupted_in_another_server_timeline_or_database_or_by_a_restore_and_copied_in_another_directory() {
        let history = History { identity: identity(), since_us: None, first_token: 0, longest_us: 90 };
        let copied = Identity { place: place("8-9", "one"), ..identity() };
        assert_eq!(history.state(&identity()), HistoryState::Own);
        assert_eq!(history.state(&copied), HistoryState::Copied);
        for other in [
            Identity { system_identifier: 9, ..identity() },
            Identity { timeline: 9, ..identity() },
            Identity { database: 9, ..identity() },
            Identity { timeline: 9, ..copied },
            Identity { place: place("4-5", "another"), ..identity() },
        ] {
            assert_eq!(history.state(&other), HistoryState::Interrupted, "{other:?}");
        }
    }

    #[test]
    fn history_without_a_row_is_complete_only_for_a_new_database_of_the_first_server() {
        let past = Past { is_new: true, now_us: 1000, began_us: 400, label_until_us: None };
        let since_us = |identity: &Identity, past| History::begun(identity.clone(), past).since_us;
        let first = Identity { timeline: 1, ..identity() };
        let restored = Identity { place: Place::new("4-5", "6-7", &life_number(1, true)), ..first.clone() };
        assert_eq!(since_us(&first, past), None);
        assert_eq!(since_us(&identity(), past), Some(400), "it was promoted");
        assert_eq!(since_us(&restored, past), Some(400));
        for identity in [first, identity(), restored] {
            assert_eq!(since_us(&identity, Past { is_new: false, ..past }), Some(1000), "a dump or an older release");
            assert_eq!(since_us(&identity, Past { label_until_us: Some(i64::MIN), ..past }), Some(1000));
            assert_eq!(since_us(&identity, Past { label_until_us: Some(1090), ..past }), Some(1090));
        }
    }

    #[test]
    fn interruption_soon_after_another_counts_from_where_grants_began() {
        let complete = History { identity: identity(), since_us: None, first_token: 0, longest_us: 90 };
        assert_eq!(complete.interrupted_us(1000), 1000);
        let interrupted = History { since_us: Some(990), ..complete };
        assert_eq!(interrupted.interrupted_us(1000), 1080);
        assert_eq!(interrupted.interrupted_us(5000), 5000);
        // The clock went back.
        assert_eq!(interrupted.interrupted_us(0), 1080);
    }
}
