//! Which worker id of a pool a grant takes. Each part of the search runs only if those before it have found no row, and
//! reads an index in its order.

use std::ops::RangeInclusive;

#[derive(Clone, Debug)]
pub struct Search<'a> {
    pub pool: &'a str,
    pub range: RangeInclusive<i32>,
    pub now_us: i64,
    /// No new rectangle begins before this time.
    pub earliest_start_us: i64,
    pub prefer: Option<i32>,
    pub owner: Option<&'a str>,
    pub epoch: i32,
}

/// The row of a worker id, as far as a search reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    pub worker_id: i32,
    pub token: Option<i64>,
    pub owner: Option<String>,
    /// `None` if it was never granted.
    pub not_after_us: Option<i64>,
    pub epoch: i32,
}

/// What a part demands of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Preferred,
    /// Its last holder has the owner of the search.
    Owned,
    HasToken,
    HasNoToken,
    /// Its rectangle is final, because nobody can renew it or its time is over, and a new one can follow at once. A row of
    /// an earlier epoch cannot be renewed.
    Over,
    /// Its next holder has to wait, or is refused.
    Ahead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By the worker id, where there is one row at most.
    WorkerId,
    LastEndFirst,
    /// Of equal ends the lowest worker id.
    FirstEndFirst,
}

pub struct Part {
    pub name: &'static str,
    pub conditions: &'static [Condition],
    pub order: Order,
}

pub const PARTS: [Part; 5] = [
    Part { name: "preferred", conditions: &[Condition::Preferred, Condition::Over], order: Order::WorkerId },
    Part { name: "owned", conditions: &[Condition::Owned, Condition::Over], order: Order::LastEndFirst },
    Part { name: "ended", conditions: &[Condition::HasNoToken, Condition::Over], order: Order::FirstEndFirst },
    Part { name: "expired", conditions: &[Condition::HasToken, Condition::Over], order: Order::FirstEndFirst },
    // None begins earlier.
    Part { name: "ahead", conditions: &[Condition::HasNoToken, Condition::Ahead], order: Order::FirstEndFirst },
];

impl Condition {
    fn holds(self, row: &WorkerRow, search: &Search) -> bool {
        // A row that was never granted ends before all times.
        let ends_by = |time_us| row.not_after_us.is_none_or(|end_us| end_us <= time_us);
        match self {
            Condition::Preferred => search.prefer == Some(row.worker_id),
            Condition::Owned => row.owner.is_some() && row.owner.as_deref() == search.owner,
            Condition::HasToken => row.token.is_some(),
            Condition::HasNoToken => row.token.is_none(),
            Condition::Over => {
                ends_by(search.earliest_start_us)
                    && (row.token.is_none() || row.epoch != search.epoch || ends_by(search.now_us))
            }
            Condition::Ahead => !ends_by(search.earliest_start_us),
        }
    }
}

impl Search<'_> {
    /// The row that the search finds among those of its pool.
    pub fn pick<'r>(&self, rows: impl Iterator<Item = &'r WorkerRow> + Clone) -> Option<&'r WorkerRow> {
        let rows = rows.filter(|row| self.range.contains(&row.worker_id));
        PARTS.iter().find_map(|part| {
            let found = rows.clone().filter(|row| part.conditions.iter().all(|condition| condition.holds(row, self)));
            match part.order {
                Order::WorkerId => found.min_by_key(|row| row.worker_id),
                Order::LastEndFirst => found.max_by_key(|row| row.not_after_us),
                Order::FirstEndFirst => found.min_by_key(|row| (row.not_after_us, row.worker_id)),
            }
        })
    }
}
