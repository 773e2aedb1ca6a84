//! META.json, which PGXN reads: its facts are those of Cargo.toml and idgen.control, and its files exist.

use serde_json::Value;

use crate::{root, text_of};

#[test]
fn meta_json_states_the_facts_of_the_package() {
    let (cargo, control) = (text_of("Cargo.toml"), text_of("idgen.control"));
    let meta: Value = serde_json::from_str(&text_of("META.json")).expect("META.json is JSON");
    let stated = |pointer: &str| meta.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let summary = assigned(&control, "comment");
    assert_eq!(assigned(&cargo, "description").replace(" for PostgreSQL", ""), summary, "Cargo.toml");
    let releases: Vec<u32> = (1..100).filter(|release| cargo.contains(&format!("\npg{release} = ["))).collect();
    let (first, last) = (releases[0], releases[releases.len() - 1]);
    for (pointer, expected) in [
        ("/version", assigned(&cargo, "version")),
        ("/provides/idgen/version", assigned(&cargo, "version")),
        ("/abstract", summary.clone()),
        ("/provides/idgen/abstract", summary),
        ("/license", assigned(&cargo, "license").to_lowercase()),
        ("/prereqs/runtime/requires/PostgreSQL", format!(">= {first}.0.0, < {}.0.0", last + 1)),
    ] {
        assert_eq!(stated(pointer), expected, "META.json: {pointer}");
    }
    // pgxn creates an extension only if its file is SQL.
    for (pointer, suffix) in [("/provides/idgen/file", ".sql"), ("/provides/idgen/docfile", ".md")] {
        let path = stated(pointer);
        assert!(path.ends_with(suffix) && root().join(path).exists(), "META.json: {pointer} is {path}");
    }
}

/// The value of `key = 'value'` or `key = "value"`, the first one of the file.
fn assigned(text: &str, key: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
    value.unwrap_or_else(|| panic!("no {key}")).trim_matches(['\'', '"']).to_owned()
}
