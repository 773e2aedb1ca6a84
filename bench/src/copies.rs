//! COPY into tables whose ids are defaults, and the ways around a default. PostgreSQL writes the rows of a COPY in batches
//! only if no default is volatile; `nextval` is its one exception, and idgen makes the draws others.

use crate::harness::comparison::Comparison;
use crate::harness::report::{Section, Table};
use crate::harness::scale::Scale;
use crate::harness::server::{Server, seconds, wal_bytes};
use crate::peers::pgedge;
use idgen_testkit::sql::execute;
use postgres::Client;

const NEXTVAL: &str = "`nextval`";
const SNOWFLAKE: &str = "`snowflake_next()`";
const IN_FILE: &str = "ids in the file, from `snowflake_next_many`";

/// How a row gets its id: the definition of the column, and the statements that load the rows.
#[derive(Clone, Copy)]
struct Load {
    column: &'static str,
    statements: &'static [&'static str],
}

const DEFAULT: &[&str] = &["COPY copied (n, item) FROM '$dir/bench-rows'"];

pub fn copies(server: &Server, scale: &Scale, section: &mut Section) {
    const BIGINT: &str = "bigint";
    let mut loads = vec![
        (NEXTVAL, Load { column: "bigint DEFAULT nextval('seq_1')", statements: DEFAULT }),
        ("`nextval`, `CACHE 32`", Load { column: "bigint DEFAULT nextval('seq_32')", statements: DEFAULT }),
        (SNOWFLAKE, Load { column: "bigint DEFAULT snowflake_next()", statements: DEFAULT }),
        ("`uuidv7_next()`", Load { column: "uuid DEFAULT uuidv7_next()", statements: DEFAULT }),
        (IN_FILE, Load { column: BIGINT, statements: &["COPY copied FROM '$dir/bench-ids'"] }),
        (
            "a temporary table, and INSERT with `snowflake_next()`",
            Load {
                column: BIGINT,
                statements: &[
                    "CREATE TEMP TABLE staged (n int, item text)",
                    "COPY staged FROM '$dir/bench-rows'",
                    "INSERT INTO copied SELECT snowflake_next(), n, item FROM staged",
                    "DROP TABLE staged",
                ],
            },
        ),
    ];
    let [name, column] = pgedge::DEFAULT.into();
    loads.extend(pgedge::contender(server).map(|_| (name, Load { column, statements: DEFAULT })));
    let mut client = server.client();
    let dir = server.cluster.data_dir().display().to_string();
    let count = scale.rows;
    let rows = format!("SELECT n, 'item ' || n FROM generate_series(1, {count}) AS n");
    execute(&mut client, &format!("COPY ({rows}) TO '{dir}/bench-rows'"));
    let rows_with_ids = format!(
        "SELECT id, n, 'item ' || n FROM ROWS FROM (snowflake_next_many({count}), generate_series(1, {count})) AS r(id, n)"
    );
    let costs = Comparison::measure(scale.rounds, loads, |load| {
        // Each round inserts other ids.
        execute(&mut client, &format!("COPY ({rows_with_ids}) TO '{dir}/bench-ids'"));
        copy(&mut client, load, &dir)
    });
    for name in [SNOWFLAKE, IN_FILE] {
        let [time, _] = costs.of(name);
        section.at_most(1.0, format!("COPY, {name} / {NEXTVAL} (time)"), time / &costs.of(NEXTVAL)[0]);
    }
    let [_, wal] = costs.of(SNOWFLAKE);
    section.at_most(1.02, format!("COPY, {SNOWFLAKE} / {IN_FILE} (WAL)"), wal / &costs.of(IN_FILE)[1]);
    section.add(Table::new(
        format!("COPY of {count} rows"),
        "From a file on the server into a new table of the key, an int and a text, after a checkpoint. The time includes \
         the commit, but not the writing of the file.",
        ["s", "times nextval", "WAL MB"],
        costs.rows(|[time, wal]| vec![time.clone(), time / &costs.of(NEXTVAL)[0], wal.clone()]),
    ));
}

/// Seconds, and megabytes of WAL.
fn copy(client: &mut Client, load: &Load, dir: &str) -> [f64; 2] {
    execute(client, &format!("CREATE TABLE copied (id {} PRIMARY KEY, n int, item text)", load.column));
    execute(client, "CHECKPOINT");
    let (time, wal) = wal_bytes(client, |client| {
        load.statements.iter().map(|statement| seconds(client, &statement.replace("$dir", dir))).sum()
    });
    execute(client, "DROP TABLE copied");
    [time, wal / 1e6]
}
