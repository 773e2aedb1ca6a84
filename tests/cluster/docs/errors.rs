//! The page of errors has every message that the code and its SQL raise, with its SQLSTATE, and no other. The page of
//! troubleshooting has every line that the code logs, and two pages what PostgreSQL logs without the library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use idgen_testkit::{Cluster, Stop, run};

use crate::markdown::{Document, Table, code_spans};
use crate::messages::{LOG, Message, VALUE, messages};
use crate::{assert_none, assert_same, document, files, text_of};

/// The section of the messages that the code does not raise.
const OF_POSTGRESQL: &str = "Errors that PostgreSQL raises";

#[test]
fn page_of_errors_has_the_messages_of_the_code() {
    let page = document("docs/errors.md");
    assert_same(&page, &said(&page), &raised());
}

#[test]
fn tables_of_errors_are_sorted_by_sqlstate() {
    let page = document("docs/errors.md");
    for table in tables(&page) {
        assert!(table.rows.is_sorted_by_key(|row| row[0].clone()), "{}", page.at(table.line, "not sorted by SQLSTATE"));
    }
}

/// The table whose first column is "line" has the lines that the code logs.
#[test]
fn page_of_troubleshooting_has_the_lines_of_the_log() {
    let page = document("docs/troubleshooting.md");
    let rows = page.tables_of(&["line"]).flat_map(|table| &table.rows);
    let said = rows.flat_map(|row| code_spans(&row[0])).map(str::to_owned).collect();
    assert_same(&page, &said, &of_code().filter(|(code, _)| code == LOG).map(|(_, line)| line).collect());
}

fn of_code() -> impl Iterator<Item = Message> {
    files("src", "rs").into_iter().flat_map(|path| messages(&path, &text_of(&path)))
}

/// The SQLSTATE and the text of each message of the extension.
fn raised() -> BTreeSet<String> {
    let sqlstates = sqlstates();
    let of_code = of_code().filter(|(code, _)| code != LOG);
    let of_code = of_code.map(|(code, text)| (sqlstates.get(&code).unwrap_or_else(|| panic!("{code}")).clone(), text));
    // An upgrade script of a release may raise what the SQL of a room no longer does.
    let of_rooms = files("sql", "sql").into_iter().filter(|path| !path.starts_with("sql/idgen--"));
    let all = of_code.chain(of_rooms.flat_map(|path| raised_in_sql(&text_of(&path))));
    all.map(|(sqlstate, text)| format!("{sqlstate} {text}")).collect()
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

/// The same of each message in the tables, but for those of PostgreSQL.
fn said(page: &Document) -> BTreeSet<String> {
    let of_ours = tables(page).filter(|table| table.section != OF_POSTGRESQL).flat_map(|table| &table.rows);
    of_ours.flat_map(|row| code_spans(&row[1]).map(|message| format!("{} {message}", row[0]))).collect()
}

#[test]
fn messages_are_read_from_tables_without_those_of_postgresql() {
    let table = "| SQLSTATE | message |\n| --- | --- |\n";
    let text = format!("## All\n\n{table}| 1 | `a` or `b` |\n\n## {OF_POSTGRESQL}\n\n{table}| 2 | `x` |\n");
    assert_eq!(said(&Document::parse("x.md", &text)), ["1 a", "1 b"].map(str::to_owned).into());
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

/// PostgreSQL logs one message before the first id of the server, another one after it.
#[test]
fn pages_quote_the_messages_of_a_missing_library_smoke() {
    let cluster = Cluster::builder().start_with_extension();
    let before = refusal(&cluster);
    cluster.execute("SELECT snowflake_next()");
    let after = refusal(&cluster);
    assert_ne!(before, after, "the directory of the high-water file makes a difference");
    for path in ["docs/quickstart.md", "docs/troubleshooting.md"] {
        let page = document(path);
        let lacks = |message: &&String| !page.text.contains(&format!("`{message}`"));
        let wrong = [&before, &after].into_iter().filter(lacks);
        assert_none(&wrong.map(|message| page.at(1, format!("the page lacks {message}"))).collect::<Vec<_>>());
    }
}

/// Starts the server once where it does not find the library, and returns what it logs.
fn refusal(cluster: &Cluster) -> String {
    cluster.stop(Stop::Fast);
    cluster.set_conf("dynamic_library_path", "/nonexistent");
    let report = cluster.try_start().expect_err("there is no library");
    cluster.set_conf("dynamic_library_path", "$libdir");
    cluster.start_again();
    let fatal = report.lines().find_map(|line| line.split_once("FATAL:  "));
    fatal.unwrap_or_else(|| panic!("no reason: {report}")).1.to_owned()
}
