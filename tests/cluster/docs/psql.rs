//! The blocks of a page that psql runs, and what they show.
//!
//! psql runs every block fenced `sql`, in order, in one new database, and those fenced `sql coordinator` in another one.
//! A block must succeed without a notice, or fail with the SQLSTATE of its first line `-- fails: SQLSTATE`. A block fenced
//! `text` right after it must equal the output or the error. Of a block fenced `text example` only the columns and the
//! number of rows must match.

use std::io::Write;
use std::process::Stdio;

use idgen_testkit::Cluster;

use crate::markdown::{Block, Document};

const FAILS: &str = "-- fails: ";

/// The output of psql for a block.
pub struct Outcome {
    success: bool,
    output: String,
    /// Has the SQLSTATE after the severity.
    errors: String,
}

/// Runs every `sql` block and returns the differences.
pub fn differences(page: &Document, mut run: impl FnMut(&Block) -> Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, block) in page.blocks.iter().enumerate().filter(|(_, block)| block.is_sql()) {
        let next = page.blocks.get(index + 1).filter(|next| next.is_adjacent);
        let shown = next.filter(|next| ["text", "text example"].contains(&&*next.info));
        if let Err(what) = compare(block, shown, &run(block)) {
            wrong.push(page.at(block.line, what));
        }
    }
    wrong
}

fn compare(block: &Block, shown: Option<&Block>, outcome: &Outcome) -> Result<(), String> {
    let first_line = block.text.lines().next().unwrap_or_default();
    let printed = match first_line.strip_prefix(FAILS) {
        Some(sqlstate) => {
            let code = format!("ERROR:  {}: ", sqlstate.trim());
            if outcome.success || !outcome.errors.contains(&code) {
                return Err(format!("expected {code:?}, got {}{}", outcome.output, outcome.errors));
            }
            // psql prints this line only at higher verbosity.
            let lines = outcome.errors.lines().filter(|line| !line.starts_with("LOCATION:"));
            lines.collect::<Vec<_>>().join("\n").replace(&code, "ERROR:  ")
        }
        None if !outcome.success || !outcome.errors.is_empty() => return Err(outcome.errors.clone()),
        None => outcome.output.clone(),
    };
    let (printed, shown_lines) = (trimmed(&printed), shown.map(|shown| trimmed(&shown.text)));
    let same = match (shown, &shown_lines) {
        (Some(shown), Some(lines)) if shown.info == "text example" => {
            columns(lines) == columns(&printed) && lines.last() == printed.last()
        }
        (_, Some(lines)) => *lines == printed,
        (_, None) => true,
    };
    if same { Ok(()) } else { Err(format!("psql printed\n{}", printed.join("\n"))) }
}

fn trimmed(text: &str) -> Vec<String> {
    text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
}

fn columns(lines: &[String]) -> Vec<&str> {
    lines.first().map_or(Vec::new(), |line| line.split('|').map(str::trim).collect())
}

pub fn run(cluster: &Cluster, database: &str, sql: &str) -> Outcome {
    let mut command = cluster.program("psql");
    command.args(["-Xq", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-d", database]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("psql is installed");
    // Dropped at the end of the statement, which closes the input.
    child.stdin.take().expect("a pipe").write_all(sql.as_bytes()).expect("psql reads");
    let output = child.wait_with_output().expect("psql exits");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Outcome { success: output.status.success(), output: text(output.stdout), errors: text(output.stderr) }
}

#[test]
fn comparison_with_psql_detects_differences() {
    let outcome = |success, output: &str, errors: &str| {
        let (output, errors) = (output.to_owned(), errors.to_owned());
        move |_: &Block| Outcome { success, output: output.clone(), errors: errors.clone() }
    };
    let check = |markdown: &str, run: &dyn Fn(&Block) -> Outcome| differences(&Document::parse("x.md", markdown), run);
    let plain = "```sql\nSELECT 1 AS x;\n```\n";
    let failing = "```sql\n-- fails: 22023\nSELECT 1;\n```\n\n```text\nERROR:  no\n```\n";
    let shown = format!("{plain}\n```text\n x\n---\n 1\n(1 row)\n```\n");
    let example = format!("{plain}\n```text example\n x\n---\n 7\n(1 row)\n```\n");
    let prints = |x: &str| outcome(true, &format!(" x \n---\n {x}\n(1 row)\n\n"), "");

    let at_coordinator = shown.replace("sql", "sql coordinator");

    for (markdown, ok) in
        [(plain, true), (&*shown, true), (&*at_coordinator, true), (&*example, true), (failing, false)]
    {
        assert_eq!(check(markdown, &prints("1")).is_empty(), ok, "{markdown}");
    }
    for (markdown, ok) in [(&*shown, false), (&*at_coordinator, false), (&*example, true)] {
        assert_eq!(check(markdown, &prints("2")).is_empty(), ok, "{markdown}");
    }
    assert!(!check(&example, &outcome(true, " y\n---\n 1\n(1 row)\n", "")).is_empty());
    assert!(!check(&example, &outcome(true, " x\n---\n(0 rows)\n", "")).is_empty());
    assert!(!check(plain, &outcome(false, "", "ERROR:  22023: no\n")).is_empty());
    assert!(!check(plain, &outcome(true, "", "WARNING:  01000: hm\n")).is_empty());
    assert!(check(failing, &outcome(false, "", "ERROR:  22023: no\nLOCATION:  idgen, x.rs:1\n")).is_empty());
    assert!(!check(failing, &outcome(false, "", "ERROR:  22023: yes\n")).is_empty());
    assert!(!check(failing, &outcome(false, "", "ERROR:  22003: no\n")).is_empty());
}
