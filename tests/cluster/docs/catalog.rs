//! The tables of views, settings and presets: `make reference` writes their cells from the catalog. The page keeps the
//! prose of each row.

use std::collections::BTreeMap;

use postgres::Client;

use crate::markdown::{Document, Table};

/// The members of the extension, `d`, as a part of FROM.
pub const EXTENSION: &str =
    "(pg_depend d JOIN pg_extension e ON d.deptype = 'e' AND d.refobjid = e.oid AND extname = 'idgen')";

/// The pages that have these tables.
pub const PAGES: [&str; 3] = ["docs/configuration.md", "docs/reference.md", "docs/snowflake.md"];

/// The rows of each table. Prose is `None`.
pub type Tables = BTreeMap<String, Vec<Vec<Option<String>>>>;

pub fn tables(client: &mut Client) -> Tables {
    let refusal = client.query("SELECT * FROM snowflake_layout('?')", &[]).expect_err("no such preset");
    let hint = refusal.as_db_error().and_then(|error| error.hint()).expect("a hint");
    let (_, presets) = hint.split_once("preset (").expect("the names of the presets");
    let (presets, _) = presets.split_once(')').expect("the closing parenthesis");
    let sql = format!(
        "SELECT 'setting', 0::bigint,
                ARRAY['`' || name || '`', vartype, coalesce('`' || nullif(current_setting(name), '') || '`', 'empty'),
                      CASE WHEN vartype = 'integer' THEN concat_ws(' ', min_val, 'to', max_val, nullif(unit, '')) END,
                      CASE context WHEN 'postmaster' THEN 'restart' WHEN 'sighup' THEN 'reload'
                                   WHEN 'user' THEN 'at once' END, NULL]
         FROM pg_settings WHERE name LIKE 'idgen.%' AND source = 'default'
         UNION ALL
         SELECT CASE relkind WHEN 'v' THEN 'The view ' ELSE 'The table ' END || c.oid::regclass, attnum,
                ARRAY['`' || attname || '`', format_type(atttypid, NULL), NULL]
         FROM pg_class c JOIN {EXTENSION} ON d.objid = c.oid JOIN pg_attribute ON attrelid = c.oid
         WHERE d.classid = 'pg_class'::regclass AND relkind IN ('r', 'v') AND attnum > 0
         UNION ALL
         SELECT 'preset', n,
                ARRAY['`' || name || '`', '`' || spec || '`', workers::text, ids_per_second::text,
                      to_char(ends_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')]
         FROM unnest(string_to_array('{presets}', ', ')) WITH ORDINALITY AS p (name, n), snowflake_layout(p.name)
         ORDER BY 1, 2"
    );
    let mut tables = Tables::new();
    for row in client.query(&sql, &[]).expect("the catalog") {
        tables.entry(row.get(0)).or_default().push(row.get(2));
    }
    tables
}

/// The name of a table in [`Tables`]: the heading above one of columns, else its own first heading.
fn name_of(table: &Table) -> Option<&str> {
    match &*table.header[0] {
        "column" => Some(&table.section),
        name @ ("setting" | "preset") => Some(name),
        _ => None,
    }
}

/// Fails unless the pages have each of these tables once, and no others.
pub fn assert_all_in(tables: &Tables, pages: &[Document]) {
    let mut names: Vec<_> = pages.iter().flat_map(|page| &page.tables).filter_map(name_of).collect();
    names.sort_unstable();
    assert_eq!(names, tables.keys().collect::<Vec<_>>(), "the tables of {PAGES:?}");
}

/// The page with the cells of the catalog. The order of settings is that of the page.
pub fn rewritten(page: &Document, tables: &Tables) -> String {
    let mut lines: Vec<String> = page.text.lines().map(str::to_owned).collect();
    // From below, so that the numbers of lines stay true.
    for table in page.tables.iter().rev() {
        let Some(rows) = name_of(table).and_then(|name| tables.get(name)) else { continue };
        let place = |row: &[Option<String>]| table.rows.iter().position(|is| row[0].as_ref() == Some(&is[0]));
        let mut rows = rows.clone();
        if table.header[0] == "setting" {
            rows.sort_by_key(|row| place(row).unwrap_or(usize::MAX));
        }
        let made = rows.iter().map(|row| {
            let prose = |column| place(row).and_then(|at| table.rows[at].get(column)).cloned().unwrap_or_default();
            let cells = row.iter().enumerate().map(|(column, cell)| cell.clone().unwrap_or_else(|| prose(column)));
            let cells = cells.map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>();
            format!("| {} |", cells.join(" | "))
        });
        let begin = table.line + 1;
        lines.splice(begin..begin + table.rows.len(), made.collect::<Vec<_>>());
    }
    lines.join("\n") + "\n"
}

#[test]
fn cells_of_tables_are_rewritten_and_their_prose_is_kept() {
    let row = |name: &str, cell: &str| vec![Some(name.to_owned()), Some(cell.to_owned()), None];
    let tables = Tables::from([
        ("The view v".to_owned(), vec![row("`a`", "x"), row("`b`", "y|z")]),
        ("setting".to_owned(), vec![row("`s`", "1"), row("`t`", "2")]),
    ]);
    let page = "# p\n## The view v\n| column | type | meaning |\n| - | - | - |\n| `a` | x | A |\n| `b` | y\\|z | B |\n\n\
                | setting | type | meaning |\n| - | - | - |\n| `t` | 2 | T |\n| `s` | 1 | S \\| T |\n\nend\n";
    let rewritten = |page: &str| rewritten(&Document::parse("x.md", page), &tables);
    assert_eq!(rewritten(page), page);
    for (old, wrong) in [
        ("| x |", "| w |"),
        ("| 2 |", "| 3 |"),
        ("| B |\n", "| B |\n| `c` | x | C |\n"),
        ("| `b` | y\\|z | B |\n| `a` | x | A |\n", "| `a` | x | A |\n| `b` | y\\|z | B |\n"),
    ] {
        assert_eq!(rewritten(&page.replace(old, wrong)), page, "{wrong}");
    }
    assert_eq!(rewritten(&page.replace("| `a` | x | A |\n", "")), page.replace("| A |", "|  |"));
    assert_all_in(&tables, &[Document::parse("x.md", page)]);
    let lacking = Document::parse("x.md", &page.replace("## The view v", "## The view w"));
    assert!(std::panic::catch_unwind(|| assert_all_in(&tables, &[lacking])).is_err());
}
