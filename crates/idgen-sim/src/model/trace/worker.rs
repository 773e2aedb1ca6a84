//! Replays the changes of `idgen.worker_number` and `idgen.worker_history`, and the id times that clients have used.
//!
//! The table of uses is `public.used` with the columns number, token and time_us. All pools of a trace have the same range,
//! so a worker id has one row, whatever pool it belongs to: a move changes the pool, and nothing else.

use super::Report;
use super::decoded::{Change, Kind, Transaction, interval_us};
use crate::model::worker::{Bounds, Rectangle, Step};
use std::collections::{BTreeMap, BTreeSet};

/// A row of `idgen.worker_number`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub pool: String,
    pub rectangle: Rectangle,
    pub is_released: bool,
}

/// The rows as replayed so far.
#[derive(Debug, Default)]
pub struct Replay {
    /// The rows that this server has, by worker id.
    rows: BTreeMap<i64, Row>,
    /// The last rectangle of each worker id, also of those that only an earlier server has granted.
    last: BTreeMap<i64, Rectangle>,
    /// The last rectangle of each token, and whether it was released.
    by_token: BTreeMap<i64, (Rectangle, bool)>,
    floor: Option<i64>,
    first_token: i64,
    /// The ttl of the pools and the lead.
    longest_us: i64,
    /// The tokens and ends that clients have passed, each noted before it was sent.
    passed: BTreeSet<(i64, i64)>,
    pub report: Report,
}

impl Replay {
    /// `longest_us` is the ttl of the pools and the lead.
    pub fn new(longest_us: i64) -> Self {
        Self { longest_us, ..Self::default() }
    }

    /// Another server grants from now on, and has these rows.
    pub fn server_began(&mut self, rows: BTreeMap<i64, Row>) {
        self.rows = rows;
    }

    /// Tokens and ends that clients have passed, each noted before it was sent.
    pub fn passed(&mut self, passed: BTreeSet<(i64, i64)>) {
        self.passed.extend(passed);
    }

    /// Replays transactions, in the order of their commits.
    pub fn replay(&mut self, transactions: &[Transaction]) {
        for transaction in transactions {
            // The grant that notices an interruption writes the history too, in either order.
            let histories = transaction.changes.iter().filter(|change| change.table == "idgen.worker_history");
            histories.for_each(|change| self.history(change));
            for change in &transaction.changes {
                match change.table.as_str() {
                    "idgen.worker_number" => self.change(change, transaction.committed_us),
                    "public.used" => self.used(change),
                    _ => {}
                }
            }
        }
    }

    fn history(&mut self, change: &Change) {
        let since_us = change.time_us("since");
        let longest_us = interval_us(change.text("longest")).max(self.longest_us);
        self.floor = (since_us != i64::MIN).then(|| since_us + longest_us);
        self.first_token = change.number("first_token");
        *self.report.steps.entry("history").or_default() += 1;
    }

    fn change(&mut self, change: &Change, now: i64) {
        assert_ne!(change.kind, Kind::Delete, "idgen deletes no rectangle");
        let (pool, number) = (change.text("pool").to_owned(), change.number("number"));
        let after = Rectangle {
            token: change.number("token"),
            not_before: change.time_us("not_before"),
            not_after: change.time_us("not_after"),
        };
        let bounds =
            Bounds { now, longest: self.longest_us, floor: self.floor, first_token: self.first_token, is_copy: false };
        let is_released = change.is("released");
        let row = Row { pool: pool.clone(), rectangle: after, is_released };
        let before = self.rows.insert(number, row).filter(|before| before.rectangle.token == after.token);
        let (kind, step) = match before {
            Some(before) if before.pool != pool => {
                // A move asks no holder, so no end that a holder has passed allows it to change the rectangle.
                let row = before.rectangle;
                let is_same = row == after && is_released == before.is_released;
                let is_moved = is_same && change.text_before("pool") == Some(&before.pool);
                let (told, bounds) =
                    (if is_moved { row.not_after } else { i64::MIN }, Bounds { first_token: 0, ..bounds });
                ("move", Step::Renew { row, told, not_after: after.not_after, bounds })
            }
            Some(Row { rectangle: row, .. }) if is_released || after.not_after < row.not_after => {
                // A release that reports no last time leaves the end as it was, and compares nothing.
                let told = if after.not_after == row.not_after { row.not_after } else { self.told(&row) };
                ("release", Step::Release { row, told })
            }
            Some(Row { rectangle: row, .. }) => {
                ("renew", Step::Renew { row, told: self.told(&row), not_after: after.not_after, bounds })
            }
            None => {
                let row = self.last.get(&number).copied();
                let kind = if row.is_some() { "grant again" } else { "grant" };
                (kind, Step::Grant { row, granted: after, bounds })
            }
        };
        self.report.check(kind, &(pool, number, step), &step.broken());
        if kind != "move" {
            self.last.insert(number, after);
            self.by_token.insert(after.token, (after, is_released));
        }
    }

    /// The end that the holder has passed: that of the row, if it has ever passed it.
    fn told(&self, row: &Rectangle) -> i64 {
        if self.passed.contains(&(row.token, row.not_after)) { row.not_after } else { i64::MIN }
    }

    fn used(&mut self, change: &Change) {
        let nothing = Rectangle { token: change.number("token"), not_before: 0, not_after: 0 };
        let (rectangle, is_released) = self.by_token.get(&nothing.token).copied().unwrap_or((nothing, false));
        let time = change.number("time_us");
        let step = Step::Use { rectangle, certain: rectangle.not_after, time, is_released };
        self.report.check("use", &step, &step.broken());
    }
}
