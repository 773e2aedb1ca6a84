//! Links: every relative link of every document leads to a file, and to a heading in it. Paths of the repository exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::markdown::{Document, code_spans};
use crate::{assert_none, document, documents, files, root};

#[test]
fn links_of_all_documents_resolve() {
    assert_none(&differences(&documents()));
}

#[test]
fn every_page_of_docs_is_in_the_summary_once() {
    let summary = document("docs/SUMMARY.md");
    let mut listed: Vec<_> = summary.links.iter().map(|link| format!("docs/{}", link.target)).collect();
    listed.push(summary.path.clone());
    listed.sort_unstable();
    assert_eq!(listed, files("docs", "md"));
}

#[test]
fn paths_of_the_repository_in_documents_exist() {
    let documents = documents();
    // The changelog names files of its time.
    let present = documents.iter().filter(|document| document.path != "CHANGELOG.md");
    assert_none(&present.flat_map(missing_paths).collect::<Vec<_>>());
}

const FOLDERS: [&str; 9] =
    ["bench/", "contrib/", "crates/", "docs/", "examples/", "scripts/", "sql/", "src/", "tests/"];

/// The code that begins like a path of the repository and is none, from the root or from the document. A path may name a
/// test, after `::`.
fn missing_paths(document: &Document) -> Vec<String> {
    let mut missing = Vec::new();
    for (number, line) in document.text.lines().enumerate() {
        for path in code_spans(line).filter_map(|code| code.split("::").next()) {
            let is_path = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            let is_ours = is_path && FOLDERS.iter().any(|folder| path.starts_with(folder));
            let beside = root().join(&document.path).with_file_name(path);
            let exists = root().join(path).exists() || beside.exists();
            // `idgen--A--B.sql` stands for many.
            if is_ours && !path.contains("--A--B") && !path.contains("--OLD--NEW") && !exists {
                missing.push(document.at(number + 1, format!("there is no {path}")));
            }
        }
    }
    missing
}

fn differences(documents: &[Document]) -> Vec<String> {
    let anchors: BTreeMap<&str, BTreeSet<&str>> = documents
        .iter()
        .map(|document| {
            let slugs = document.headings.iter().map(|heading| &*heading.slug);
            (&*document.path, slugs.chain(document.ids.iter().map(String::as_str)).collect())
        })
        .collect();
    let mut wrong = Vec::new();
    for document in documents {
        for link in &document.links {
            if let Err(what) = resolve(&document.path, &link.target, &anchors) {
                wrong.push(document.at(link.line, format!("{}: {what}", link.target)));
            }
        }
    }
    wrong
}

fn resolve(from: &str, target: &str, anchors: &BTreeMap<&str, BTreeSet<&str>>) -> Result<(), String> {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
        return Ok(());
    }
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (target, None),
    };
    let path = match file {
        "" => from.to_owned(),
        file => below_root(from, file).ok_or("the link leads out of the repository")?,
    };
    if !root().join(&path).exists() && !anchors.contains_key(&*path) {
        return Err("there is no such file".to_owned());
    }
    match (anchor, anchors.get(&*path)) {
        (Some(_), None) => Err("only a document has anchors".to_owned()),
        (Some(anchor), Some(known)) if !known.contains(anchor) => Err("there is no such heading".to_owned()),
        _ => Ok(()),
    }
}

/// The path below the root of a link in the file `from`; `None` if it leads out of it.
fn below_root(from: &str, link: &str) -> Option<String> {
    let mut path = PathBuf::from(from);
    path.pop();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir if path.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    path.to_str().map(str::to_owned)
}

#[test]
fn broken_links_are_found() {
    let found = |target: &str| {
        let text = format!("# A heading\n\n[a]({target})\n\n<a id=\"here\"></a>\n");
        let documents = [Document::parse("docs/x.md", &text), Document::parse("docs/guides/y.md", "# B\n")];
        differences(&documents).concat()
    };
    for target in [
        "#a-heading",
        "#here",
        "x.md#a-heading",
        "guides/y.md#b",
        "../Cargo.toml",
        "../src",
        "https://www.postgresql.org/docs/#no",
        "mailto:a@example.com",
    ] {
        assert_eq!(found(target), "", "{target}");
    }
    for (target, what) in [
        ("#b", "no such heading"),
        ("#A-heading", "no such heading"),
        ("guides/y.md#a-heading", "no such heading"),
        ("y.md", "no such file"),
        ("../docs/guides/x.md", "no such file"),
        ("Cargo.toml", "no such file"),
        ("../Cargo.toml#package", "only a document"),
        ("../../etc", "out of the repository"),
        ("/docs/x.md", "out of the repository"),
    ] {
        assert!(found(target).contains(what), "{target}: {}", found(target));
    }
}

#[test]
fn missing_paths_are_found() {
    let found = |text: &str| missing_paths(&Document::parse("x.md", text)).len();
    assert_eq!(
        found("`src/lib.rs` `src/` `tests/cluster/docs/links.rs::name` `sql/idgen--A--B.sql` `src/<room>/` src/no.rs"),
        0
    );
    assert_eq!(found("`src/no.rs` and `tests/no/` and\n`crates/idgen-core/no.rs::name`"), 3);
}
