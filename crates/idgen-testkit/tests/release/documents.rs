//! The documents that packages hold: each link leads to one of them.

use crate::{repository, write};
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn links_of_packaged_documents_lead_to_packaged_files() {
    let package = tempfile::tempdir().unwrap();
    let copied = packaging("documents.sh", &[&repository(), package.path()]);
    assert!(copied.status.success(), "{copied:?}");
    let checked = packaging("check-links", &[package.path()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let links: usize = String::from_utf8(checked.stdout).unwrap().trim().parse().unwrap();
    assert!(links > 500, "{links} links");
}

#[test]
fn links_to_files_that_a_package_lacks_are_found() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("docs")).unwrap();
    let found = |text: &str| {
        write(&root, "docs/a.md", text);
        let output = packaging("check-links", &[root.path()]);
        assert_eq!(output.status.success(), output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap().lines().count()
    };
    let good = "[a](a.md#b) [c](#d) [d](../docs) [e](https://x.example) `[f](no.md)`\n\n```sh\n[f](no.md)\n```\n";
    assert_eq!(found(good), 0);
    assert_eq!(
        found("[a](no.md) [b](../no.md#c) [d](../../../../../../../../../etc/passwd)\n<img src=\"no.svg\">\n"),
        4
    );
}

fn packaging(script: &str, arguments: &[&Path]) -> Output {
    Command::new(repository().join("packaging").join(script)).args(arguments).output().unwrap()
}
