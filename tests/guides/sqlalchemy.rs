//! The guide on SQLAlchemy, with `models.py` and the migration `0002_snowflake_ids.py` of `examples/sqlalchemy`.

use std::process::Command;

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{column, execute, ids, value};
use idgen_testkit::{Cluster, run};
use postgres::Client;

use crate::counting::counting_cluster;
use crate::frameworks::{as_javascript_reads_it, database_of_app, python, run_cases};

const DIRECTORY: &str = "examples/sqlalchemy";

/// Alembic as the role `app`.
fn alembic(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command: Command = python(cluster, "shop", "app", DIRECTORY);
    run(command.args(["-m", "alembic"]).args(arguments))
}

fn at_revision(revision: &str) -> (Cluster, Client) {
    let cluster = counting_cluster();
    let mut client = database_of_app(&cluster, "shop");
    execute(&mut client, "CREATE EXTENSION idgen");
    alembic(&cluster, &["upgrade", revision]);
    (cluster, client)
}

#[test]
fn sqlalchemy_monotonic_default_costs_one_statement_for_1000_rows() {
    let (cluster, _client) = at_revision("head");
    let expected = [
        ("marked", "customers", 1, 0),
        ("parents_and_children", "customers", 1, 0),
        ("parents_and_children", "orders", 1, 0),
        ("insert_returning", "customers", 1, 0),
        ("drawn", "customers", 1, 1),
        ("sentinel", "sentinel", 1, 0),
        ("with_identity", "with_identity", 1, 0),
        ("unmarked", "unmarked", 1000, 0),
        ("reflected", "customers", 1000, 0),
        // psycopg 3 sends these in a pipeline, without waiting for each.
        ("insert_without_returning", "customers", 1000, 0),
        ("drawn_without_returning", "customers", 1000, 1),
    ];
    let mut names: Vec<&str> = expected.iter().map(|(case, ..)| *case).collect();
    names.dedup();
    names.push("narrow");
    let mut command = python(&cluster, "shop", "postgres", DIRECTORY);
    let counted = run_cases(&mut command, "sqlalchemy_cases.py", &names);
    for (case, table, inserts, draws) in expected {
        assert_eq!(counted.calls(case, &format!("INSERT INTO {table} ")), inserts, "{case}");
        assert_eq!(counted.calls(case, "SELECT snowflake_next_many("), draws, "{case}");
    }
}

#[test]
fn sqlalchemy_migration_converts_tables_that_exist() {
    let (cluster, mut client) = at_revision("0001");
    execute(&mut client, "INSERT INTO customers (name) SELECT 'old' FROM generate_series(1, 3)");
    execute(&mut client, "INSERT INTO orders (customer_id) SELECT id FROM customers");
    alembic(&cluster, &["upgrade", "head"]);
    let keys = "SELECT concat_ws(' ', table_name, column_name, data_type, column_default)
                FROM information_schema.columns
                WHERE table_schema = 'public' AND column_name IN ('id', 'customer_id') AND table_name IN ('customers', 'orders')
                UNION ALL SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' ORDER BY 1";
    let converted =
        ["customers id bigint snowflake_next()", "orders customer_id bigint", "orders id bigint snowflake_next()"];
    assert_eq!(column::<String>(&mut client, keys), converted);
    let found = alembic(&cluster, &["check"]);
    assert!(found.contains("No new upgrade operations detected"), "{found}");
    execute(&mut client, "INSERT INTO customers (name) VALUES ('new')");
    execute(&mut client, "INSERT INTO orders (customer_id) SELECT max(id) FROM customers");
    let orders = ids(&mut client, "SELECT id FROM orders ORDER BY id");
    assert_eq!(orders[..3], [1, 2, 3]);
    assert_increasing(&orders);
    assert!(value::<bool>(&mut client, "SELECT now() - snowflake_time(max(id)) < '1 minute' FROM orders"));
    alembic(&cluster, &["downgrade", "0001"]);
    let next = ids(&mut client, "INSERT INTO orders (customer_id) VALUES (1) RETURNING id");
    assert_eq!(next, [orders[3] + 1]);
}

#[test]
fn sqlalchemy_ids_reach_javascript_as_texts() {
    let (cluster, _client) = at_revision("head");
    let body = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = python(&cluster, "shop", "postgres", DIRECTORY);
    run_cases(command.env("BODY", body.path()), "sqlalchemy_cases.py", &["as_json"]);
    let written = std::fs::read_to_string(&body).expect("the case has written it");
    let (id, body) = written.split_once(' ').expect("an id and a body");
    assert_eq!(as_javascript_reads_it(body), id);
}
