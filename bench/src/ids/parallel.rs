//! Whether a plan that could be parallel still is.

use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;
use idgen_testkit::sql::execute;
use postgres::{Client, SimpleQueryMessage};
use serde_json::Value;

/// Costs that let the planner take a parallel plan for a table of any size, if it may.
const EAGER: &str = "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0";
const CALLS: [(&str, &str); 6] = [
    ("no-op", "noop()"),
    (SNOWFLAKE, "snowflake_next()"),
    ("snowflake_next, `seconds`", "snowflake_next('seconds')"),
    ("nextval", "nextval('seq_1')"),
    ("nextval, CACHE 32", "nextval('seq_32')"),
    ("gen_random_uuid", "gen_random_uuid()"),
];
const SNOWFLAKE: &str = "snowflake_next, `snowflake`";

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut client = server.client();
    execute(&mut client, EAGER);
    execute(&mut client, &format!("CREATE TABLE source AS SELECT n FROM generate_series(1, {}) AS n", scale.rows));
    execute(&mut client, "VACUUM ANALYZE source");
    let measured = rounds(scale.rounds, &CALLS, |(_, call)| create_as(&mut client, call));
    execute(&mut client, "DROP TABLE source");

    let cells = |rounds: &Vec<Run>| {
        vec![Samples::new(rounds.iter().map(|run| run.seconds)), Samples::new(rounds.iter().map(|run| run.workers))]
    };
    let rows =
        CALLS.iter().zip(&measured).map(|((name, _), rounds)| Row { name: (*name).into(), cells: cells(rounds) });
    let rows: Vec<Row> = rows.collect();
    let workers = |name| {
        let index = CALLS.iter().position(|(known, _)| *known == name).expect("it is among the calls");
        rows[index].cells[1].clone()
    };
    let figure = Figure::at_least(1.0, "workers of CREATE TABLE AS with snowflake_next", workers(SNOWFLAKE));
    let table = Table {
        title: format!("CREATE TABLE AS with an id for each of {} rows", scale.rows),
        how: format!("`EXPLAIN (ANALYZE, TIMING OFF) CREATE TABLE t AS SELECT f() FROM source`, with `{EAGER}`."),
        columns: vec!["s".into(), "workers launched".into()],
        rows,
    };
    (vec![figure], vec![table])
}

struct Run {
    seconds: f64,
    workers: f64,
}

fn create_as(client: &mut Client, call: &str) -> Run {
    let sql =
        format!("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) CREATE TABLE made AS SELECT {call} AS id FROM source");
    let answer = client.simple_query(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    execute(client, "DROP TABLE made");
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let explained: Value = serde_json::from_str(text.expect("a plan")).expect("FORMAT JSON is JSON");
    let milliseconds = explained[0]["Execution Time"].as_f64().expect("ANALYZE says how long it took");
    // A plan that is not parallel does not begin with a Gather.
    let workers = explained[0]["Plan"]["Workers Launched"].as_f64().unwrap_or(0.0);
    Run { seconds: milliseconds / 1000.0, workers }
}
