//! The statements that call a contender: once, in a loop, or for many ids at a time.

pub enum Source {
    /// An expression that a loop evaluates for each row.
    Expression(&'static str),
    /// A set-returning function that returns `$n` rows.
    SetReturning(&'static str),
    /// PL/pgSQL statements. A loop makes only one of `divisor` calls, because they are slower than an expression.
    Block { statements: &'static str, divisor: u64, single: Option<&'static str> },
}

/// A source by its name in the report.
pub type Contender = (&'static str, Source);

pub const EMPTY_LOOP: &str = "empty loop";
pub const NOOP: &str = "no-op";
pub const SERIES: &str = "generate_series";

/// The cheapest loop, call and set-returning function.
pub const FLOORS: [Contender; 3] = [
    (EMPTY_LOOP, Source::Expression("1")),
    (NOOP, Source::Expression("noop()")),
    (SERIES, Source::SetReturning("generate_series(1, $n)")),
];

impl Source {
    /// A statement for a loop of up to `calls` calls, and how many calls it makes.
    pub fn looped(&self, calls: u64) -> (String, u64) {
        match self {
            Source::Expression(sql) => (count_of_expression(sql, calls), calls),
            Source::SetReturning(sql) => (count_of_set(sql, calls), calls),
            Source::Block { statements, divisor, .. } => {
                let calls = calls.div_ceil(*divisor);
                let body = format!("DECLARE id bigint; BEGIN FOR i IN 1..{calls} LOOP {statements} END LOOP; END");
                (format!("DO $$ {body} $$"), calls)
            }
        }
    }

    /// A query that draws `count` ids and returns one row. A block has none.
    pub fn batch(&self, count: u64) -> Option<String> {
        match self {
            Source::Expression(sql) => Some(count_of_expression(sql, count)),
            Source::SetReturning(sql) => Some(count_of_set(sql, count)),
            Source::Block { .. } => None,
        }
    }

    /// A statement that returns one id. A set-returning function has none.
    pub fn single(&self) -> Option<String> {
        match self {
            Source::Expression(sql) => Some(format!("SELECT {sql}")),
            Source::SetReturning(_) => None,
            Source::Block { single, .. } => single.map(str::to_owned),
        }
    }
}

fn count_of_expression(sql: &str, count: u64) -> String {
    format!("SELECT count({sql}) FROM generate_series(1, {count})")
}

fn count_of_set(sql: &str, count: u64) -> String {
    format!("SELECT count(i) FROM {} AS i", sql.replace("$n", &count.to_string()))
}
