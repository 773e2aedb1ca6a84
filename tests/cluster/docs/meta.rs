//! META.json, which PGXN reads: its facts are those of Cargo.toml and idgen.control, and its files exist.

use serde_json::Value;

use crate::{assert_none, root, text_of};

#[test]
fn meta_json_states_the_facts_of_the_package() {
    let meta: Value = serde_json::from_str(&text_of("META.json")).expect("META.json is JSON");
    assert_none(&differences(&meta, &text_of("Cargo.toml"), &text_of("idgen.control")));
}

fn differences(meta: &Value, cargo: &str, control: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |pointer: &str, expected: String| {
        let stated = meta.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if stated != expected {
            wrong.push(format!("META.json: {pointer} is {stated:?}, not {expected:?}"));
        }
    };
    let summary = assigned(control, "comment");
    let releases: Vec<u32> = (1..100).filter(|release| cargo.contains(&format!("\npg{release} = ["))).collect();
    let (first, last) = (releases.first().copied().unwrap_or(0), releases.last().copied().unwrap_or(0));
    for version in ["/version", "/provides/idgen/version"] {
        compare(version, assigned(cargo, "version"));
    }
    for abstracts in ["/abstract", "/provides/idgen/abstract"] {
        compare(abstracts, summary.clone());
    }
    compare("/license", assigned(cargo, "license").to_lowercase());
    compare("/prereqs/runtime/requires/PostgreSQL", format!(">= {first}.0.0, < {}.0.0", last + 1));
    if assigned(cargo, "description").replace(" for PostgreSQL", "") != summary {
        wrong.push(format!("Cargo.toml: the description is not that of idgen.control: {summary}"));
    }
    wrong.extend(wrong_files(meta));
    wrong
}

/// pgxn creates an extension only if its file is SQL.
fn wrong_files(meta: &Value) -> Vec<String> {
    let is_right = |key: &str, suffix: &str| {
        let path = meta["provides"]["idgen"][key].as_str().unwrap_or_default();
        path.ends_with(suffix) && root().join(path).exists()
    };
    let files = [("file", ".sql"), ("docfile", ".md")];
    let wrong = files.into_iter().filter(|(key, suffix)| !is_right(key, suffix));
    wrong.map(|(key, suffix)| format!("META.json: the {key} of idgen is no {suffix} file of the repository")).collect()
}

/// The value of `key = 'value'` or `key = "value"`, the first one of the file.
fn assigned(text: &str, key: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
    value.unwrap_or_else(|| panic!("no {key}")).trim_matches(['\'', '"']).to_owned()
}

#[test]
fn facts_that_differ_are_found() {
    let cargo =
        "version = \"1.2.3\"\ndescription = \"a b for PostgreSQL\"\nlicense = \"PostgreSQL\"\n\npg15 = [\npg18 = [\n";
    let found = |meta: &Value| differences(meta, cargo, "comment = 'a b'").len();
    let meta = serde_json::json!({
        "version": "1.2.3", "abstract": "a b", "license": "postgresql",
        "provides": {"idgen": {
            "version": "1.2.3", "abstract": "a b", "file": "sql/idgen--0.14.0.sql", "docfile": "README.md",
        }},
        "prereqs": {"runtime": {"requires": {"PostgreSQL": ">= 15.0.0, < 19.0.0"}}},
    });
    assert_eq!(found(&meta), 0);
    for (pointer, value) in [
        ("/version", "1.2.4"),
        ("/abstract", "a"),
        ("/license", "mit"),
        ("/provides/idgen/version", "1.2"),
        ("/provides/idgen/file", "idgen.control"),
        ("/provides/idgen/docfile", "docs/none.md"),
        ("/prereqs/runtime/requires/PostgreSQL", "15.0.0"),
    ] {
        let mut changed = meta.clone();
        *changed.pointer_mut(pointer).expect(pointer) = value.into();
        assert_eq!(found(&changed), 1, "{pointer}");
    }
    assert_eq!(differences(&meta, &cargo.replace("a b", "b"), "comment = 'a b'").len(), 1);
}
