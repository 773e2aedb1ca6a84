//! The guide on JDBC, with the programs in `examples/jdbc`.

use std::path::Path;
use std::process::Command;

use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::run;
use idgen_testkit::sql::{column, execute, ids};
use tempfile::TempDir;

use crate::counting::{Counting, printed_ids};
use crate::{keys, repository};

const DRIVER: &str = "/usr/share/java/postgresql.jar";
const REWRITE: &str = "&reWriteBatchedInserts=true";

fn url(server: &Counting, options: &str) -> String {
    format!("jdbc:postgresql://{}?user=postgres{options}", server.address())
}

/// The compiled programs of the example.
fn compile() -> TempDir {
    let classes = tempfile::tempdir().expect("a temporary directory");
    let source = |name: &str| repository("examples/jdbc").join(name);
    run(Command::new("javac").arg("-d").arg(classes.path()).args([source("Orders.java"), source("SnowflakeIds.java")]));
    classes
}

/// Runs the example on an empty table, checks each row, and returns the numbers of draws and of inserts.
fn insert(server: &mut Counting, classes: &Path, options: &str, way: &str) -> (i64, i64) {
    execute(server.client(), "TRUNCATE orders");
    server.forget_statements();
    let class_path = format!("{DRIVER}:{}", classes.display());
    let arguments = ["-cp", &class_path, "Orders", &url(server, options), way, "1000"];
    let printed = printed_ids(&run(Command::new("java").args(arguments)));
    let counted = server.draws_and_inserts();
    let stored = ids(server.client(), "SELECT id FROM orders ORDER BY split_part(item, ' ', 2)::int");
    assert_eq!(printed, stored, "each id belongs to its item");
    assert_increasing(&printed);
    counted
}

#[test]
fn jdbc_batch_costs_11_statements_with_drawn_ids_and_1000_for_generated_keys() {
    let classes = compile();
    let mut server = Counting::with_tables_of("jdbc.md");
    let mut count = |options: &str, way: &str| insert(&mut server, classes.path(), options, way);
    assert_eq!(count("", "one"), (0, 1));
    assert_eq!(count("", "keys"), (0, 1000));
    assert_eq!(count(REWRITE, "keys"), (0, 1000), "the driver rewrites no statement that returns keys");
    assert_eq!(count("", "batch"), (1, 1000));
    assert_eq!(count(REWRITE, "batch"), (1, 10));
    assert_eq!(count("", "array"), (1, 1));
    assert_eq!(count("", "shared"), (2, 1000), "two blocks of 500");
}

#[test]
fn jdbc_threads_share_blocks_of_ids() {
    let classes = compile();
    let mut server = Counting::with_tables_of("jdbc.md");
    server.forget_statements();
    let class_path = format!("{DRIVER}:{}", classes.path().display());
    let source = repository("tests/guides/jdbc/Threads.java");
    let printed = run(Command::new("java").args(["-cp", &class_path]).arg(source).arg(url(&server, "")));
    let drawn = assert_distinct(printed_ids(&printed));
    assert_eq!(drawn.len(), 160_000);
    assert_eq!(server.draws_and_inserts(), (320, 0), "160,000 ids in blocks of 500");
}

#[test]
fn jdbc_reads_ids_as_long_only() {
    let server = Counting::with_tables_of("jdbc.md");
    let source = repository("tests/guides/jdbc/Pitfalls.java");
    run(Command::new("java").args(["-cp", DRIVER]).arg(source).arg(url(&server, "")));
}

/// The packages of Debian that Hibernate 3.6 needs to write its tables.
const HIBERNATE: [&str; 6] = [
    "hibernate3.jar",
    "hibernate-commons-annotations.jar",
    "geronimo-jpa_2.0_spec.jar",
    "geronimo-jta-1.2-spec.jar",
    "dom4j.jar",
    "slf4j-api.jar",
];

#[test]
fn hibernate_join_tables_have_no_ids() {
    let classes = tempfile::tempdir().expect("a temporary directory");
    let jars = HIBERNATE.map(|jar| format!("/usr/share/java/{jar}"));
    let class_path = format!("{}:{}", jars.join(":"), classes.path().display());
    let source = repository("tests/guides/jdbc/JoinTables.java");
    run(Command::new("javac").args(["-cp", &class_path, "-d"]).arg(classes.path()).arg(source));
    let statements = run(Command::new("java").args(["-cp", &class_path, "JoinTables"]));
    let mut server = Counting::with_tables_of("jdbc.md");
    let client = server.client();
    execute(client, &format!("DROP TABLE orders; {statements}"));
    let tables = |client: &mut _, condition: &str| {
        let sql = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace";
        column::<String>(client, &format!("{sql} AND {condition} ORDER BY 1"))
    };
    let has_id = "EXISTS (SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'id')";
    assert_eq!(tables(client, has_id), ["company", "customer", "generated", "purchase"]);
    let columns = "SELECT DISTINCT attname::text FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
                   WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0 AND attname <> 'id'
                   AND NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = attrelid AND contype = 'f' AND attnum = ANY (conkey))
                   ORDER BY 1";
    let others = ["addresses", "addresses_key", "drivers_order", "notes", "number", "phones", "phones_order"];
    assert_eq!(column::<String>(client, columns), others, "values, keys of maps and positions");
    let without_key = "NOT EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary)";
    assert_eq!(tables(client, without_key), ["customer_notes", "readers"], "lists without positions");
    let sequences = "SELECT relname::text FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace";
    assert_eq!(column::<String>(client, sequences), ["hibernate_sequence"], "of @GeneratedValue");
    assert_eq!(keys::of_sequences(client), [""; 0], "which Hibernate draws itself");
}
