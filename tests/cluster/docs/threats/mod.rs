//! The threat model of docs/security.md: each of its rows is a scenario of [`idgen_testkit::script`], acted out by such a
//! role. The files beside this one have the rows, in the order of the table:
//!
//! ```text
//! | a role granted a segment | drawer        the role as in the table, and the roles that act for it, by their sessions
//! -- can: Draw any number of its values.    a claim of the table, in its words, and then the steps that prove it
//! drawer: SELECT segment_next('t') -> 1
//! -- by tests/cluster/x.rs::name            or the test that proves it
//! drawer: every READ of lease(token) -> error  stands for a step for each of the ways in `ways.rs`
//! ```
//!
//! They run on one server, one after the other. `every.txt` has what none of their roles can do.

mod others;
mod ways;

use std::collections::BTreeMap;

use idgen_testkit::Cluster;
use idgen_testkit::script::play;

use crate::guards::is_test;
use crate::markdown::Document;
use crate::{assert_none, document};

const ROWS: [&str; 4] = [
    include_str!("public.txt"),
    include_str!("segments.txt"),
    include_str!("holders.txt"),
    include_str!("administrators.txt"),
];

/// A row of the table, and how it is acted out.
struct Row {
    role: String,
    logins: Vec<String>,
    script: String,
}

fn rows(files: &[&str]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in files.iter().flat_map(|file| file.lines()) {
        if let Some(head) = line.strip_prefix("| ") {
            let (role, logins) = head.split_once(" |").unwrap_or((head, ""));
            let logins = logins.trim().split_terminator(", ").map(str::to_owned).collect();
            rows.push(Row { role: role.to_owned(), logins, script: String::new() });
        } else {
            let row = rows.last_mut().expect("a row begins with its role");
            row.script.extend([line, "\n"]);
        }
    }
    rows
}

/// What differs between the table and its tests.
fn differences(page: &Document, rows: &[Row]) -> Vec<String> {
    let table = page.tables_of(&["role", "can do", "cannot do"]).flat_map(|table| &table.rows);
    let said: BTreeMap<&str, &[String]> = table.map(|cells| (&*cells[0], &cells[1..])).collect();
    let mut wrong: Vec<String> = rows.iter().flat_map(unproved).collect();
    wrong.extend(rows.iter().filter(|row| !said.contains_key(&*row.role)).map(|row| format!("no row: {}", row.role)));
    for (role, cells) in said {
        let Some(row) = rows.iter().find(|row| row.role == role) else {
            wrong.push(format!("no test: {role}"));
            continue;
        };
        for (cell, claims) in cells.iter().zip(claims(row)).filter(|(cell, claims)| **cell != *claims) {
            wrong.push(format!("{role}:\n    the table: {cell}\n    the tests: {claims}"));
        }
    }
    wrong
}

/// The claims of the tests of a row, as the cells of the table have them.
fn claims(row: &Row) -> [String; 2] {
    ["-- can: ", "-- cannot: "].map(|kind| {
        let mut is_of_kind = false;
        let lines = row.script.lines().filter_map(|line| {
            let more = line.strip_prefix("--   ").filter(|_| is_of_kind);
            let claim = line.strip_prefix(kind).or(more);
            is_of_kind = claim.is_some();
            claim
        });
        lines.collect::<Vec<_>>().join(" ")
    })
}

/// The claims that are followed by neither a step nor the name of a test.
fn unproved(row: &Row) -> Vec<String> {
    let lines: Vec<&str> = row.script.lines().filter(|line| !line.is_empty() && !line.starts_with("--   ")).collect();
    let ends = lines.iter().skip(1).copied().chain([""]);
    let proves = |line: &str| match line.strip_prefix("-- by ") {
        Some(test) => test.split_once("::").is_some_and(|(file, name)| is_test(file, name)),
        None => !line.is_empty() && !line.starts_with("--"),
    };
    let claims = lines.iter().zip(ends).filter(|(line, next)| line.starts_with("-- can") && !proves(next));
    claims.map(|(line, _)| format!("not proved: {}: {line}", row.role)).collect()
}

#[test]
fn every_line_of_the_threat_model_has_its_test() {
    assert_none(&differences(&document("docs/security.md"), &rows(&ROWS)));
}

#[test]
fn roles_can_do_what_the_threat_model_says_and_no_more() {
    let cluster = Cluster::builder().conf("wal_level", "logical").start_with_extension();
    let coordinator = format!("{} password=hunter2", cluster.connect_string("central", "fleet"));
    play(&cluster, include_str!("setup.txt"));
    cluster.reload_with("idgen.coordinator", &coordinator);
    for row in rows(&ROWS) {
        eprintln!("| {}", row.role);
        let connect: String = row.logins.iter().map(|login| format!("{login} connects as {login}\n")).collect();
        play(&cluster, &(connect + &ways::expanded(&row.script)));
        for login in &row.logins {
            play(&cluster, &ways::expanded(&ways::for_role(include_str!("every.txt"), login)));
        }
    }
}

#[test]
fn lines_without_a_test_and_tests_without_a_line_are_found() {
    let table = "| role | can do | cannot do |\n| --- | --- | --- |\n| r | A. B. | C. |\n| s | | D. |\n";
    let of = |tests: &str| differences(&Document::parse("x.md", table), &rows(&[tests])).join("; ");
    let good = "| r | a\n-- can: A.\na: 1\n-- can: B.\n\
        -- by tests/cluster/docs/threats/mod.rs::every_line_of_the_threat_model_has_its_test\n\
        -- cannot: C.\na: 2 -> error\n| s |\n-- cannot: D.\na: 1\n";
    assert_eq!(of(good), "");
    for (there, instead, what) in [
        ("| s |", "| t |", "no test: s"),
        ("| s |", "| t |", "no row: t"),
        ("-- can: B.", "-- can: E.", "the tests: A. E."),
        ("-- cannot: D.\n", "-- cannot: D.\n-- cannot: D.\n", "the tests: D. D."),
        ("a: 2 -> error\n", "", "not proved: r: -- cannot: C."),
        ("mod.rs::every", "mod.rs::no", "not proved: r: -- can: B."),
    ] {
        let found = of(&good.replace(there, instead));
        assert!(found.contains(what), "{there}, {instead}: {found}");
    }
}
