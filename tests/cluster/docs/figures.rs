//! The page of performance: figures of different versions are in one page, so each section says which one it measured.
//! The README shows some of these figures.

use crate::markdown::Document;
use crate::{assert_none, document};

#[test]
fn sections_with_figures_name_the_version_they_measured() {
    assert_none(&differences(&document("docs/performance.md")));
}

/// The tables that no `idgen 1.2.3` precedes in their section of the second level.
fn differences(page: &Document) -> Vec<String> {
    let lines: Vec<&str> = page.text.lines().collect();
    let names_version =
        |line: &&str| line.split("idgen ").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let is_named = |line: usize| {
        let begin = page.headings.iter().rfind(|heading| heading.level == 2 && heading.line < line);
        lines[begin.map_or(0, |heading| heading.line)..line].iter().any(names_version)
    };
    let unnamed = page.tables.iter().filter(|table| !is_named(table.line));
    unnamed.map(|table| page.at(table.line, "no version of idgen before the figures of this section")).collect()
}

#[test]
fn figures_without_a_version_are_found() {
    let found = |text: &str| differences(&Document::parse("x.md", text)).len();
    let table = "\n\n| a |\n| - |\n| 1 |\n";
    assert_eq!(found(&format!("# a\n## b\nMeasured with idgen 0.5.0.{table}### c{table}")), 0);
    assert_eq!(found(&format!("# a\n## b\nMeasured with idgen 0.5.0.{table}## c\nidgen is fast{table}")), 1);
}

#[test]
fn figures_of_the_readme_are_those_of_the_page() {
    assert_none(&unknown(&document("README.md"), &document("docs/performance.md")));
}

/// The nanoseconds and megabytes in a text that are in no cell of the page.
fn unknown(text: &Document, page: &Document) -> Vec<String> {
    let cells: Vec<&String> = page.tables.iter().flat_map(|table| table.rows.iter().flatten()).collect();
    let words: Vec<&str> = text.text.split_whitespace().collect();
    let figures = words.windows(2).filter(|pair| ["ns", "MB"].contains(&pair[1].trim_end_matches([',', '.'])));
    let figures = figures.map(|pair| pair[0].replace(',', ""));
    figures
        .filter(|figure| !cells.contains(&figure))
        .map(|figure| text.at(1, format!("{} has no figure {figure}", page.path)))
        .collect()
}

#[test]
fn figures_that_the_page_lacks_are_found() {
    let page = Document::parse("y.md", "| a |\n| - |\n| 1468 |\n| 22.5 |\n");
    let found = |text: &str| unknown(&Document::parse("x.md", text), &page).len();
    assert_eq!([found("It takes 1,468 ns, and\n22.5 MB."), found("1,469 ns and 22 MB")], [0, 2]);
}
