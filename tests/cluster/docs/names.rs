//! Names: a word in a page that begins like a function, a setting or a view of idgen is one.

use std::collections::BTreeSet;

use idgen_testkit::Cluster;
use postgres::Client;

use crate::catalog::EXTENSION;
use crate::markdown::Document;
use crate::{assert_none, pages, paths};

const BEGINNINGS: [&str; 6] = ["idgen.", "snowflake_", "segment_", "lock_", "lease_", "worker_"];

/// Files of the extension.
const FILES: [&str; 2] = ["idgen.so", "idgen.control"];

#[test]
fn names_of_idgen_in_pages_exist() {
    let cluster = Cluster::builder().start_with_extension();
    let known = known(&mut cluster.client());
    assert_none(&pages::all().iter().flat_map(|page| differences(page, &known)).collect::<Vec<_>>());
}

/// Functions with their arguments, relations with their columns, constraints and triggers, settings, those of PostgreSQL too, and files.
fn known(client: &mut Client) -> BTreeSet<String> {
    let sql = format!(
        "WITH function AS (SELECT p.* FROM pg_proc p JOIN {EXTENSION} ON d.objid = p.oid
                           WHERE d.classid = 'pg_proc'::regclass),
              relation AS (SELECT c.* FROM pg_class c JOIN {EXTENSION} ON d.objid = c.oid
                           WHERE d.classid = 'pg_class'::regclass),
              attribute AS (SELECT oid::regclass::text AS relation, attname
                            FROM relation JOIN pg_attribute ON attrelid = oid)
         SELECT CASE nspname WHEN 'public' THEN '' ELSE nspname || '.' END || proname
             FROM function JOIN pg_namespace n ON n.oid = pronamespace
         UNION SELECT unnest(proargnames) FROM function
         UNION SELECT oid::regclass::text FROM relation UNION SELECT relname FROM relation
         UNION SELECT attname FROM attribute UNION SELECT relation || '.' || attname FROM attribute
         UNION SELECT conname FROM pg_constraint JOIN relation ON relation.oid = conrelid
         UNION SELECT tgname FROM pg_trigger JOIN relation ON relation.oid = tgrelid
         UNION SELECT name FROM pg_settings"
    );
    let rows = client.query(&sql, &[]).expect("the catalog");
    let examples = paths("examples").into_iter().filter_map(|path| Some(path.rsplit('/').next()?.to_owned()));
    rows.iter().map(|row| row.get(0)).chain(FILES.map(str::to_owned)).chain(examples).collect()
}

/// The words of a page, without excerpts of files, that look like names of idgen and are none.
fn differences(page: &Document, known: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let excerpts = page.blocks.iter().filter(|block| block.info.contains('/'));
    let in_excerpts: BTreeSet<usize> =
        excerpts.flat_map(|block| block.line..=block.line + block.text.lines().count()).collect();
    for (index, line) in page.text.lines().enumerate().filter(|(index, _)| !in_excerpts.contains(&(index + 1))) {
        // Code with a slash is a path, or a test in a file.
        let without_paths = line.split('`').enumerate().filter(|(part, text)| part % 2 == 0 || !text.contains('/'));
        let words =
            without_paths.flat_map(|(_, text)| text.split(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c)));
        for word in words.map(|word| word.trim_matches('.')) {
            // `lease_...` stands for several names.
            let is_ours = BEGINNINGS.iter().any(|begin| word.starts_with(begin) && word != *begin);
            if is_ours && !known.contains(word) {
                wrong.push(page.at(index + 1, format!("idgen has no {word}")));
            }
        }
    }
    wrong
}

#[test]
fn unknown_names_are_found() {
    let known = ["lease_renew", "idgen.leases", "idgen.leases.slot", "lock_timeout"].map(str::to_owned).into();
    let found = |text: &str| differences(&Document::parse("x.md", text), &known).len();
    assert_eq!(found("`lease_renew('a')`, idgen.leases. idgen.leases.slot; lock_timeout = 1 (`lease_...`)"), 0);
    assert_eq!(found("`tests/cluster/lease/x.rs::lease_x` and `src/lock_x.rs`"), 0);
    assert_eq!(found("`lease_renewed`\nidgen.lease_renew, idgen.locks, my_lease_x"), 3);
    assert_eq!(found("```sql\nSELECT lease_x();\n```\n"), 1);
    assert_eq!(found("a\n```python examples/x.py\nlease_x = 1\nlease_y = 1\n```\nlease_z"), 1);
}
