//! Who makes ids, or takes locks, and the statements that make them do it.

use crate::samples::Samples;

pub struct Contender {
    pub name: &'static str,
    from: From,
}

enum From {
    /// An expression that is evaluated in every round of a loop.
    Call(&'static str),
    /// A set of `$n`.
    Set(&'static str),
    /// Statements in a loop of PL/pgSQL.
    Block(&'static str),
    /// A row that is updated, and committed, for each id.
    Counter,
}

/// What others are compared with.
pub const EMPTY: &str = "empty loop";
pub const NOOP: &str = "no-op";
pub const SERIES: &str = "generate_series";
pub const NEXTVAL: &str = "nextval";

/// How many ids a loop has from a function before it has one from a counter, which waits for the disk each time.
const CALLS_A_COMMIT: u64 = 1000;
/// The same for a round of PL/pgSQL, which runs a query for each statement.
const CALLS_A_BLOCK: u64 = 10;

impl Contender {
    pub const fn call(name: &'static str, sql: &'static str) -> Self {
        Self { name, from: From::Call(sql) }
    }

    pub const fn set(name: &'static str, sql: &'static str) -> Self {
        Self { name, from: From::Set(sql) }
    }

    pub const fn block(name: &'static str, statements: &'static str) -> Self {
        Self { name, from: From::Block(statements) }
    }

    pub const fn counter() -> Self {
        Self { name: "a row that counts", from: From::Counter }
    }

    /// The least that a loop, a call and a set can cost.
    pub fn floors() -> [Self; 3] {
        [Self::call(EMPTY, "1"), Self::call(NOOP, "noop()"), Self::set(SERIES, "generate_series(1, $n)")]
    }

    /// What is there without idgen.
    pub fn sequences() -> [Self; 3] {
        [
            Self::call(NEXTVAL, "nextval('seq_1')"),
            Self::call("nextval, CACHE 32", "nextval('seq_32')"),
            Self::call("nextval, CACHE 1000", "nextval('seq_1000')"),
        ]
    }

    /// A statement for a loop of so many calls, and how many ids it makes.
    pub fn looped(&self, calls: u64) -> (String, u64) {
        let (statements, calls) = match self.from {
            From::Call(_) | From::Set(_) => return (self.batch(calls).expect("calls and sets do many"), calls),
            From::Block(statements) => (statements, calls.div_ceil(CALLS_A_BLOCK)),
            From::Counter => {
                ("UPDATE counter SET n = n + 1 RETURNING n INTO id; COMMIT;", calls.div_ceil(CALLS_A_COMMIT))
            }
        };
        let body = format!("DECLARE id bigint; BEGIN FOR i IN 1..{calls} LOOP {statements} END LOOP; END");
        (format!("DO $$ {body} $$"), calls)
    }

    /// A statement that makes so many ids and returns one row; a counter is for one at a time.
    pub fn batch(&self, count: u64) -> Option<String> {
        match self.from {
            From::Call(sql) => Some(format!("SELECT count({sql}) FROM generate_series(1, {count})")),
            From::Set(sql) => Some(format!("SELECT count(i) FROM {} AS i", sql.replace("$n", &count.to_string()))),
            From::Block(_) | From::Counter => None,
        }
    }

    /// A statement that makes one id and returns it; a set of one is nobody's choice.
    pub fn single(&self) -> Option<String> {
        match self.from {
            From::Call(sql) => Some(format!("SELECT {sql}")),
            From::Set(_) | From::Block(_) => None,
            From::Counter => Some("UPDATE counter SET n = n + 1 RETURNING n".to_owned()),
        }
    }
}

/// The samples of one among those of all.
pub fn of<'a>(names: &[&str], samples: &'a [Samples], name: &str) -> &'a Samples {
    let index = names.iter().position(|known| *known == name);
    &samples[index.unwrap_or_else(|| panic!("{name} is measured"))]
}
