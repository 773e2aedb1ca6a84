//! The figures of docs/performance.md. A comment says which table of which subject follows, or how it was measured:
//!
//! ```text
//! <!-- table: locks / Acquire and release in a loop -->
//! <!-- measured: locks -->
//! ```
//!
//! `make chart` writes the lines between such a comment and `<!-- end -->`.

use crate::data::{Data, Row, Table, TableName};
use idgen_bench::three_digits;
use std::fmt::Write;

const END: &str = "<!-- end -->";

/// A comment that figures follow.
enum Marker<'a> {
    Table { subject: &'a str, title: &'a str },
    Measured { subject: &'a str },
}

impl<'a> Marker<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (kind, of) = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?.split_once(": ")?;
        match kind {
            "table" => of.split_once(" / ").map(|(subject, title)| Marker::Table { subject, title }),
            "measured" => Some(Marker::Measured { subject: of }),
            _ => None,
        }
    }

    fn figures(&self, data: &Data) -> Result<String, String> {
        match self {
            Marker::Table { subject, title } => Ok(markdown(data.table(subject, title)?)),
            Marker::Measured { subject } => {
                let machine = &data.subject(subject)?.machine;
                let (idgen, postgresql, load) = (&machine.idgen, machine.postgresql(), &machine.load_before);
                Ok(format!(
                    "Measured with `make bench BENCH={subject}`, idgen {idgen}, PostgreSQL {postgresql}, load {load}.\n"
                ))
            }
        }
    }
}

/// The tables that a page shows.
pub fn named(page: &str) -> impl Iterator<Item = TableName> {
    page.lines().filter_map(|line| match Marker::parse(line)? {
        Marker::Table { subject, title } => Some((subject.to_owned(), title.to_owned())),
        Marker::Measured { .. } => None,
    })
}

/// The page with the figures of the data.
pub fn rewritten(page: &str, data: &Data) -> Result<String, String> {
    let mut text = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text += line;
        text.push('\n');
        if let Some(marker) = Marker::parse(line) {
            let is_closed = lines.by_ref().take_while(|line| Marker::parse(line).is_none()).any(|line| line == END);
            if !is_closed {
                return Err(format!("{END} is missing after {line}"));
            }
            write!(text, "\n{}\n{END}\n", marker.figures(data)?).expect("writing to a string does not fail");
        }
    }
    Ok(text)
}

fn markdown(table: &Table) -> String {
    let cells = |row: &Row| row.cells.iter().map(|cell| three_digits(cell.median)).collect::<Vec<_>>().join(" | ");
    let rows: String = table.rows.iter().map(|row| format!("| {} | {} |\n", row.name, cells(row))).collect();
    let rule = " --- |".repeat(table.columns.len() + 1);
    format!("| {} | {} |\n|{rule}\n{rows}", table.title, table.columns.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::{named, rewritten};
    use crate::data::tests::data_of;

    const PAGE: &str = "a\n<!-- measured: s -->\nold\n<!-- end -->\n<!-- table: s / t -->\nold\n\n<!-- end -->\nb\n";

    #[test]
    fn figures_replace_what_is_between_the_comments() {
        let data = data_of("s", "t", "c", &[("x", 1.5), ("y", 0.0)]);
        let table = "\n| t | c |\n| --- | --- |\n| x | 1.50 |\n| y | 0 |\n\n";
        let measured = "\nMeasured with `make bench BENCH=s`, idgen 1, PostgreSQL 15.1, load 0.5.\n\n";
        let expected = PAGE.replacen("old\n", measured, 1).replace("old\n\n", table);
        let written = rewritten(PAGE, &data).unwrap();
        assert_eq!(written, expected);
        assert_eq!(rewritten(&written, &data).unwrap(), expected, "figures that are in place stay");
        assert_eq!(named(PAGE).collect::<Vec<_>>(), [("s".to_owned(), "t".to_owned())]);
    }

    #[test]
    fn unknown_table_and_missing_end_are_refused() {
        let data = data_of("s", "t", "c", &[]);
        let error = rewritten(&PAGE.replace("s / t", "s / u"), &data).unwrap_err();
        assert!(error.contains("\"u\""), "{error}");
        assert!(rewritten(&PAGE.replace("old\n\n<!-- end -->\n", ""), &data).is_err());
        assert!(rewritten(&PAGE.replacen("old\n<!-- end -->\n", "", 1), &data).is_err());
    }
}
