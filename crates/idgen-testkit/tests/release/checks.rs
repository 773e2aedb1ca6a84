//! The scripts of the release workflow.

use crate::{META, repository, run, small_repository, version, write};
use std::process::{Command, Output};

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

/// The reason of a failure.
fn stderr(output: &Output) -> &str {
    assert!(!output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn notes_are_the_section_of_the_version() {
    let root = small_repository();
    let notes = |arguments: &[&str]| stdout(&run(&root, "release-notes.sh", arguments)).to_owned();
    assert_eq!(notes(&["1.0.0"]), "f\n");
    assert_eq!(notes(&["1.1.0"]), "See [a](docs/a.md#b) and [c](https://c.example/d).\n\n- e\n");
    let absolute = "See [a](https://x.example/v1/docs/a.md#b) and [c](https://c.example/d).\n\n- e\n";
    assert_eq!(notes(&["1.1.0", "https://x.example/v1"]), absolute);
}

#[test]
fn notes_of_a_version_without_a_text_are_refused() {
    let root = small_repository();
    for version in ["0.9.0", "1.1", "1.1.00", "1.2.0"] {
        let reason = format!("release-notes: CHANGELOG.md has nothing on version {version}\n");
        assert_eq!(stderr(&run(&root, "release-notes.sh", &[version])), reason);
    }
}

#[test]
fn changelog_has_notes_on_the_version_in_development() {
    let notes = Command::new(repository().join("scripts/release-notes.sh")).arg(version(&repository())).output();
    assert!(stdout(&notes.unwrap()).len() > 100, "a line at least");
}

#[test]
fn documents_name_the_version_in_development() {
    let facts = Command::new(repository().join("scripts/check-facts.sh")).output();
    assert_eq!(stdout(&facts.unwrap()), "");
}

#[test]
fn version_that_a_document_lacks_or_has_wrong_is_found() {
    let root = small_repository();
    assert_eq!(stdout(&run(&root, "check-facts.sh", &[])), "");
    for (file, text, reason) in [
        ("README.md", "The current version is 1.0.0.\n", "README.md does not say: The current version is 1.1.0.\n"),
        ("README.md", "", "README.md does not say"),
        ("SECURITY.md", "| 1.0.x | yes |\n| before 1.1 | no |\n", "SECURITY.md does not say: | 1.1.x | yes |\n"),
        ("SECURITY.md", "| 1.1.x | yes |\n| 1.0.x | yes |\n| before 1.1 | no |\n", "SECURITY.md does not say: | 1.1.x"),
        ("SECURITY.md", "| 1.1.x | yes |\n| before 1.0 | no |\n", "SECURITY.md does not say: | before 1.1 | no |\n"),
        ("docs/a.md", "a\nidgen 1.0.0 and idgen 1.0.7\n", "docs/a.md:2: CHANGELOG.md has no version 1.0.7\n"),
        ("crates/idgen-core/Cargo.toml", "version = \"1.0.0\"\n", "Cargo.toml is not of 1.1.0\n"),
    ] {
        let root = small_repository();
        write(&root, file, text);
        let output = run(&root, "check-facts.sh", &[]);
        assert!(stderr(&output).contains(reason), "{file}: {text}: {output:?}");
    }
}

#[test]
fn placeholder_prevents_a_release() {
    for (file, text) in
        [("docs/a.md", "gh verify --repo OWNER/REPOSITORY\n"), ("packaging/control", "x <a@b.invalid>\n")]
    {
        let root = small_repository();
        write(&root, file, text);
        let output = run(&root, "release-check.sh", &["v1.1.0"]);
        assert!(stderr(&output).ends_with(&format!("{file}:1:{text}release-check: replace these placeholders\n")));
    }
}

#[test]
fn tag_is_released_only_with_its_version_notes_and_script() {
    let root = small_repository();
    let check = |tag| run(&root, "release-check.sh", &[tag]);
    assert_eq!(stdout(&check("v1.1.0")), "");
    for tag in ["1.1.0", "v1.1", "v1.0.0"] {
        assert!(stderr(&check(tag)).contains("is not v1.1.0"), "{tag}");
    }
    write(&root, "sql/idgen--1.0.0.sql", "CREATE 0;\n");
    assert!(stderr(&check("v1.1.0")).contains("did NOT match"));
    write(&root, "sql/released.sha256", "");
    assert!(stderr(&check("v1.1.0")).contains("has no script to 1.1.0"));
    write(&root, "CHANGELOG.md", "# Changelog\n\n## 1.0.0\n\nf\n");
    assert!(stderr(&check("v1.1.0")).contains("has nothing on version 1.1.0"));
}

#[test]
fn tag_is_refused_while_maintainer_or_homepage_are_placeholders() {
    let root = small_repository();
    let cases = [
        ("maintainer", "A. Uthor <author@x.example>", ["A. Uthor", "A. Uthor <author@x.invalid>"]),
        ("homepage", "https://x.example/idgen", ["", "https://x.invalid/idgen"]),
    ];
    for (field, known, placeholders) in cases {
        for placeholder in placeholders {
            write(&root, "META.json", &META.replace(known, placeholder));
            let reason = format!("release-check: META.json names no {field}: ");
            let refused = run(&root, "release-check.sh", &["v1.1.0"]);
            assert!(stderr(&refused).starts_with(&reason), "{placeholder}: {refused:?}");
        }
    }
    write(&root, "META.json", META);
    assert_eq!(stdout(&run(&root, "release-check.sh", &["v1.1.0"])), "");
}
