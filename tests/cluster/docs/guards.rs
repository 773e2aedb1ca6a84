//! The page of the architecture: each promise has tests that guard it, and the tables of the shape of the code are
//! those that `crates/idgen-testkit/tests/house` checks.

use std::collections::BTreeSet;

use crate::markdown::{Document, bare, code_spans};
use crate::{assert_none, document, files, root, text_of};

const PROMISES: [&str; 17] =
    ["S1", "S2", "S3", "S4", "S5", "G1", "G2", "G3", "G4", "L1", "L2", "L3", "L4", "L5", "W1", "P1", "P2"];
const HOUSE: &str = "crates/idgen-testkit/tests/house";

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
fn is_test(file: &str, name: &str) -> bool {
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
fn parts_of_shared_memory_are_those_of_the_code() {
    let says = parts_on(&page());
    assert_eq!(says, parts_of(&text_of(&format!("{HOUSE}/shared_memory.rs"))), "order of the lock, part, file");
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
    assert_eq!(says, sources.flat_map(named).collect());
}

/// The order of its lock, the name and the file of each part: "0" is a part without a lock.
fn parts_on(page: &Document) -> Vec<[String; 3]> {
    let rows = page.tables_of(&["order", "part"]).flat_map(|table| &table.rows);
    rows.map(|row| [0, 1, 2].map(|cell| bare(&row[cell]).to_owned())).collect()
}

/// Reads the table in the source of a test.
fn parts_of(source: &str) -> Vec<[String; 3]> {
    let (_, table) = source.split_once("const PARTS: &str = \"").expect("the table");
    let (table, _) = table.split_once('"').expect("its end");
    let row = |line: &str| {
        let (order, rest) = line.trim().split_once("  ").expect("an order");
        let (name, file) = rest.split_once("  ").expect("a file");
        [order, name, file].map(|cell| cell.trim().to_owned())
    };
    table.lines().filter(|line| !line.is_empty()).map(row).collect()
}

#[test]
fn arrows_between_rooms_are_those_of_the_code() {
    let source = text_of(&format!("{HOUSE}/layers.rs"));
    assert_none(&missing_arrows(&page(), &source));
}

/// The page has a line such as `snowflake -> clock` for each room that imports others.
fn missing_arrows(page: &Document, source: &str) -> Vec<String> {
    let says: Vec<&str> = page.text.lines().map(str::trim).filter(|line| line.contains(" -> ")).collect();
    let is = arrows_of(source);
    let lacks = is.iter().filter(|arrow| !says.contains(&&***arrow)).map(|arrow| format!("the page lacks {arrow}"));
    let rooms: Vec<_> = is.iter().filter_map(|arrow| arrow.split(" -> ").next()).collect();
    let of_rooms = says.iter().filter(|line| rooms.iter().any(|room| line.starts_with(&format!("{room} -> "))));
    let unknown = of_rooms.filter(|line| !is.iter().any(|is| is == *line)).map(|line| format!("there is no {line}"));
    lacks.chain(unknown).map(|what| page.at(1, what)).collect()
}

fn arrows_of(source: &str) -> Vec<String> {
    let (_, rooms) = source.split_once("const ROOMS: ").expect("the rooms");
    let (_, rooms) = rooms.split_once("= [").expect("their array");
    let (rooms, _) = rooms.split_once("];").expect("its end");
    let names = |row: &str| row.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = rooms.lines().map(names).filter(|names| names.len() > 1);
    rows.map(|names| format!("{} -> {}", names[0], names[1..].join(", "))).collect()
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

#[test]
fn wrong_parts_and_arrows_are_found() {
    let source = "const PARTS: &str = \"\n 0  idgen clock     src/a.rs\n10  idgen file  src/b.rs\n\";";
    let page = |text: &str| Document::parse("x.md", text);
    let rows = "| 0 | `idgen clock` | `src/a.rs` |\n| 10 | `idgen file` | `src/b.rs` |\n";
    let table = format!("| order | part | file |\n| --- | --- | --- |\n{rows}");
    assert_eq!(parts_on(&page(&table)), parts_of(source));
    assert_ne!(parts_on(&page(&table.replace("| 10 |", "| 20 |"))), parts_of(source));

    let source = "const ROOMS: [(&str, &[&str]); 2] = [\n    (\"a\", &[]),\n    (\"b\", &[\"a\", \"c\"]),\n];";
    let count = |text: &str| missing_arrows(&page(text), source).len();
    assert_eq!([count("x\n    b -> a, c\n"), count("a\n"), count("    b -> a, c\n    b -> d\n")], [0, 1, 1]);
}
