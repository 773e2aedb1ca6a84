//! The shape of a page: one title, not too long, not too wide. A row of a table is on one page only: other pages link to it.
//! Figures of different versions are on the page of performance, so each section says which one it measured. The README
//! shows some of these figures.

use std::collections::BTreeMap;

use crate::markdown::Document;
use crate::{assert_none, document, pages};

/// A reader reads a page to its end.
const MOST_LINES: usize = 499;
const MOST_LINES_OF_README: usize = 250;
const MOST_CHARACTERS: usize = 120;

#[test]
fn pages_are_short_and_begin_with_their_only_title() {
    assert_none(&pages::all().iter().flat_map(differences).collect::<Vec<_>>());
}

fn differences(page: &Document) -> Vec<String> {
    let mut wrong = Vec::new();
    let most = if page.path == "README.md" { MOST_LINES_OF_README } else { MOST_LINES };
    let lines = page.text.lines().count();
    if lines > most {
        wrong.push(page.at(lines, format!("the page has {lines} lines, above {most}")));
    }
    for (index, line) in page.text.lines().enumerate() {
        // A row of a table cannot be broken, and neither can a line of postgresql.conf.
        let is_whole = ["|", "idgen.coordinator = "].iter().any(|begin| line.starts_with(begin));
        if line.chars().count() > MOST_CHARACTERS && !is_whole {
            wrong.push(page.at(index + 1, format!("the line has more than {MOST_CHARACTERS} characters")));
        }
    }
    let titles: Vec<usize> = page.headings.iter().filter(|heading| heading.level == 1).map(|h| h.line).collect();
    if titles != [1] {
        wrong.push(page.at(1, format!("titles in lines {titles:?}, and not one in line 1")));
    }
    wrong
}

#[test]
fn long_and_wide_pages_and_those_without_a_title_are_found() {
    let page = |path: &str, text: &str| differences(&Document::parse(path, text)).len();
    let lines = |count: usize| format!("# a\n{}", "b\n".repeat(count - 1));
    for (path, most) in [("README.md", MOST_LINES_OF_README), ("docs/x.md", MOST_LINES)] {
        assert_eq!((page(path, &lines(most)), page(path, &lines(most + 1))), (0, 1), "{path}");
    }
    let wide = "é".repeat(MOST_CHARACTERS);
    assert_eq!(page("x.md", &format!("# a\n{wide}\n| {wide} |\nidgen.coordinator = '{wide}'\n")), 0);
    assert_eq!(page("x.md", &format!("# a\n{wide}é\n")), 1);
    assert_eq!([page("x.md", "## a\n"), page("x.md", "\n# a\n"), page("x.md", "# a\n# b\n")], [1, 1, 1]);
}

#[test]
fn no_row_of_a_table_is_on_two_pages() {
    assert_none(&repeated_rows(&pages::all()));
}

/// Rows with the same header and cells on different pages.
fn repeated_rows(pages: &[Document]) -> Vec<String> {
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
        repeated_rows(&pages).len()
    };
    assert_eq!(count(&[("x.md", &first), ("y.md", &other)]), 0);
    assert_eq!(count(&[("x.md", &first), ("y.md", &row)]), 1);
    assert_eq!(count(&[("x.md", &first), ("y.md", &same)]), 2);
    assert_eq!(count(&[("x.md", &format!("{first}\n{same}"))]), 0);
}

#[test]
fn sections_with_figures_name_the_version_they_measured() {
    assert_none(&unversioned(&document("docs/performance.md")));
}

/// The tables that no `idgen 1.2.3` precedes in their section of the second level.
fn unversioned(page: &Document) -> Vec<String> {
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
    let found = |text: &str| unversioned(&Document::parse("x.md", text)).len();
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
