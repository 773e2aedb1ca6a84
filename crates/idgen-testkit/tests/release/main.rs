//! What a release is made of: scripts that never change, notes from the changelog, documents whose links work, and
//! the checks of its tag.

mod checks;
mod documents;
mod sql;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The version in a Cargo.toml.
fn version(root: &Path) -> String {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \"")).expect("a version");
    line.trim_end_matches('"').to_owned()
}

/// A repository with version 1.1.0, its changelog and its SQL, and the scripts of ours.
fn small_repository() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in ["sql", "scripts", "docs", "packaging", "crates/idgen-core"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    for script in ["check-facts.sh", "release-check.sh", "release-notes.sh", "version.sh", "meta.sh"] {
        fs::copy(repository().join("scripts").join(script), root.path().join("scripts").join(script)).unwrap();
    }
    let changes = "# Changelog\n\n## 1.1.0\n\nSee [a](docs/a.md#b) and [c](https://c.example/d).\n\n- e\n\n## 1.0.0\n\nf\n\n## 0.9.0\n\n";
    write(&root, "Cargo.toml", "[package]\nname = \"x\"\nversion = \"1.1.0\"\n\n[dependencies]\ny = \"2\"\n");
    write(&root, "crates/idgen-core/Cargo.toml", "[package]\nversion = \"1.1.0\"\n");
    write(&root, "CHANGELOG.md", changes);
    write(&root, "META.json", META);
    write(&root, "README.md", "# x\n\nThe current version is 1.1.0.\n");
    write(&root, "SECURITY.md", "| 1.1.x | yes |\n| before 1.1 | no |\n");
    write(&root, "docs/a.md", "Measured with idgen 1.0.0, load 1.5.\n");
    for file in ["book.toml", "packaging/control"] {
        write(&root, file, "");
    }
    write(&root, "sql/idgen--1.0.0.sql", "CREATE 1;\n");
    write(&root, "sql/idgen--1.0.0--1.1.0.sql", "CREATE 2;\n");
    release(&root);
    root
}

const META: &str = r#"{
   "maintainer": "A. Uthor <author@x.example>",
   "resources": { "homepage": "https://x.example/idgen" }
}"#;

fn write(root: &TempDir, path: &str, text: &str) {
    fs::write(root.path().join(path), text).unwrap();
}

/// Lists all scripts as released.
fn release(root: &TempDir) {
    write(root, sql::RELEASED, &sql::checksums(root.path()).join("\n"));
}

fn run(root: &TempDir, script: &str, arguments: &[&str]) -> Output {
    Command::new(root.path().join("scripts").join(script)).args(arguments).output().unwrap()
}
