//! Databases have run the scripts of released versions, so these never change.

use crate::{release, repository, small_repository, version, write};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A line of `sha256sum` for each released script.
pub const RELEASED: &str = "sql/released.sha256";

#[test]
fn released_scripts_are_what_was_released() {
    let wrong = differences(&repository());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The scripts that were changed or removed after their release, and those of older versions that the list lacks.
fn differences(root: &Path) -> Vec<String> {
    let list = fs::read_to_string(root.join(RELEASED)).unwrap();
    let listed: Vec<&str> = list.lines().collect();
    let present = checksums(root);
    let changed = listed.iter().filter(|line| !present.iter().any(|script| script == *line));
    let changed = changed.map(|line| format!("not as released: {line}"));
    // The script of the version in development still changes.
    let current = format!("--{}.sql", version(root));
    let released = present.iter().filter(|script| !script.ends_with(&current));
    let missing = released.filter(|script| !listed.iter().any(|line| line.ends_with(name(script))));
    let missing = missing.map(|script| format!("missing in {RELEASED}: {script}"));
    changed.chain(missing).collect()
}

/// The lines of `sha256sum` for all scripts.
pub fn checksums(root: &Path) -> Vec<String> {
    let command = "sha256sum idgen--*.sql";
    let output = Command::new("sh").args(["-ec", command]).current_dir(root.join("sql")).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The part of a line after the checksum, with the blanks before it.
fn name(line: &str) -> &str {
    &line[line.find(' ').expect("a checksum and a name")..]
}

#[test]
fn script_changed_or_removed_after_its_release_is_found() {
    let root = small_repository();
    assert_eq!(differences(root.path()), [""; 0]);
    write(&root, "sql/idgen--1.0.0.sql", "CREATE 1 ;\n");
    assert_eq!(differences(root.path()).len(), 1);
    fs::remove_file(root.path().join("sql/idgen--1.0.0--1.1.0.sql")).unwrap();
    assert_eq!(differences(root.path()).len(), 2);
}

#[test]
fn only_the_script_of_the_version_in_development_may_be_missing_in_the_list() {
    let root = small_repository();
    write(&root, "sql/idgen--1.1.0--1.2.0.sql", "CREATE 3;\n");
    assert_eq!(differences(root.path()).len(), 1);
    write(&root, "Cargo.toml", "version = \"1.2.0\"\n");
    assert_eq!(differences(root.path()), [""; 0]);
    write(&root, "Cargo.toml", "version = \"1.3.0\"\n");
    assert_eq!(differences(root.path()).len(), 1);
    release(&root);
    assert_eq!(differences(root.path()), [""; 0]);
}
