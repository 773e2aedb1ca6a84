//! The page of the architecture: each promise has tests that guard it. `crates/idgen-testkit/tests/house` checks its
//! tables of the shape of the code.

use std::collections::BTreeSet;

use crate::markdown::{Document, bare, code_spans};
use crate::{assert_none, assert_same, document, files, root, text_of};

const PROMISES: [&str; 17] =
    ["S1", "S2", "S3", "S4", "S5", "G1", "G2", "G3", "G4", "L1", "L2", "L3", "L4", "L5", "W1", "P1", "P2"];

fn page() -> Document {
    document("docs/architecture.md")
}

#[test]
fn every_promise_names_tests_that_exist() {
    assert_none(&unguarded(&page()));
}

/// The promises without a test, and the tests that do not exist.
fn unguarded(page: &Document) -> Vec<String> {
    let rows: Vec<_> = page.tables_of(&["promise"]).flat_map(|table| &table.rows).collect();
    let mut wrong = Vec::new();
    for promise in PROMISES {
        let of_promise = rows.iter().filter(|row| row[0] == promise);
        let tests: Vec<_> = of_promise.flat_map(|row| row.iter().flat_map(|cell| tests_in(cell))).collect();
        if tests.is_empty() {
            wrong.push(page.at(1, format!("{promise} names no test")));
        }
    }
    for row in rows.iter().filter(|row| !PROMISES.contains(&&*row[0])) {
        wrong.push(page.at(1, format!("there is no promise {}", row[0])));
    }
    for (number, line) in page.text.lines().enumerate() {
        for (file, name) in tests_in(line).filter(|(file, name)| !is_test(file, name)) {
            wrong.push(page.at(number + 1, format!("there is no test {file}::{name}")));
        }
    }
    wrong
}

/// The tests in a piece of Markdown, as file and name.
fn tests_in(markdown: &str) -> impl Iterator<Item = (&str, &str)> {
    code_spans(markdown).filter_map(|code| code.split_once("::")).filter(|(file, _)| file.ends_with(".rs"))
}

/// True if the file has a function of this name with the attribute `#[test]`.
pub fn is_test(file: &str, name: &str) -> bool {
    if !root().join(file).is_file() {
        return false;
    }
    let source = text_of(file);
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let defined = lines.iter().position(|line| line.starts_with(&format!("fn {name}(")));
    let attributes = |at: usize| lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '/']));
    defined.is_some_and(|at| attributes(at).any(|line| *line == "#[test]"))
}

#[test]
fn wait_events_are_those_of_the_code() {
    let page = document("docs/monitoring.md");
    let rows = page.tables_of(&["wait event", "process"]).flat_map(|table| &table.rows);
    let says: BTreeSet<_> = rows.map(|row| bare(&row[0]).to_owned()).collect();
    let sources = files("src", "rs").into_iter().map(|file| text_of(&file));
    let named = |source: String| -> Vec<String> {
        let names = source.split("WaitEvent::new(c\"").skip(1).filter_map(|rest| rest.split('"').next());
        names.map(str::to_owned).collect()
    };
    assert_same(&page, &says, &sources.flat_map(named).collect());
}

#[test]
fn promises_without_guards_are_found() {
    let test = "`tests/cluster/docs/guards.rs::promises_without_guards_are_found`";
    let page = |rows: &[(&str, &str)]| {
        let rows: String = rows.iter().map(|(promise, tests)| format!("| {promise} | {tests} |\n")).collect();
        unguarded(&Document::parse("x.md", &format!("| promise | tests |\n| --- | --- |\n{rows}")))
    };
    let with = |first: (&'static str, &'static str)| [&[first], &PROMISES.map(|promise| (promise, test))[1..]].concat();
    assert_eq!(page(&with(("S1", test))), [""; 0]);
    for (row, what) in [
        (("S1", "`src/lib.rs`"), "S1 names no test"),
        (("S2", test), "S1 names no test"),
        (("S1", "`tests/cluster/docs/guards.rs::promises_without`"), "no test tests/cluster"),
        (("S1", "`tests/cluster/docs/guards.rs::unguarded`"), "no test tests/cluster"),
        (("S1", "`tests/cluster/docs/guard.rs::unguarded`"), "no test tests/cluster"),
    ] {
        let found = page(&with(row));
        assert!(found.len() == 1 && found[0].contains(what), "{row:?}: {found:?}");
    }
    assert!(page(&[with(("S1", test)), vec![("S9", test)]].concat())[0].contains("no promise S9"));
}
