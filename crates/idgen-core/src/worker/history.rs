//! The coordinator's history: does this database know all that was granted?
//!
//! A row of the database says which server, timeline, database and data directory have granted from it. Where another one
//! goes on with its data, the last grants may be missing: a standby that was promoted lacks what had not reached it, a
//! restored dump all that came after it. Grants then begin after all that may be missing.

/// What a coordinator is told from another one by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// As PostgreSQL stores it in a bigint.
    pub system_identifier: i64,
    pub timeline: i32,
    pub database: u32,
    /// The data directory in its file system. A standby has another one.
    pub place: String,
}

/// How this database's history stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub identity: Identity,
    /// When it was interrupted last; `None` if it is complete.
    pub since_us: Option<i64>,
    /// Since the interruption, the id times of lower tokens may have been granted to other holders.
    pub first_token: i64,
    /// The longest time from the clock to the end of a rectangle that was ever possible.
    pub longest_us: i64,
}

/// What has become of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// This database has granted all of it.
    Own,
    /// Another server or database goes on with it.
    Interrupted,
    /// The data directory was copied. Both copies would grant the same.
    Copied,
}

impl History {
    pub fn state(&self, now: &Identity) -> State {
        let recorded = &self.identity;
        let is_same = (recorded.system_identifier, recorded.timeline, recorded.database)
            == (now.system_identifier, now.timeline, now.database);
        match is_same {
            true if recorded.place == now.place => State::Own,
            true => State::Copied,
            false => State::Interrupted,
        }
    }

    /// When it is interrupted if that is noticed now. An earlier interruption counts as well: grants after it began later than the
    /// clock.
    pub fn interrupted_us(&self, now_us: i64) -> i64 {
        self.since_us.map_or(now_us, |since_us| now_us.max(since_us.saturating_add(self.longest_us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { system_identifier: 1, timeline: 2, database: 3, place: "4-5".to_owned() }
    }

    #[test]
    fn a_history_is_interrupted_by_another_server_timeline_or_database_and_copied_by_another_directory() {
        let history = History { identity: identity(), since_us: None, first_token: 0, longest_us: 90 };
        let copied = Identity { place: "6-7".to_owned(), ..identity() };
        assert_eq!(history.state(&identity()), State::Own);
        assert_eq!(history.state(&copied), State::Copied);
        for other in [
            Identity { system_identifier: 9, ..identity() },
            Identity { timeline: 9, ..identity() },
            Identity { database: 9, ..identity() },
            Identity { timeline: 9, ..copied },
        ] {
            assert_eq!(history.state(&other), State::Interrupted, "{other:?}");
        }
    }

    #[test]
    fn an_interruption_soon_after_another_one_counts_from_where_grants_began() {
        let complete = History { identity: identity(), since_us: None, first_token: 0, longest_us: 90 };
        assert_eq!(complete.interrupted_us(1000), 1000);
        let interrupted = History { since_us: Some(990), ..complete };
        assert_eq!(interrupted.interrupted_us(1000), 1080);
        assert_eq!(interrupted.interrupted_us(5000), 5000);
        // The clock went back.
        assert_eq!(interrupted.interrupted_us(0), 1080);
    }
}
