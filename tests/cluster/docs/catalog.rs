//! The tables of views, settings and presets match the catalog.
//!
//! Each of these tables is on one page: `reference.md`, `configuration.md` and `snowflake.md`.

use std::collections::{BTreeMap, BTreeSet};

use idgen_testkit::Cluster;
use postgres::Client;

use crate::markdown::{Document, Table, bare};
use crate::{assert_none, document};

/// The members of the extension, `d`, as a part of FROM.
pub const EXTENSION: &str =
    "(pg_depend d JOIN pg_extension e ON d.deptype = 'e' AND d.refobjid = e.oid AND extname = 'idgen')";

fn client() -> (Cluster, Client) {
    let cluster = Cluster::builder().start_with_extension();
    let client = cluster.client();
    (cluster, client)
}

/// The one table of a page whose first columns have these headings.
fn table<'a>(page: &'a Document, headings: &'a [&str]) -> Result<&'a Table, String> {
    let mut found = page.tables_of(headings);
    match (found.next(), found.next()) {
        (Some(table), None) => Ok(table),
        (None, _) => Err(page.at(1, format!("no table with the headings {headings:?}"))),
        (_, Some(second)) => Err(page.at(second.line, format!("a second table with the headings {headings:?}"))),
    }
}

#[test]
fn table_of_settings_matches_the_catalog() {
    let (_cluster, mut client) = client();
    assert_none(&settings(&document("docs/configuration.md"), &mut client));
}

#[test]
fn tables_of_columns_match_the_catalog() {
    let (_cluster, mut client) = client();
    assert_none(&relations(&document("docs/reference.md"), &mut client));
}

#[test]
fn table_of_presets_matches_the_layouts() {
    let (_cluster, mut client) = client();
    assert_none(&presets(&document("docs/snowflake.md"), &mut client));
}

/// Compares the names of a table with those that exist.
fn compare_names(page: &Document, line: usize, says: &BTreeSet<String>, exist: &BTreeSet<String>) -> Vec<String> {
    let lacks = exist.difference(says).map(|name| page.at(line, format!("the table lacks {name}")));
    let unknown = says.difference(exist).map(|name| page.at(line, format!("there is no {name}")));
    lacks.chain(unknown).collect()
}

fn settings(page: &Document, client: &mut Client) -> Vec<String> {
    let sql = "SELECT ARRAY[name, vartype, coalesce(nullif(current_setting(name), ''), 'empty'),
                      CASE WHEN vartype = 'integer' THEN concat_ws(' ', min_val, 'to', max_val, nullif(unit, '')) END,
                      CASE context WHEN 'postmaster' THEN 'restart' WHEN 'sighup' THEN 'reload'
                                   WHEN 'user' THEN 'at once' END]
               FROM pg_settings WHERE name LIKE 'idgen.%' AND source = 'default'";
    let exist: Vec<Vec<Option<String>>> = client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    let table = match table(page, &["setting", "type"]) {
        Ok(table) => table,
        Err(wrong) => return vec![wrong],
    };
    let says = table.rows.iter().map(|row| bare(&row[0]).to_owned()).collect();
    let names = exist.iter().flat_map(|row| row[0].clone()).collect();
    let mut wrong = compare_names(page, table.line, &says, &names);
    for row in &table.rows {
        let Some(is) = exist.iter().find(|is| is[0].as_deref() == Some(bare(&row[0]))) else { continue };
        for (is, says) in is.iter().zip(row).filter_map(|(is, says)| Some((is.as_deref()?, bare(says)))) {
            if says != is {
                wrong.push(page.at(table.line, format!("{} is {is:?}, not {says:?}", row[0])));
            }
        }
    }
    wrong
}

/// Each view and each table has a section with a table of its columns.
fn relations(page: &Document, client: &mut Client) -> Vec<String> {
    let sql = format!(
        "SELECT CASE relkind WHEN 'v' THEN 'view' ELSE 'table' END || ' ' || c.oid::regclass,
                array_agg(attname || ' ' || format_type(atttypid, NULL) ORDER BY attnum)
             FROM pg_class c JOIN {EXTENSION} ON d.objid = c.oid JOIN pg_attribute ON attrelid = c.oid
             WHERE d.classid = 'pg_class'::regclass AND relkind IN ('r', 'v') AND attnum > 0
             GROUP BY c.oid, relkind"
    );
    let rows = client.query(&sql, &[]).unwrap();
    let exist: BTreeMap<String, Vec<String>> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut says = BTreeSet::new();
    let mut wrong = Vec::new();
    for table in page.tables_of(&["column"]) {
        let section = table.section.strip_prefix("The ").unwrap_or_default();
        if !says.insert(section.to_owned()) {
            wrong.push(page.at(table.line, format!("a second table of the {section}")));
        }
        let row = |row: &Vec<String>| format!("{} {}", bare(&row[0]), row[1]);
        if let Some(columns) = exist.get(section)
            && *columns != table.rows.iter().map(row).collect::<Vec<_>>()
        {
            wrong.push(page.at(table.line, format!("the columns of the {section} are {columns:?}")));
        }
    }
    wrong.extend(compare_names(page, 1, &says, &exist.into_keys().collect()));
    wrong
}

fn presets(page: &Document, client: &mut Client) -> Vec<String> {
    let refusal = client.query("SELECT * FROM snowflake_layout('?')", &[]).expect_err("no such preset");
    let hint = refusal.as_db_error().and_then(|error| error.hint()).expect("a hint");
    let (_, names) = hint.split_once("preset (").expect("the names of the presets");
    let (names, _) = names.split_once(')').expect("the closing parenthesis");
    let table = match table(page, &["preset"]) {
        Ok(table) => table,
        Err(wrong) => return vec![wrong],
    };
    let says = table.rows.iter().map(|row| bare(&row[0])).collect::<Vec<_>>().join(", ");
    if says != names {
        return vec![page.at(table.line, format!("the presets are {names}"))];
    }
    let mut wrong = Vec::new();
    for row in &table.rows {
        let sql =
            "SELECT ARRAY[spec, workers::text, ids_per_second::text, to_char(ends_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')]
                   FROM snowflake_layout($1)";
        let is: Vec<String> = client.query_one(sql, &[&bare(&row[0])]).unwrap().get(0);
        if row[1..].iter().map(|cell| bare(cell)).collect::<Vec<_>>() != is {
            wrong.push(page.at(table.line, format!("{} is {is:?}", row[0])));
        }
    }
    wrong
}

/// Fails unless the check finds each missing row, and each wrong cell in these columns.
fn assert_sensitive(path: &str, headings: &[&str], columns: &[usize], check: &mut dyn FnMut(&Document) -> Vec<String>) {
    let mut page = document(path);
    assert_eq!(check(&page), [""; 0]);
    let is_checked = |table: &Table| table.header.iter().zip(headings).all(|(cell, is)| cell == is);
    let places = page.tables.iter().enumerate().filter(|(_, table)| is_checked(table));
    let places: Vec<_> = places.flat_map(|(at, table)| (0..table.rows.len()).map(move |row| (at, row))).collect();
    assert!(!places.is_empty(), "{path}");
    for (table, row) in places {
        let removed = page.tables[table].rows.remove(row);
        assert!(!check(&page).is_empty(), "{removed:?} is missing");
        page.tables[table].rows.insert(row, removed);
        for column in columns {
            let cell = std::mem::replace(&mut page.tables[table].rows[row][*column], "x".to_owned());
            assert!(!check(&page).is_empty(), "{cell} is wrong");
            page.tables[table].rows[row][*column] = cell;
        }
    }
}

#[test]
fn wrong_cells_and_missing_rows_are_found() {
    let (_cluster, mut client) = client();
    let (reference, columns) = ("docs/reference.md", &[0, 1]);
    assert_sensitive(reference, &["column"], columns, &mut |page| relations(page, &mut client));
    let settings_page = "docs/configuration.md";
    assert_sensitive(settings_page, &["setting", "type"], &[0, 1, 2, 4], &mut |page| settings(page, &mut client));
    assert_sensitive("docs/snowflake.md", &["preset"], &[0, 1, 2, 3, 4], &mut |page| presets(page, &mut client));
}
