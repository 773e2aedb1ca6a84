//! Parses what the plugin `test_decoding` prints, with the options `include-timestamp` and the time zone UTC. A slot with
//! two-phase decoding shows a prepared transaction when it is prepared, and again when it ends.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Insert,
    Update,
    /// With the columns of the key only.
    Delete,
}

/// A change of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// With its schema.
    pub table: String,
    pub kind: Kind,
    /// The row after the change. `None` for NULL.
    columns: BTreeMap<String, Option<String>>,
    /// The key before an update that changes it.
    key_before: BTreeMap<String, Option<String>>,
}

/// What ends a transaction, with the identifier of a prepared one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    #[default]
    Commit,
    Prepare(String),
    /// Without the changes, which the preparation has shown.
    CommitPrepared(String),
    RollbackPrepared(String),
}

/// The changes of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// When it was committed, prepared or rolled back.
    pub committed_us: i64,
    pub changes: Vec<Change>,
    pub ending: Ending,
}

impl Change {
    pub fn optional(&self, column: &str) -> Option<&str> {
        let value = self.columns.get(column).unwrap_or_else(|| panic!("no column {column}: {self:?}"));
        value.as_deref()
    }

    pub fn text(&self, column: &str) -> &str {
        self.optional(column).unwrap_or_else(|| panic!("{column} is NULL: {self:?}"))
    }

    pub fn number(&self, column: &str) -> i64 {
        self.text(column).parse().unwrap_or_else(|_| panic!("{column} is no number: {self:?}"))
    }

    pub fn is(&self, column: &str) -> bool {
        self.text(column) == "true"
    }

    /// A column of the key before the change, if the change is of the key.
    pub fn text_before(&self, column: &str) -> Option<&str> {
        self.key_before.get(column)?.as_deref()
    }

    /// Microseconds since 1970.
    pub fn time_us(&self, column: &str) -> i64 {
        time_us(self.text(column))
    }
}

/// The transactions of lines, in the order of their commits.
pub fn transactions<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<Transaction> {
    let mut transactions = Vec::new();
    let mut open = Transaction::default();
    for line in lines {
        if let Some(ending) = ending_of(line) {
            let (_, at) = line.rsplit_once("(at ").unwrap_or_else(|| panic!("no time: {line}"));
            open.committed_us = time_us(at.trim_end_matches(')'));
            open.ending = ending;
            transactions.push(std::mem::take(&mut open));
        } else if let Some(change) = line.strip_prefix("table ") {
            open.changes.push(change_of(change));
        }
    }
    transactions
}

fn ending_of(line: &str) -> Option<Ending> {
    let identifier = |start: &str| value_of(line.strip_prefix(start)?).0;
    let prepare = || identifier("PREPARE TRANSACTION ").map(Ending::Prepare);
    let commit = || identifier("COMMIT PREPARED ").map(Ending::CommitPrepared);
    let rollback = || identifier("ROLLBACK PREPARED ").map(Ending::RollbackPrepared);
    prepare().or_else(commit).or_else(rollback).or_else(|| line.starts_with("COMMIT ").then_some(Ending::Commit))
}

fn change_of(line: &str) -> Change {
    let parts = line.split_once(": ").and_then(|(table, rest)| Some((table, rest.split_once(": ")?)));
    let (table, (kind, columns)) = parts.unwrap_or_else(|| panic!("not a change: {line}"));
    let kind = match kind {
        "INSERT" => Kind::Insert,
        "UPDATE" => Kind::Update,
        "DELETE" => Kind::Delete,
        _ => panic!("unknown kind of change: {line}"),
    };
    // An update of the key, or with a full identity, shows the row before too.
    let (before, columns) = columns.split_once("new-tuple: ").unwrap_or(("", columns));
    let before = before.strip_prefix("old-key: ").unwrap_or("");
    Change { table: table.to_owned(), kind, columns: columns_of(columns), key_before: columns_of(before) }
}

/// Such as `name[text]:'it''s' slot[integer]:0 owner[text]:null`.
fn columns_of(mut rest: &str) -> BTreeMap<String, Option<String>> {
    let mut columns = BTreeMap::new();
    while let Some((name, after)) = rest.trim_start().split_once('[') {
        let (_, after) = after.split_once("]:").unwrap_or_else(|| panic!("no type: {rest}"));
        let (value, after) = value_of(after);
        columns.insert(name.to_owned(), value);
        rest = after;
    }
    columns
}

fn value_of(text: &str) -> (Option<String>, &str) {
    let Some(quoted) = text.strip_prefix('\'') else {
        let (value, rest) = text.split_at(text.find(' ').unwrap_or(text.len()));
        return (Some(value.to_owned()).filter(|value| value != "null"), rest);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices().peekable();
    while let Some((index, character)) = characters.next() {
        if character != '\'' {
            value.push(character);
        } else if characters.next_if(|(_, next)| *next == '\'').is_some() {
            value.push('\'');
        } else {
            return (Some(value), &quoted[index + 1..]);
        }
    }
    panic!("a quote is not closed: {text}")
}

/// Of a time such as `2026-01-31 12:00:00.25+00`. An infinite one is the least number.
pub fn time_us(text: &str) -> i64 {
    if text.ends_with("infinity") {
        return i64::MIN;
    }
    let (day, time) = text.trim_end_matches("+00").split_once(' ').unwrap_or_else(|| panic!("not a time: {text}"));
    let numbers: Vec<i64> = day.split('-').map(|part| part.parse().expect("a number")).collect();
    days_since_1970(numbers[0], numbers[1], numbers[2]) * 86_400_000_000 + clock_us(time)
}

/// Of an interval such as `1 day 00:00:30.5`.
pub fn interval_us(text: &str) -> i64 {
    match text.split_once(" day") {
        Some((days, rest)) => {
            let rest = rest.trim_start_matches('s').trim();
            let time_us = if rest.is_empty() { 0 } else { clock_us(rest) };
            days.parse::<i64>().expect("a number") * 86_400_000_000 + time_us
        }
        None => clock_us(text),
    }
}

/// Of a time of the day such as `12:00:00.25`.
fn clock_us(text: &str) -> i64 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds = whole.split(':').fold(0, |sum, part| sum * 60 + part.parse::<i64>().expect("a number"));
    seconds * 1_000_000 + format!("{fraction:0<6}").parse::<i64>().expect("a fraction")
}

/// In the Gregorian calendar. The year begins in March here, so that a leap day ends it.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_parsed_with_their_quotes_and_nulls() {
        let lines = [
            "BEGIN 7",
            "table public.t: INSERT: name[text]:'it''s [x]: y' slot[integer]:0 owner[text]:null at[timestamp with time zone]:'1970-01-02 00:00:01.5+00'",
            "table public.t: UPDATE: old-key: name[text]:'a' new-tuple: name[text]:'b' held[boolean]:true",
            "table public.t: DELETE: name[text]:'b'",
            "COMMIT 7 (at 2026-03-01 00:00:00.000001+00)",
        ];
        let [transaction] = &transactions(lines)[..] else { panic!("one transaction") };
        assert_eq!(transaction.committed_us, 1_772_323_200_000_001);
        let [insert, update, delete] = &transaction.changes[..] else { panic!("three changes") };
        assert_eq!((insert.text("name"), insert.number("slot"), insert.optional("owner")), ("it's [x]: y", 0, None));
        assert_eq!(insert.time_us("at"), 86_401_500_000);
        assert_eq!((update.text("name"), update.is("held"), update.kind), ("b", true, Kind::Update));
        assert_eq!((update.text_before("name"), insert.text_before("name")), (Some("a"), None));
        assert_eq!((delete.table.as_str(), delete.kind), ("public.t", Kind::Delete));
    }

    #[test]
    fn prepared_transactions_are_parsed_with_their_identifiers() {
        let lines = [
            "BEGIN 7",
            "table public.t: INSERT: name[text]:'a'",
            "PREPARE TRANSACTION 'it''s', txid 7 (at 2026-03-01 00:00:00+00)",
            "COMMIT PREPARED 'it''s', txid 7 (at 2026-03-01 00:00:01+00)",
            "ROLLBACK PREPARED 'b', txid 8 (at 2026-03-01 00:00:02+00)",
        ];
        let transactions = transactions(lines);
        let endings: Vec<_> = transactions.iter().map(|one| (one.ending.clone(), one.changes.len())).collect();
        let [a, b] = ["it's", "b"].map(str::to_owned);
        let expected =
            [(Ending::Prepare(a.clone()), 1), (Ending::CommitPrepared(a), 0), (Ending::RollbackPrepared(b), 0)];
        assert_eq!(endings, expected);
    }

    #[test]
    fn times_and_intervals_are_microseconds() {
        assert_eq!(time_us("-infinity"), i64::MIN);
        assert_eq!(time_us("2000-02-29 00:00:00+00"), 951_782_400_000_000);
        assert_eq!(interval_us("00:01:00.2"), 60_200_000);
        assert_eq!(interval_us("2 days 00:00:01"), 172_801_000_000);
        assert_eq!(interval_us("1 day"), 86_400_000_000);
    }
}
