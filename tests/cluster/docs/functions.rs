//! The pages of `docs/functions` have a heading for each function of the extension. Below it, the lines between two
//! comments come from the catalog: `make reference` writes them, the index in `reference.md` and the tables of `catalog.rs`.
//! The rest is written by hand: details, errors and an example.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use idgen_testkit::Cluster;
use postgres::{Client, Row};

use crate::catalog::{self, EXTENSION};
use crate::markdown::{Document, bare};
use crate::{assert_none, document, root};

const FOLDER: &str = "docs/functions";
const BEGIN: &str = "<!-- catalog -->";
const END: &str = "<!-- end -->";
const WIDTH: usize = 120;

#[test]
fn reference_is_that_of_the_catalog() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    let (described, tables) = (described(&mut client), catalog::tables(&mut client));
    let (pages, with_tables) = (pages(), catalog::PAGES.map(document));
    catalog::assert_all_in(&tables, &with_tables);
    let names: BTreeSet<&str> = described.keys().map(String::as_str).collect();
    let mut wrong = differences(&pages, &names, &document("docs/errors.md"));
    let index = BTreeMap::from([("Functions".to_owned(), index(&pages))]);
    let made = pages.iter().map(|page| (page, rewritten(&page.text, &described)));
    let with_index = |page: &Document| Document::parse(&page.path, &rewritten(&page.text, &index));
    let made_tables = with_tables.iter().map(|page| (page, catalog::rewritten(&with_index(page), &tables)));
    for (page, made) in made.chain(made_tables) {
        if std::env::var_os("IDGEN_WRITE_REFERENCE").is_some() {
            std::fs::write(root().join(&page.path), made).expect("the page is writable");
        } else if made != page.text {
            let line = made.lines().zip(page.text.lines()).take_while(|(made, is)| made == is).count() + 1;
            wrong.push(page.at(line, "not what the catalog says: run `make reference`"));
        }
    }
    assert_none(&wrong);
}

/// In the order of the table of contents.
fn pages() -> Vec<Document> {
    let links = document("docs/SUMMARY.md").links;
    let targets = links.iter().map(|link| format!("docs/{}", link.target));
    targets.filter(|path| path.starts_with(FOLDER)).map(|path| document(&path)).collect()
}

/// What the catalog says of each function, by its name.
fn described(client: &mut Client) -> BTreeMap<String, String> {
    let sql = format!(
        "SELECT CASE nspname WHEN 'public' THEN '' ELSE nspname || '.' END || proname,
                string_to_array(regexp_replace(arguments, '::[a-z ]+', '', 'g'), ', '),
                coalesce(' → ' || pg_get_function_result(p.oid), ''),
                obj_description(p.oid, 'pg_proc'),
                CASE provolatile WHEN 'v' THEN 'Volatile' WHEN 's' THEN 'Stable' ELSE 'Immutable' END,
                CASE proparallel WHEN 'u' THEN 'unsafe' WHEN 'r' THEN 'restricted' ELSE 'safe' END,
                proisstrict AND pronargs > 0, has_function_privilege('public', p.oid, 'EXECUTE')
         FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace JOIN {EXTENSION} ON d.objid = p.oid,
              pg_get_function_arguments(p.oid) AS arguments
         WHERE d.classid = 'pg_proc'::regclass ORDER BY 1, pronargs, arguments"
    );
    let mut described = BTreeMap::<String, String>::new();
    let mut privileges = BTreeMap::new();
    for row in client.query(&sql, &[]).expect("the catalog") {
        let name: String = row.get(0);
        let is_public: bool = row.get(7);
        let among = privileges.insert(name.clone(), is_public);
        assert!(among.is_none_or(|among| among == is_public), "{name}: one privilege for all its signatures");
        *described.entry(name).or_default() += &signature(&row);
    }
    for (name, text) in &mut described {
        *text += match privileges[name] {
            true => "All roles may execute it.\n",
            false => "Superusers may execute it, and roles to which they grant that.\n",
        };
    }
    described
}

/// A function of the catalog, with its comment.
fn signature(row: &Row) -> String {
    let (name, arguments, result): (String, Vec<String>, String) = (row.get(0), row.get(1), row.get(2));
    let comment: String = row.get(3);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).filter(|argument| !argument.is_empty()).collect();
    let bare = |argument: &&str| argument.trim_start_matches("IN").trim_start_matches("OUT ").trim_start().to_owned();
    let inputs: Vec<String> = arguments.iter().filter(|argument| !argument.starts_with("OUT ")).map(bare).collect();
    // INOUT is both.
    let is_output = |argument: &&&str| argument.starts_with("OUT ") || argument.starts_with("INOUT ");
    let outputs: Vec<String> = arguments.iter().filter(is_output).map(bare).collect();
    let returns = match result.strip_suffix("record") {
        Some(set) => format!("{set}{}", list(&outputs)),
        None => result,
    };
    let (first, rest) = comment.split_at(1);
    let (volatility, parallel): (String, String) = (row.get(4), row.get(5));
    let null = if row.get(6) { " NULL if an argument is NULL." } else { "" };
    let about = format!("{}{rest}. {volatility}, parallel {parallel}.{null}", first.to_uppercase());
    format!("```text signature\n{name}{}{returns}\n```\n\n{}\n", list(&inputs), filled(&about))
}

/// Arguments or columns: one in a line if a line has no room for all of them.
fn list(items: &[String]) -> String {
    match items.join(", ") {
        line if line.len() <= 44 => format!("({line})"),
        _ => format!("(\n    {}\n)", items.join(",\n    ")),
    }
}

/// A paragraph in lines that are not too wide.
fn filled(text: &str) -> String {
    let mut filled = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        let is_first = width == 0;
        width += word.chars().count() + 1;
        let is_next = width > WIDTH + 1;
        if is_next {
            width = word.chars().count() + 1;
        }
        write!(
            filled,
            "{}{word}",
            if is_next {
                "\n"
            } else if is_first {
                ""
            } else {
                " "
            }
        )
        .expect("a string");
    }
    filled + "\n"
}

/// A page with the lines that belong between its comments, by the heading above them.
fn rewritten(text: &str, described: &BTreeMap<String, String>) -> String {
    let mut made = String::new();
    let mut lines = text.lines();
    let mut heading = "";
    while let Some(line) = lines.next() {
        made += line;
        made.push('\n');
        heading = line.strip_prefix("## ").unwrap_or(heading);
        if line == BEGIN {
            let end = lines.find(|line| *line == END).expect("an end");
            write!(made, "\n{}\n{end}\n", described.get(heading).map_or("", String::as_str)).expect("a string");
        }
    }
    made
}

/// The pages, each with its functions.
fn index(pages: &[Document]) -> String {
    let line = |page: &Document| {
        let path = page.path.strip_prefix("docs/").expect("a page of the book");
        let [title, functions @ ..] = &page.headings[..] else { panic!("{path} has a title") };
        let links = functions.iter().map(|heading| format!("[`{}`]({path}#{})", heading.text, heading.slug));
        filled(&format!("**[{}]({path})**: {}", title.text, links.collect::<Vec<_>>().join(", ")))
    };
    pages.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Each function has one section, with the lines of the catalog, an example and its errors, which the page of errors has.
fn differences(pages: &[Document], names: &BTreeSet<&str>, errors: &Document) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut found = BTreeSet::new();
    let known: BTreeSet<&str> =
        errors.tables_of(&["SQLSTATE"]).flat_map(|table| &table.rows).map(|row| bare(&row[0])).collect();
    for page in pages {
        let lines: Vec<&str> = page.text.lines().collect();
        let sections = page.headings.iter().skip(1).map(|heading| heading.line);
        let ends = sections.clone().skip(1).chain([lines.len() + 1]);
        for ((heading, from), to) in page.headings.iter().skip(1).zip(sections).zip(ends) {
            let (name, section) = (&*heading.text, &lines[from..to - 1]);
            let mut expect = |is_right: bool, what: &str| {
                if !is_right {
                    wrong.push(page.at(heading.line, format!("{name} {what}")));
                }
            };
            expect(names.contains(name), "does not exist");
            expect(found.insert(name), "has a second section");
            expect(section.iter().filter(|line| **line == BEGIN).count() == 1, "lacks the lines of the catalog");
            if section.iter().any(|line| line.starts_with("Do not call it")) {
                continue;
            }
            let blocks = page.blocks.iter().filter(|block| (from..to).contains(&block.line) && block.is_sql());
            expect(blocks.clone().any(|block| block.text.contains(&format!("{name}("))), "lacks an example");
            let errors =
                || section.iter().skip_while(|line| !line.starts_with("Errors: ")).take_while(|line| !line.is_empty());
            expect(errors().count() > 0, "lacks a paragraph \"Errors: \"");
            let words = errors().flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()));
            let codes = words
                .filter(|word| word.len() == 5 && (word.starts_with(|c: char| c.is_ascii_digit()) || *word == "XX001"));
            codes.filter(|code| !known.contains(code)).for_each(|code| expect(false, &format!("raises no {code}")));
        }
    }
    wrong.extend(names.difference(&found).map(|name| format!("{FOLDER}: no page has the heading {name}")));
    wrong
}

#[test]
fn wrong_pages_of_functions_are_found() {
    let errors = Document::parse("e.md", "| SQLSTATE | message |\n| - | - |\n| 22023 | a |\n");
    let names = BTreeSet::from(["f", "g"]);
    let found = |text: &str| differences(&[Document::parse("x.md", text)], &names, &errors);
    let g = format!("## g\n{BEGIN}\n{END}\nDo not call it.\n");
    let page = format!("# a\n{g}## f\n{BEGIN}\n{END}\nErrors: 22023.\n\n```sql\nSELECT f();\n```\n");
    assert_eq!(found(&page), [""; 0]);
    for (old, new) in [
        (&*g, ""),
        ("## g", "## h\n## g"),
        ("# a\n", &format!("# a\n{g}")),
        ("## f\n<!-- catalog -->", "## f"),
        ("22023", "22004"),
        ("Errors: 22023", "It raises 22023"),
        ("SELECT f()", "SELECT g()"),
    ] {
        assert!(!found(&page.replacen(old, new, 1)).is_empty(), "{old} -> {new}");
    }
    let described = BTreeMap::from([("f".to_owned(), "new\n".to_owned())]);
    let text = format!("## f\n{BEGIN}\nold\n{END}\nkept\n");
    let made = rewritten(&text, &described);
    assert_eq!(made, format!("## f\n{BEGIN}\n\nnew\n\n{END}\nkept\n"));
    assert_eq!(rewritten(&made, &described), made);
}
