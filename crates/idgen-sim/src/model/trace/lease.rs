//! Replays the changes of `idgen.lease`, and those of a table of fenced writes.
//!
//! The table of writes is `public.work` with the columns name, slot and token. A transaction that writes has fenced first.

use super::Report;
use super::decoded::{Change, Kind, Transaction, interval_us};
use crate::model::lease::{Server, Step, Term};
use std::collections::{BTreeMap, BTreeSet};

/// A name and a slot.
type Key = (String, i64);

/// The rows as replayed so far.
#[derive(Debug, Default)]
pub struct Replay {
    rows: BTreeMap<Key, Term>,
    /// Slots, and the lock delay.
    definitions: BTreeMap<String, (usize, i64)>,
    /// The highest token of each slot, also of rows that are deleted by now.
    drawn: BTreeMap<Key, i64>,
    clocks: Vec<String>,
    /// When the server that writes now began, by its clock and by the wall clock.
    began_us: i64,
    began_wall_us: i64,
    pub report: Report,
}

impl Replay {
    /// Another server writes from now on. It began then or later, by its clock and by the wall clock.
    pub fn server_began(&mut self, began_us: i64, began_wall_us: i64) {
        (self.began_us, self.began_wall_us) = (began_us, began_wall_us);
    }

    /// Replays transactions, in the order of their commits.
    pub fn replay(&mut self, transactions: &[Transaction]) {
        for (index, transaction) in transactions.iter().enumerate() {
            let later = || transactions[index + 1..].iter().flat_map(|later| &later.changes);
            for (position, change) in transaction.changes.iter().enumerate() {
                match change.table.as_str() {
                    "idgen.lease_definition" => self.define(change),
                    "idgen.lease" => self.change(change, &transaction.changes[position + 1..], later()),
                    "public.work" if change.kind == Kind::Insert => self.write(change),
                    _ => {}
                }
            }
        }
    }

    /// Every grant that a client was told must be among the changes.
    pub fn told(&mut self, tokens: &[i64], transactions: &[Transaction]) {
        let rows = transactions.iter().flat_map(|one| &one.changes).filter(|change| change.table == "idgen.lease");
        let granted: BTreeSet<i64> =
            rows.filter(|row| row.kind != Kind::Delete).map(|row| row.number("token")).collect();
        for token in tokens {
            let step = Step::Told { is_durable: granted.contains(token) };
            self.report.check("told", &(step, token), &step.broken());
        }
    }

    /// The tokens and ends of the rows, to compare with those of a server.
    pub fn terms(&self) -> BTreeMap<Key, (i64, i64)> {
        self.rows.iter().map(|(key, row)| (key.clone(), (row.token, row.ends))).collect()
    }

    fn define(&mut self, change: &Change) {
        let name = change.text("name").to_owned();
        match change.kind {
            Kind::Delete => drop(self.definitions.remove(&name)),
            _ => {
                let definition = (change.number("slots") as usize, interval_us(change.text("lock_delay")));
                self.definitions.insert(name, definition);
            }
        }
    }

    fn change<'a>(&mut self, change: &Change, rest: &[Change], mut later: impl Iterator<Item = &'a Change>) {
        let key = (change.text("name").to_owned(), change.number("slot"));
        let before = self.rows.get(&key).copied();
        if change.kind == Kind::Delete {
            let row = self.rows.remove(&key);
            if let Some(row) = row.filter(|row| row.is_held) {
                let step = Step::Release { row: Some(row), token: row.token };
                self.report.check("release", &(&key, step), &step.broken());
            }
            return;
        }
        let (slots, lock_delay) = self.definitions.get(&key.0).copied().unwrap_or((1, 0));
        let after = self.term(change);
        let is_fenced = before.is_some_and(|before| later.any(|change| is_write(change, &key, before.token)));
        let server = |now| Server { clock: after.clock, now, began: self.began_us, first_token: self.began_wall_us };
        let begins_another = rest.iter().any(|change| {
            change.table == "idgen.lease"
                && change.kind != Kind::Delete
                && (change.text("name"), change.number("slot") == key.1) == (key.0.as_str(), false)
        });
        let (kind, step) = match before {
            Some(row) if row.token == after.token => match (row.is_held, after.is_held) {
                (_, true) => {
                    let read = after.ends - after.ttl;
                    ("renew", Some(Step::Renew { row: before, token: after.token, clock: after.clock, read }))
                }
                (true, false) if change.is("revoked") => ("revoke", None),
                (true, false) if begins_another => {
                    ("end", Some(Step::End { row, server: server(after.ends), is_fenced, lock_delay }))
                }
                (true, false) => ("release", Some(Step::Release { row: before, token: after.token })),
                (false, false) => ("revoke", None),
            },
            row => {
                let is_other = |known: &Key| known.0 == key.0 && *known != key;
                let others = self.rows.iter().filter(|(known, row)| is_other(known) && row.is_held).count();
                let drawn = self.drawn.get(&key).copied().unwrap_or(0);
                let kind = if row.is_some_and(|row| row.is_held) { "take over" } else { "begin" };
                // The end counts from the reading of the clock.
                let server = server(after.ends - after.ttl);
                (
                    kind,
                    Some(Step::Begin { row, token: after.token, server, drawn, is_fenced, others, slots, lock_delay }),
                )
            }
        };
        let broken = step.map_or_else(Vec::new, |step| step.broken());
        self.report.check(kind, &(&key, step), &broken);
        self.drawn.insert(key.clone(), after.token);
        self.rows.insert(key, after);
    }

    fn write(&mut self, change: &Change) {
        let key = (change.text("name").to_owned(), change.number("slot"));
        let step = Step::Fence { row: self.rows.get(&key).copied(), token: change.number("token") };
        self.report.check("fenced write", &(&key, step), &step.broken());
    }

    fn term(&mut self, change: &Change) -> Term {
        let clock = change.text("clock");
        let known = self.clocks.iter().position(|known| known == clock);
        let clock = known.unwrap_or_else(|| {
            self.clocks.push(clock.to_owned());
            self.clocks.len() - 1
        });
        Term {
            token: change.number("token"),
            is_held: change.number("depth") > 0,
            ttl: change.number("ttl_us"),
            ends: change.number("ends_us"),
            clock: clock as u32,
        }
    }
}

fn is_write(change: &Change, key: &Key, token: i64) -> bool {
    change.table == "public.work"
        && change.kind == Kind::Insert
        && change.number("token") == token
        && change.number("slot") == key.1
        && change.text("name") == key.0
}
