//! The guide on JSON and JavaScript, with the programs in `examples/javascript`.

use std::process::Command;

use idgen_testkit::run;
use idgen_testkit::sql::execute;

use crate::counting::Counting;
use crate::node::{Node, insert};

const FILE: &str = "json.mjs";

#[test]
fn json_texts_of_ids_are_exact_in_both_directions() {
    let server = Counting::with_tables_of("json.md");
    let node = Node::new();
    for case in ["texts", "numbers"] {
        node.case(&server, FILE, case);
    }
}

#[test]
fn json_reviver_needs_the_source_of_a_number() {
    let server = Counting::with_tables_of("json.md");
    let node = Node::new();
    node.case(&server, FILE, "source");
    // Older engines can be told to pass it, newer ones do so.
    let option = "--harmony-json-parse-with-source";
    let known = run(Command::new("node").arg("--v8-options")).contains(option);
    let options: &[&str] = if known { &[option] } else { &[] };
    assert_eq!(run(node.module_with(&server, options, "cases/json.mjs").arg("source")), "true\n");
}

#[test]
fn json_results_of_node_postgres_are_exact() {
    let mut server = Counting::with_tables_of("json.md");
    let node = Node::new();
    node.case(&server, FILE, "orders");
    execute(server.client(), "TRUNCATE orders");
    let stored = "SELECT id FROM orders ORDER BY split_part(item, ' ', 2)::int";
    assert_eq!(insert(&mut server, &node, FILE, "many", stored), (0, 1));
}

#[test]
fn json_ids_of_layout_js53_are_exact_numbers() {
    let server = Counting::with_tables_of("json.md");
    Node::new().case(&server, FILE, "js53");
}
