//! The page of errors has every message that the code and its SQL raise, with its SQLSTATE, and no other. The page of
//! troubleshooting has every line that the code logs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use idgen_testkit::run;

use crate::markdown::{Document, Table, code_spans};
use crate::messages::{LOG, Message, VALUE, messages};
use crate::{assert_none, document, files, text_of};

/// The section of the messages that the code does not raise.
const OF_POSTGRESQL: &str = "Errors that PostgreSQL raises";

#[test]
fn page_of_errors_has_the_messages_of_the_code() {
    assert_none(&differences(&document("docs/errors.md"), &raised()));
}

#[test]
fn tables_of_errors_are_sorted_by_sqlstate() {
    assert_none(&unsorted(&document("docs/errors.md")));
}

#[test]
fn page_of_troubleshooting_has_the_lines_of_the_log() {
    let logged = of_code().filter(|(code, _)| code == LOG).map(|(_, line)| line).collect();
    assert_none(&differences_of_log(&document("docs/troubleshooting.md"), &logged));
}

fn of_code() -> impl Iterator<Item = Message> {
    files("src", "rs").into_iter().flat_map(|path| messages(&path, &text_of(&path)))
}

/// The SQLSTATE and the text of each message of the extension.
fn raised() -> BTreeSet<(String, String)> {
    let sqlstates = sqlstates();
    let of_code = of_code().filter(|(code, _)| code != LOG);
    let of_code = of_code.map(|(code, text)| (sqlstates.get(&code).unwrap_or_else(|| panic!("{code}")).clone(), text));
    // An upgrade script of a release may raise what the SQL of a room no longer does.
    let of_rooms = files("sql", "sql").into_iter().filter(|path| !path.starts_with("sql/idgen--"));
    of_code.chain(of_rooms.flat_map(|path| raised_in_sql(&text_of(&path)))).collect()
}

/// The same of each RAISE in PL/pgSQL.
fn raised_in_sql(source: &str) -> Vec<(String, String)> {
    let mut raised = Vec::new();
    for (level, sqlstate) in [("RAISE EXCEPTION '", None), ("RAISE WARNING '", Some("01000"))] {
        for statement in source.split(level).skip(1) {
            let statement = &statement[..statement.find(";\n").expect("the end of the statement")];
            let (text, rest) = statement.split_once('\'').expect("the end of the text");
            let given = rest.split_once("ERRCODE = '").map(|(_, rest)| &rest[..5]);
            let sqlstate = given.or(sqlstate).unwrap_or_else(|| panic!("no SQLSTATE: {statement}"));
            raised.push((sqlstate.to_owned(), text.replace('%', VALUE)));
        }
    }
    raised
}

/// Compares the table whose first column is "line" with the lines that the code logs.
fn differences_of_log(page: &Document, logged: &BTreeSet<String>) -> Vec<String> {
    let rows = page.tables_of(&["line"]).flat_map(|table| &table.rows);
    let says: BTreeSet<String> = rows.flat_map(|row| code_spans(&row[0])).map(str::to_owned).collect();
    let unknown = says.difference(logged).map(|line| page.at(1, format!("the code does not log {line}")));
    unknown.chain(logged.difference(&says).map(|line| page.at(1, format!("the page lacks {line}")))).collect()
}

/// The SQLSTATE of each error code, by the server's own list.
fn sqlstates() -> BTreeMap<String, String> {
    let pg_config = std::env::var_os("PG_CONFIG").unwrap_or_else(|| "pg_config".into());
    let directory = run(Command::new(pg_config).arg("--sharedir"));
    let list =
        std::fs::read_to_string(Path::new(directory.trim_end()).join("errcodes.txt")).expect("PostgreSQL has it");
    let words = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.filter(|words| words.len() >= 3).map(|words| (words[2].to_owned(), words[0].to_owned())).collect()
}

fn tables(page: &Document) -> impl Iterator<Item = &Table> {
    page.tables_of(&["SQLSTATE", "message"])
}

/// The messages that are missing, and those that the code does not raise.
fn differences(page: &Document, raised: &BTreeSet<(String, String)>) -> Vec<String> {
    let mut says = BTreeSet::new();
    let mut wrong = Vec::new();
    for table in tables(page).filter(|table| table.section != OF_POSTGRESQL) {
        for row in &table.rows {
            for message in code_spans(&row[1]) {
                let message = (row[0].clone(), message.to_owned());
                if !raised.contains(&message) {
                    wrong.push(page.at(table.line, format!("the code does not raise {} {}", message.0, message.1)));
                }
                says.insert(message);
            }
        }
    }
    let missing = raised.difference(&says);
    wrong.extend(missing.map(|(sqlstate, text)| page.at(1, format!("the page lacks {sqlstate} {text}"))));
    wrong
}

fn unsorted(page: &Document) -> Vec<String> {
    let is_sorted = |table: &&Table| table.rows.is_sorted_by_key(|row| row[0].clone());
    let unsorted = tables(page).filter(|table| !is_sorted(table));
    unsorted.map(|table| page.at(table.line, "the rows are not sorted by SQLSTATE")).collect()
}

#[test]
fn missing_unknown_and_unsorted_errors_are_found() {
    let raised =
        [("22023", "invalid name \"...\""), ("42704", "no ...")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    let page = |rows: &str, section: &str| {
        Document::parse("x.md", &format!("# Errors\n\n## {section}\n\n| SQLSTATE | message |\n| --- | --- |\n{rows}"))
    };
    let both = "| 22023 | `invalid name \"...\"` |\n| 42704 | `no ...` |\n";
    let found = |rows: &str| differences(&page(rows, "All"), &raised).len();
    assert_eq!(found(both), 0);
    assert_eq!(found("| 22023 | `invalid name \"...\"` |\n"), 1);
    assert_eq!(found(&format!("{both}| 42704 | `no x` |\n")), 1);
    assert_eq!(found("| 22003 | `invalid name \"...\"` |\n| 42704 | `no ...` |\n"), 2);
    let of_postgresql = format!("{both}\n## {OF_POSTGRESQL}\n\n| SQLSTATE | message |\n| --- | --- |\n| 1 | `x` |\n");
    assert_eq!(found(&of_postgresql), 0);
    assert_eq!(unsorted(&page(both, "All")), [""; 0]);
    assert_eq!(unsorted(&page("| 42704 | `no ...` |\n| 22023 | `no` |\n", "All")).len(), 1);
}

#[test]
fn messages_of_sql_are_found() {
    let source =
        "RAISE EXCEPTION 'no \"%\"', a\n  USING ERRCODE = '22023', HINT = 'b';\nRAISE WARNING 'c';\nRAISE x;\n";
    let expected = [("22023", "no \"...\""), ("01000", "c")];
    assert_eq!(raised_in_sql(source), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[test]
#[should_panic(expected = "no SQLSTATE")]
fn message_of_sql_without_sqlstate_is_reported() {
    raised_in_sql("RAISE EXCEPTION 'no';\n");
}

#[test]
fn missing_and_unknown_lines_of_the_log_are_found() {
    let found = |rows: &str| {
        let page = Document::parse("x.md", &format!("| line | meaning |\n| --- | --- |\n{rows}"));
        differences_of_log(&page, &["has ...".to_owned(), "is".to_owned()].into()).len()
    };
    assert_eq!(found("| `has ...` | |\n| `is` | |\n"), 0);
    assert_eq!([found("| `is` | |\n"), found("| `has ...` | |\n| `is` | |\n| `was` | |\n")], [1, 1]);
}
