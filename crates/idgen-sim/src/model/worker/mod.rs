//! The rules of worker ids: rectangles of a worker id by id times, and the history of their coordinator.

pub mod space;

use super::rules::{self, broken};

/// What keeps rectangles apart, and ids inside of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    BeginsAfterLast,
    BeginsAfterHistory,
    EndsWithinLead,
    TokenOfHistory,
    RenewalCompares,
    ReleaseCompares,
    CopyGrantsNothing,
    UseIsConfirmed,
    UseIsInside,
    StopsAtRelease,
    StartForgetsRectangle,
}

impl rules::Rule for Rule {
    const ALL: &'static [Self] = &[
        Self::BeginsAfterLast,
        Self::BeginsAfterHistory,
        Self::EndsWithinLead,
        Self::TokenOfHistory,
        Self::RenewalCompares,
        Self::ReleaseCompares,
        Self::CopyGrantsNothing,
        Self::UseIsConfirmed,
        Self::UseIsInside,
        Self::StopsAtRelease,
        Self::StartForgetsRectangle,
    ];

    fn promise(self) -> &'static str {
        "W1"
    }

    fn text(self) -> &'static str {
        match self {
            Self::BeginsAfterLast => "A rectangle begins at the end of the last one of its worker id, or later.",
            Self::BeginsAfterHistory => "After an interruption, rectangles begin past all that may be forgotten.",
            Self::EndsWithinLead => "A rectangle ends at most a ttl and `idgen.worker_max_lead` ahead.",
            Self::TokenOfHistory => "A lease from before an interruption is not renewed.",
            Self::RenewalCompares => "A renewal needs the `not_after` that the row has.",
            Self::ReleaseCompares => "A release with a last time needs the `not_after` that the row has.",
            Self::CopyGrantsNothing => "A copy of the coordinator's directory grants nothing.",
            Self::UseIsConfirmed => "A holder uses only what the synchronous standby has.",
            Self::UseIsInside => "The time of an id is inside the rectangle, whatever the clock says.",
            Self::StopsAtRelease => "A holder makes no id once it has sent the release.",
            Self::StartForgetsRectangle => "A server that starts leases again, and uses no rectangle from its files.",
        }
    }
}

/// The row of a worker id: its last rectangle, from `not_before` up to `not_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rectangle {
    pub token: i64,
    pub not_before: i64,
    pub not_after: i64,
}

/// What bounds rectangles: the coordinator's clock, and its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    pub now: i64,
    /// The ttl and the lead.
    pub longest: i64,
    /// All rectangles that may be forgotten end here or earlier; `None` if the history is complete.
    pub floor: Option<i64>,
    /// Lower tokens are from before the interruption.
    pub first_token: i64,
    pub is_copy: bool,
}

/// A step, with what its rules need to know. `row` is the row before it.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Grant {
        row: Option<Rectangle>,
        granted: Rectangle,
        bounds: Bounds,
    },
    /// `told` is the end that the holder passes.
    Renew {
        row: Rectangle,
        told: i64,
        not_after: i64,
        bounds: Bounds,
    },
    /// With the end of the time that was used.
    Release {
        row: Rectangle,
        told: i64,
    },
    /// An id. `certain` is the end that is confirmed.
    Use {
        rectangle: Rectangle,
        certain: i64,
        time: i64,
        is_released: bool,
    },
    Start {
        keeps_rectangle: bool,
    },
}

impl Step {
    /// The rules that the step breaks.
    pub fn broken(&self) -> Vec<Rule> {
        match *self {
            Step::Grant { row, granted, bounds } => broken(&[
                (Rule::BeginsAfterLast, row.is_none_or(|row| granted.not_before >= row.not_after)),
                (Rule::BeginsAfterHistory, bounds.floor.is_none_or(|floor| granted.not_before >= floor)),
                (Rule::EndsWithinLead, granted.not_after <= bounds.latest_end()),
                (Rule::CopyGrantsNothing, !bounds.is_copy),
            ]),
            Step::Renew { row, told, not_after, bounds } => broken(&[
                (Rule::EndsWithinLead, not_after <= bounds.latest_end().max(row.not_after)),
                (Rule::TokenOfHistory, row.token >= bounds.first_token),
                (Rule::RenewalCompares, told == row.not_after),
                (Rule::CopyGrantsNothing, !bounds.is_copy),
            ]),
            Step::Release { row, told } => broken(&[(Rule::ReleaseCompares, told == row.not_after)]),
            Step::Use { rectangle, certain, time, is_released } => broken(&[
                (Rule::UseIsConfirmed, time < certain || time >= rectangle.not_after),
                (Rule::UseIsInside, (rectangle.not_before..rectangle.not_after).contains(&time)),
                (Rule::StopsAtRelease, !is_released),
            ]),
            Step::Start { keeps_rectangle } => broken(&[(Rule::StartForgetsRectangle, !keeps_rectangle)]),
        }
    }
}

impl Bounds {
    fn latest_end(&self) -> i64 {
        self.floor.map_or(self.now, |floor| floor.max(self.now)).saturating_add(self.longest)
    }
}
