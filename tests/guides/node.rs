//! The guides on Drizzle and Knex, with the programs in `examples`, and what runs Node for the guide on JSON.

use std::process::Command;

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::run;
use idgen_testkit::sql::{execute, ids};
use tempfile::TempDir;

use crate::counting::{Counting, printed_ids};
use crate::{keys, repository, tools};

/// A copy of the examples and of their cases, beside the packages of `package.json`: Node looks for packages in the
/// directories above a module.
pub struct Node {
    dir: TempDir,
}

impl Node {
    pub fn new() -> Node {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let packages = tools().join("node/node_modules");
        std::os::unix::fs::symlink(packages, dir.path().join("node_modules")).expect("a new directory");
        for (from, to) in [("examples", "examples"), ("tests/guides/node", "cases")] {
            run(Command::new("cp").arg("-r").arg(repository(from)).arg(dir.path().join(to)));
        }
        Node { dir }
    }

    /// Node with a module of the copy.
    pub fn module(&self, server: &Counting, path: &str) -> Command {
        self.module_with(server, &[], path)
    }

    /// The same with options of Node.
    pub fn module_with(&self, server: &Counting, options: &[&str], path: &str) -> Command {
        let mut command = Command::new("node");
        command.args(options).arg(self.dir.path().join(path)).env("DATABASE_URL", server.url());
        command
    }

    /// Runs a case of a file in `tests/guides/node`. Returns what it prints.
    pub fn case(&self, server: &Counting, file: &str, name: &str) -> String {
        run(self.module(server, &format!("cases/{file}")).arg(name))
    }
}

/// Runs a case that inserts rows and prints their ids. Checks each row, and returns the numbers of draws and of inserts.
pub fn insert(server: &mut Counting, node: &Node, file: &str, case: &str, stored: &str) -> (i64, i64) {
    server.forget_statements();
    let printed = printed_ids(&node.case(server, file, case));
    let counted = server.draws_and_inserts();
    assert_eq!(printed, ids(server.client(), stored), "{case}: each id belongs to its row");
    assert_increasing(&printed);
    counted
}

#[test]
fn drizzle_migrations_draw_all_keys() {
    let mut server = Counting::start();
    let node = Node::new();
    run(&mut node.module(&server, "examples/drizzle/migrate.mjs"));
    keys::assert_clean(server.client());
    assert_eq!(keys::of_sequences(server.client()), ["drizzle.__drizzle_migrations.id"]);
    assert_eq!(keys::of_snowflakes(server.client()), ["customers.id", "orders.id"]);
}

#[test]
fn knex_migrations_draw_all_keys() {
    let mut server = Counting::start();
    let node = Node::new();
    node.case(&server, "knex.mjs", "migrate");
    keys::assert_clean(server.client());
    assert_eq!(keys::of_sequences(server.client()), ["knex_migrations.id", "knex_migrations_lock.index"]);
    assert_eq!(keys::of_snowflakes(server.client()), ["customers.id", "orders.id"]);
    node.case(&server, "knex.mjs", "increments");
    let made = ["habit.id", "knex_migrations.id", "knex_migrations_lock.index"];
    assert_eq!(keys::of_sequences(server.client()), made);
}

#[test]
fn drizzle_inserts_1000_rows_in_one_statement() {
    let mut server = Counting::start();
    let node = Node::new();
    run(&mut node.module(&server, "examples/drizzle/migrate.mjs"));
    let stored = "SELECT id FROM customers ORDER BY split_part(name, ' ', 2)::int";
    assert_eq!(insert(&mut server, &node, "drizzle.mjs", "insert", stored), (0, 1));
    execute(server.client(), "TRUNCATE customers CASCADE");
    assert_eq!(insert(&mut server, &node, "drizzle.mjs", "drawn", stored), (1, 2));
    let owners = ids(server.client(), "SELECT count(*) FROM orders GROUP BY customer_id");
    assert_eq!(owners, [2; 1000]);
}

#[test]
fn drizzle_keeps_ids_of_nested_rows_and_rounds_them_in_mode_number() {
    let mut server = Counting::start();
    let node = Node::new();
    run(&mut node.module(&server, "examples/drizzle/migrate.mjs"));
    node.case(&server, "drizzle.mjs", "relations");
    execute(server.client(), "TRUNCATE customers CASCADE");
    node.case(&server, "drizzle.mjs", "numbers");
}

#[test]
fn knex_inserts_1000_rows_in_one_statement() {
    let mut server = Counting::start();
    let node = Node::new();
    node.case(&server, "knex.mjs", "migrate");
    let stored = "SELECT id FROM orders ORDER BY split_part(item, ' ', 2)::int";
    for (case, expected) in [("insert", (0, 1)), ("batch", (0, 5)), ("drawn", (1, 1))] {
        execute(server.client(), "TRUNCATE orders CASCADE");
        assert_eq!(insert(&mut server, &node, "knex.mjs", case, stored), expected, "{case}");
    }
    node.case(&server, "knex.mjs", "tooMany");
}

#[test]
fn knex_finds_rows_by_text_or_bigint_and_not_by_number() {
    let server = Counting::start();
    let node = Node::new();
    node.case(&server, "knex.mjs", "migrate");
    node.case(&server, "knex.mjs", "ids");
}
