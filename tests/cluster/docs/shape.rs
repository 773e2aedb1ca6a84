//! The shape of a page: one title, not too long, not too wide.

use crate::markdown::Document;
use crate::{assert_none, pages};

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
