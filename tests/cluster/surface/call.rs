//! A call of a function: its arguments, their notation, and whether it may wait.

use fastrand::Rng;

use crate::catalog::Function;
use crate::session::Answer;
use crate::values::{KEPT, Known, Values};

/// A series of values of which each is above all before it.
#[derive(Clone, Copy, PartialEq)]
pub enum Series {
    /// The ids of the default layout.
    Ids,
    Uuids,
    /// The values of the segment [`KEPT`].
    Kept,
}

/// One argument of a call.
struct Passed {
    /// The name, in named notation.
    name: Option<String>,
    type_name: String,
    value: String,
}

/// Where the call is in its query.
#[derive(Clone, Copy)]
enum Columns {
    /// In the list of columns.
    Value,
    /// In the FROM clause, with these columns.
    Of(&'static str),
}

pub struct Call {
    columns: Columns,
    function: String,
    arguments: Vec<Passed>,
    /// What the columns of the result are, one value or a first and a last one.
    pub draws: Option<Series>,
    /// Whether it may wait by design: for a lock, a lease, the clock or a refill.
    pub may_wait: bool,
    /// Whether it can acquire something.
    pub may_hold: bool,
    pub answer: Answer,
}

impl Call {
    pub fn random(function: &Function, known: &Known, rng: &mut Rng) -> Call {
        let arguments = arguments(function, &mut Values::new(rng, known, &function.name));
        let name = function.name.as_str();
        let on_kept = arguments.first().is_some_and(|argument| argument.value == format!("('{KEPT}')::text"));
        let draws = match name {
            "snowflake_next" if arguments.is_empty() => Some(Series::Ids),
            "snowflake_next_many" if function.arguments.len() == 1 => Some(Series::Ids),
            "uuidv7_next" | "uuidv7_next_many" => Some(Series::Uuids),
            "segment_next" | "segment_next_many" | "segment_reserve" if on_kept => Some(Series::Kept),
            _ => None,
        };
        let columns = match name {
            "segment_reserve" => Columns::Of("first_id, last_id"),
            // Millions of rows would only slow the client.
            _ if name.ends_with("next_many") && rng.u8(..4) > 0 => match draws {
                // PostgreSQL 15 has no min(uuid).
                Some(Series::Uuids) => Columns::Of("min(result::text), max(result::text)"),
                _ => Columns::Of("min(result), max(result)"),
            },
            _ if function.is_trigger || rng.bool() => Columns::Value,
            _ => Columns::Of("*"),
        };
        let waiting = ["_acquire", "_next", "_many", "_reserve"];
        Call {
            columns,
            function: function.qualified.clone(),
            arguments,
            draws,
            may_wait: waiting.iter().any(|part| name.contains(part)) || name == "worker_confirm",
            may_hold: ["lock", "lease", "worker"].iter().any(|room| name.starts_with(room)),
            answer: if name.contains("_try_acquire") { Answer::Try } else { Answer::Rows },
        }
    }

    /// The query with its arguments.
    pub fn sql(&self) -> String {
        self.query(self.arguments.iter().map(|argument| argument.value.clone()))
    }

    /// The query with parameters, their types, and their values.
    pub fn prepared(&self) -> (String, String, String) {
        let list = |part: fn(&Passed) -> &String| {
            let parts: Vec<&str> = self.arguments.iter().map(|argument| part(argument).as_str()).collect();
            if parts.is_empty() { String::new() } else { format!("({})", parts.join(", ")) }
        };
        let query = self.query((1..=self.arguments.len()).map(|number| format!("${number}")));
        (query, list(|argument| &argument.type_name), list(|argument| &argument.value))
    }

    /// The query that makes the call for each of so many rows.
    pub fn per_row(&self, count: usize) -> String {
        let call = self.text(self.arguments.iter().map(|argument| argument.value.clone()));
        format!("SELECT {call} FROM generate_series(1, {count})")
    }

    fn query(&self, values: impl Iterator<Item = String>) -> String {
        let call = self.text(values);
        match self.columns {
            Columns::Value => format!("SELECT {call}"),
            Columns::Of(columns) => format!("SELECT {columns} FROM {call} AS result"),
        }
    }

    fn text(&self, values: impl Iterator<Item = String>) -> String {
        let passed = self.arguments.iter().zip(values).map(|(argument, value)| match &argument.name {
            Some(name) => format!("{name} => {value}"),
            None => value,
        });
        format!("{}({})", self.function, passed.collect::<Vec<_>>().join(", "))
    }
}

/// Some arguments by position, the others by name, in any order, or left out if they have a default.
fn arguments(function: &Function, values: &mut Values) -> Vec<Passed> {
    // The arguments without a default come first.
    let required = function.arguments.iter().filter(|argument| !argument.has_default).count();
    let most = if values.rng.bool() { required } else { function.arguments.len() };
    let by_position = values.rng.usize(..=most);
    let mut passed = Vec::new();
    for (index, argument) in function.arguments.iter().enumerate() {
        let named = index >= by_position && !argument.name.is_empty();
        if named && argument.has_default && values.rng.u8(..4) > 0 {
            continue;
        }
        passed.push(Passed {
            name: named.then(|| argument.name.clone()),
            type_name: argument.type_name.clone(),
            value: values.of(&argument.name, &argument.type_name),
        });
    }
    let first_named = passed.iter().position(|argument| argument.name.is_some()).unwrap_or(passed.len());
    values.rng.shuffle(&mut passed[first_named..]);
    passed
}
