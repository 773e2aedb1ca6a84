//! Who makes ids, and the statements that make them do it.

use crate::samples::Samples;
use crate::server::Server;

pub struct Contender {
    pub name: &'static str,
    from: From,
}

enum From {
    /// An expression that is evaluated in every round of a loop.
    Call(&'static str),
    /// A set of `$n`.
    Set(&'static str),
}

/// What others are compared with.
pub const EMPTY: &str = "empty loop";
pub const NOOP: &str = "no-op";
pub const NEXT: &str = "snowflake_next, `seconds`";
pub const SERIES: &str = "generate_series";
pub const NEXT_MANY: &str = "snowflake_next_many, `seconds`";
pub const NEXTVAL: &str = "nextval";

impl Contender {
    pub fn all(server: &Server) -> Vec<Self> {
        let call = |name, sql| Self { name, from: From::Call(sql) };
        let set = |name, sql| Self { name, from: From::Set(sql) };
        let mut all = vec![
            call(EMPTY, "1"),
            call(NOOP, "noop()"),
            call(NEXT, "snowflake_next('seconds')"),
            call("snowflake_next, `snowflake`", "snowflake_next()"),
            call(NEXTVAL, "nextval('seq_1')"),
            call("nextval, CACHE 32", "nextval('seq_32')"),
            call("nextval, CACHE 1000", "nextval('seq_1000')"),
            call("PL/pgSQL over a sequence", "plpgsql_next()"),
            call("gen_random_uuid", "gen_random_uuid()"),
            set(SERIES, "generate_series(1, $n)"),
            set(NEXT_MANY, "snowflake_next_many($n, 'seconds')"),
            set("snowflake_next_many, `snowflake`", "snowflake_next_many($n)"),
        ];
        all.extend(server.has_function("uuidv7").then_some(call("uuidv7", "uuidv7()")));
        all
    }

    /// A statement that makes so many ids and returns one row.
    pub fn statement(&self, count: u64) -> String {
        match self.from {
            From::Call(sql) => format!("SELECT count({sql}) FROM generate_series(1, {count})"),
            From::Set(sql) => format!("SELECT count(i) FROM {} AS i", sql.replace("$n", &count.to_string())),
        }
    }

    /// A statement that makes one id and returns it; a set of one is nobody's choice.
    pub fn single(&self) -> Option<String> {
        match self.from {
            From::Call(sql) => Some(format!("SELECT {sql}")),
            From::Set(_) => None,
        }
    }
}

/// The samples of a contender among those of all.
pub fn of<'a>(contenders: &[Contender], samples: &'a [Samples], name: &str) -> &'a Samples {
    let index = contenders.iter().position(|contender| contender.name == name);
    &samples[index.unwrap_or_else(|| panic!("{name} is measured"))]
}
