//! Tables: a row is on one page only. Other pages link to it.

use std::collections::BTreeMap;

use crate::markdown::Document;
use crate::{assert_none, pages};

#[test]
fn no_row_of_a_table_is_on_two_pages() {
    assert_none(&differences(&pages::all()));
}

/// Rows with the same header and cells on different pages.
fn differences(pages: &[Document]) -> Vec<String> {
    let mut first: BTreeMap<(&[String], &[String]), &Document> = BTreeMap::new();
    let mut wrong = Vec::new();
    for page in pages {
        for table in &page.tables {
            for row in &table.rows {
                let before = *first.entry((&table.header, row)).or_insert(page);
                if before.path != page.path {
                    wrong.push(
                        page.at(table.line, format!("{} has this row too: | {} |", before.path, row.join(" | "))),
                    );
                }
            }
        }
    }
    wrong
}

#[test]
fn repeated_rows_are_found() {
    let table = |header: &str, row: &str| format!("| {header} | b |\n| --- | --- |\n| {row} | d |\n| e | f |\n");
    let [first, same, row, other] =
        [("a", "c"), ("a", "c"), ("a", "g"), ("h", "c")].map(|(header, row)| table(header, row));
    let count = |pages: &[(&str, &str)]| {
        let pages: Vec<_> = pages.iter().map(|(path, text)| Document::parse(path, text)).collect();
        differences(&pages).len()
    };
    assert_eq!(count(&[("x.md", &first), ("y.md", &other)]), 0);
    assert_eq!(count(&[("x.md", &first), ("y.md", &row)]), 1);
    assert_eq!(count(&[("x.md", &first), ("y.md", &same)]), 2);
    assert_eq!(count(&[("x.md", &format!("{first}\n{same}"))]), 0);
}
