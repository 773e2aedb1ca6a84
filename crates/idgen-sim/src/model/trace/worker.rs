//! Replays the changes of `idgen.worker_id` and `idgen.worker_history`, and the id times that clients have used.
//!
//! The table of uses is `public.used` with the columns number, token and time_us. All pools of a trace have the same range,
//! so a worker id has one row that was granted, whatever pool it belongs to: a move changes the pool, and nothing else.
//! Rows that were never granted do not count.

use super::Report;
use super::decoded::{Change, Kind, Transaction, interval_us};
use crate::model::worker::{Bounds, Rectangle, Step};
use std::collections::{BTreeMap, BTreeSet};

/// A row of `idgen.worker_id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub pool: String,
    /// With the last token, also if that has ended.
    pub rectangle: Rectangle,
    /// The token can be renewed.
    pub is_current: bool,
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
    /// Tokens that an interruption or a change of the pool has ended.
    ended: BTreeSet<i64>,
    floor: Option<i64>,
    since_us: Option<i64>,
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
                    "idgen.worker_id" => self.change(change, transaction.committed_us),
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
        if since_us != i64::MIN && self.since_us.replace(since_us) != Some(since_us) {
            // An interruption ends all tokens.
            self.ended.extend(self.rows.values().map(|row| row.rectangle.token));
        }
        *self.report.steps.entry("history").or_default() += 1;
    }

    fn change(&mut self, change: &Change, now: i64) {
        let (pool, number) = (change.text("pool").to_owned(), change.number("worker_id"));
        let known = self.rows.get(&number);
        if change.kind == Kind::Delete {
            assert!(known.is_none_or(|row| row.pool != pool), "idgen deletes no rectangle");
            return;
        }
        if change.optional("acquired_at").is_none() {
            return;
        }
        let token = change.optional("token").map(|_| change.number("token"));
        let before = known.filter(|known| token.is_none_or(|token| known.rectangle.token == token)).cloned();
        let after = Row {
            pool,
            rectangle: Rectangle {
                token: token.or(known.map(|known| known.rectangle.token)).unwrap_or_default(),
                not_before: change.time_us("not_before"),
                not_after: change.time_us("not_after"),
            },
            is_current: token.is_some(),
            is_released: change.optional("role").is_none(),
        };
        let bounds = Bounds { now, longest: self.longest_us, floor: self.floor, first_token: 0, is_copy: false };
        let (kind, step) = match before {
            Some(before) => self.change_of_holder(&before, &after, change.text_before("pool"), bounds),
            None => {
                let row = self.last.get(&number).copied();
                let kind = if row.is_some() { "grant again" } else { "grant" };
                (kind, Step::Grant { row, granted: after.rectangle, bounds })
            }
        };
        self.report.check(kind, &(&after.pool, number, step), &step.broken());
        if kind != "move" {
            self.last.insert(number, after.rectangle);
            self.by_token.insert(after.rectangle.token, (after.rectangle, after.is_released));
        }
        self.rows.insert(number, after);
    }

    /// A change of a row under the same token, or its end.
    fn change_of_holder(
        &mut self,
        before: &Row,
        after: &Row,
        moved_from: Option<&str>,
        bounds: Bounds,
    ) -> (&'static str, Step) {
        let row = before.rectangle;
        let is_same = row == after.rectangle && before.is_released == after.is_released;
        if before.pool != after.pool || (before.is_current && !after.is_current && !after.is_released) {
            // Neither a move nor the end of a token asks a holder, so no end that a holder has passed allows it to change the
            // rectangle.
            let is_moved = before.pool != after.pool;
            let is_allowed = is_same && (!is_moved || moved_from == Some(before.pool.as_str()));
            if !after.is_current {
                self.ended.insert(row.token);
            }
            let told = if is_allowed { row.not_after } else { i64::MIN };
            let kind = if is_moved { "move" } else { "end" };
            return (kind, Step::Renew { row, told, not_after: after.rectangle.not_after, bounds });
        }
        if !after.is_current {
            // A release that reports no last time leaves the end as it was, and compares nothing.
            let told = if is_end_kept(before, after) { row.not_after } else { self.told(&row) };
            return ("release", Step::Release { row, told });
        }
        // A token that has ended is older than every other one.
        let is_ended = !before.is_current || self.ended.contains(&row.token);
        let bounds = Bounds { first_token: if is_ended { i64::MAX } else { 0 }, ..bounds };
        ("renew", Step::Renew { row, told: self.told(&row), not_after: after.rectangle.not_after, bounds })
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

fn is_end_kept(before: &Row, after: &Row) -> bool {
    before.rectangle.not_after == after.rectangle.not_after
}
