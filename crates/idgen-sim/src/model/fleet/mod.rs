//! The rules of segments of a fleet: ranges that a coordinator grants to servers.

pub mod space;

use super::rules::{self, broken};

/// What keeps the ranges of servers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    GrantRaisesMaxId,
    HistoryIsNamed,
    ReportsAreComplete,
    ReportsCount,
    RangeIsConfirmed,
    RangeIsRecorded,
    StockEndsWithServer,
    OneAtATime,
    ConfirmsBeforeAsking,
}

impl rules::Rule for Rule {
    const ALL: &'static [Self] = &[
        Self::GrantRaisesMaxId,
        Self::HistoryIsNamed,
        Self::ReportsAreComplete,
        Self::ReportsCount,
        Self::RangeIsConfirmed,
        Self::RangeIsRecorded,
        Self::StockEndsWithServer,
        Self::OneAtATime,
        Self::ConfirmsBeforeAsking,
    ];

    fn promise(self) -> &'static str {
        match self {
            Self::GrantRaisesMaxId => "G1",
            Self::RangeIsRecorded => "G2",
            Self::ConfirmsBeforeAsking => "G3",
            _ => "G4",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::GrantRaisesMaxId => "A range is above `max_id`, and raises it in the same transaction.",
            Self::HistoryIsNamed => "A coordinator that may have lost grants has another history.",
            Self::ReportsAreComplete => "Under another history, nothing is granted until all servers have reported.",
            Self::ReportsCount => "A range is above all that the servers have reported.",
            Self::RangeIsConfirmed => "A server uses a range only once the synchronous standby has it.",
            Self::RangeIsRecorded => "A server has a range on its disk before it uses it.",
            Self::StockEndsWithServer => "A server that starts has no stock.",
            Self::OneAtATime => "A server reports once it has recorded the last answer, or lost it.",
            Self::ConfirmsBeforeAsking => "After a range that was not confirmed, a server waits for the standby first.",
        }
    }
}

/// The tag at its coordinator, at the time of a grant.
#[derive(Clone, Copy, Debug)]
pub struct Tag {
    pub max_id: i64,
    /// Servers that have not reported under the current history.
    pub unreported: usize,
    /// The highest value that a server has reported.
    pub reported: i64,
}

/// A step, with what its rules need to know.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The coordinator grants values from `first` on.
    Grant {
        tag: Tag,
        first: i64,
    },
    /// A server asks, and knows whether its last range was confirmed, or the standby answers now.
    Ask {
        was_confirmed: bool,
    },
    Report {
        has_answer: bool,
    },
    /// A server puts a range that ends at `last` into its stock, and has this one on its disk.
    Install {
        last: i64,
        is_confirmed: bool,
        received: i64,
    },
    /// A coordinator goes on with data that may lack grants.
    Failover {
        is_named: bool,
    },
    Start {
        keeps_stock: bool,
    },
}

impl Step {
    /// The rules that the step breaks.
    pub fn broken(&self) -> Vec<Rule> {
        match *self {
            Step::Grant { tag, first } => broken(&[
                (Rule::GrantRaisesMaxId, first > tag.max_id),
                (Rule::ReportsAreComplete, tag.unreported == 0),
                (Rule::ReportsCount, first > tag.reported),
            ]),
            Step::Ask { was_confirmed } => broken(&[(Rule::ConfirmsBeforeAsking, was_confirmed)]),
            Step::Report { has_answer } => broken(&[(Rule::OneAtATime, !has_answer)]),
            Step::Install { last, is_confirmed, received } => {
                broken(&[(Rule::RangeIsConfirmed, is_confirmed), (Rule::RangeIsRecorded, received >= last)])
            }
            Step::Failover { is_named } => broken(&[(Rule::HistoryIsNamed, is_named)]),
            Step::Start { keeps_stock } => broken(&[(Rule::StockEndsWithServer, !keeps_stock)]),
        }
    }
}
