//! Replays the changes of `idgen.lease`, and those of a table of fenced writes.
//!
//! The table of writes is `public.work` with the columns name, slot and token. A transaction that writes has fenced first.
//! A prepared one holds its fence from the moment at which it is prepared until it ends.

use super::Report;
use super::decoded::{Change, Ending, Kind, Transaction, interval_us};
use crate::model::lease::{Server, Step, Term};
use std::collections::{BTreeMap, BTreeSet};

/// A name and a slot.
type Key = (String, i64);

/// The first number of shared terms, which have no slots.
const FIRST_SHARED: i64 = 65_536;

/// The rows as replayed so far.
#[derive(Debug, Default)]
pub struct Replay {
    rows: BTreeMap<Key, Term>,
    /// Slots, and the lock delay.
    definitions: BTreeMap<String, (usize, i64)>,
    /// The highest token of each slot, also of rows that are deleted by now. The shared terms of a name have one for all.
    drawn: BTreeMap<Key, i64>,
    /// By their identifiers, with their changes.
    prepared: BTreeMap<String, Vec<Change>>,
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

    /// Replays transactions, in the order of their commits and preparations.
    pub fn replay(&mut self, transactions: &[Transaction]) {
        for (index, transaction) in transactions.iter().enumerate() {
            let later = &transactions[index + 1..];
            match &transaction.ending {
                Ending::Commit => self.commit(&transaction.changes, later),
                Ending::Prepare(identifier) => {
                    let writes = transaction.changes.iter().filter(is_write);
                    writes.for_each(|change| self.write("prepared write", change));
                    self.prepared.insert(identifier.clone(), transaction.changes.clone());
                }
                Ending::CommitPrepared(identifier) => {
                    let changes = self.prepared.remove(identifier).unwrap_or_default();
                    let (writes, changes): (Vec<Change>, Vec<Change>) =
                        changes.into_iter().partition(|change| is_write(&change));
                    writes.iter().for_each(|change| self.commit_prepared(change));
                    self.commit(&changes, later);
                }
                Ending::RollbackPrepared(identifier) => {
                    let changes = self.prepared.remove(identifier).unwrap_or_default();
                    let writes = changes.iter().filter(is_write).count();
                    *self.report.steps.entry("roll back prepared").or_default() += writes;
                }
            }
        }
    }

    fn commit(&mut self, changes: &[Change], later: &[Transaction]) {
        for (position, change) in changes.iter().enumerate() {
            match change.table.as_str() {
                "idgen.lease_definition" => self.define(change),
                "idgen.lease" => self.change(change, &changes[position + 1..], later),
                _ if is_write(&change) => self.write("fenced write", change),
                _ => {}
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

    fn change(&mut self, change: &Change, rest: &[Change], later: &[Transaction]) {
        let key = key_of(change);
        let before = self.rows.get(&key).copied();
        let own = before.map(|row| (key.clone(), row.token));
        // The next term of the name, if this transaction begins one. Its end counts from the reading of the clock.
        let next = rest.iter().find(|change| begins_another(change, &key)).map(|change| self.term(change));
        let (slots, lock_delay) = self.definitions.get(&key.0).copied().unwrap_or((1, 0));
        if change.kind == Kind::Delete {
            let Some(row) = self.rows.remove(&key) else { return };
            let (kind, step) = match next {
                Some(next) => {
                    let (server, is_fenced) = (self.server(&next), self.is_fenced(own.as_slice(), later));
                    ("end", Step::End { row, server, is_fenced, lock_delay })
                }
                // A release that was prepared, or an operator, can leave such a row.
                None if !row.is_held => return,
                None => ("release", Step::Release { row: before, token: row.token }),
            };
            return self.report.check(kind, &(&key, step), &step.broken());
        }
        let after = self.term(change);
        let (kind, step) = match before {
            Some(row) if row.token == after.token => match (row.is_held, after.is_held) {
                (_, true) => {
                    let read = after.ends - after.ttl;
                    ("renew", Some(Step::Renew { row: before, token: after.token, clock: after.clock, read }))
                }
                (true, false) if change.is("revoked") => ("revoke", None),
                (true, false) if next.is_some() => {
                    let server = Server { now: after.ends, ..self.server(&after) };
                    let is_fenced = self.is_fenced(own.as_slice(), later);
                    ("end", Some(Step::End { row, server, is_fenced, lock_delay }))
                }
                (true, false) => ("release", Some(Step::Release { row: before, token: after.token })),
                (false, false) => ("revoke", None),
            },
            row => {
                let is_shared = is_shared_term(&key);
                let alone = self.others(&key).filter(|(other, row)| row.is_held && !is_shared_term(other)).count();
                let has_shared = self.others(&key).any(|(other, row)| row.is_held && is_shared_term(other));
                let others = alone + usize::from(has_shared && !is_shared);
                let replaced = self.others(&key).filter(|(other, _)| is_shared != is_shared_term(other));
                let terms: Vec<_> = replaced.map(|(other, row)| (other.clone(), row.token)).chain(own).collect();
                let is_fenced = self.is_fenced(&terms, later);
                let kind = match row {
                    Some(row) if row.is_held => "take over",
                    _ if is_shared => "share",
                    _ => "begin",
                };
                let (token, server, drawn) = (after.token, self.server(&after), self.drawn(&key));
                (kind, Some(Step::Begin { row, token, server, drawn, is_fenced, others, slots, lock_delay }))
            }
        };
        let broken = step.map_or_else(Vec::new, |step| step.broken());
        self.report.check(kind, &(&key, step), &broken);
        let drawn = self.drawn.entry((key.0.clone(), key.1.min(FIRST_SHARED))).or_default();
        *drawn = after.token.max(*drawn);
        self.rows.insert(key, after);
    }

    /// The other rows of a name.
    fn others<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = (&'a Key, &'a Term)> {
        self.rows.range((key.0.clone(), i64::MIN)..=(key.0.clone(), i64::MAX)).filter(move |(other, _)| *other != key)
    }

    /// The highest token among those that a new one must be above. Transactions that grant several slots, or several shared
    /// terms, can commit in another order than that of their tokens.
    fn drawn(&self, key: &Key) -> i64 {
        let of = |slot| self.drawn.get(&(key.0.clone(), slot)).copied();
        if key.1 < FIRST_SHARED {
            return of(key.1).max(of(FIRST_SHARED)).unwrap_or(0);
        }
        let slots = self.drawn.range((key.0.clone(), 0)..(key.0.clone(), FIRST_SHARED));
        slots.map(|(_, token)| *token).max().unwrap_or(0)
    }

    /// The server that has written a row, when it read the clock for it.
    fn server(&self, row: &Term) -> Server {
        let now = row.ends - row.ttl;
        Server { clock: row.clock, now, began: self.began_us, first_token: self.began_wall_us }
    }

    /// True if a transaction holds a fence of one of these terms: a prepared one, or one that commits or prepares a write
    /// under it later.
    fn is_fenced(&self, terms: &[(Key, i64)], later: &[Transaction]) -> bool {
        let later = later.iter().flat_map(|later| &later.changes);
        let mut writes = self.prepared.values().flatten().chain(later).filter(is_write);
        writes.any(|change| terms.contains(&(key_of(change), change.number("token"))))
    }

    /// The fence of a write, which is in the transaction that commits or is prepared now.
    fn write(&mut self, kind: &'static str, change: &Change) {
        let key = key_of(change);
        let step = Step::Fence { row: self.rows.get(&key).copied(), token: change.number("token") };
        self.report.check(kind, &(&key, step), &step.broken());
    }

    /// A prepared write needs that its fence still holds the row, whose term may have ended.
    fn commit_prepared(&mut self, change: &Change) {
        let key = key_of(change);
        let step =
            Step::Write { is_fenced: self.rows.get(&key).is_some_and(|row| row.token == change.number("token")) };
        self.report.check("commit prepared", &(&key, step), &step.broken());
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

fn key_of(change: &Change) -> Key {
    (change.text("name").to_owned(), change.number("slot"))
}

fn is_shared_term(key: &Key) -> bool {
    key.1 >= FIRST_SHARED
}

/// True of a row of another slot, or of another shared term, of the same name.
fn begins_another(change: &Change, key: &Key) -> bool {
    let is_of_name = change.table == "idgen.lease" && change.kind != Kind::Delete && change.text("name") == key.0;
    is_of_name && change.number("slot") != key.1
}

fn is_write(change: &&Change) -> bool {
    change.table == "public.work" && change.kind == Kind::Insert
}
