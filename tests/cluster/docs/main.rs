//! The documents: their SQL runs, their output is what psql prints, their tables match the code, their links resolve.
//!
//! `pages.rs` has the list of the pages. CONTRIBUTING.md states the rules of fenced blocks.

mod catalog;
mod errors;
mod fences;
mod functions;
mod guards;
mod links;
mod markdown;
mod messages;
mod meta;
mod names;
mod pages;
mod psql;
mod shape;
mod threats;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use markdown::Document;

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository exists")
}

/// The text of a file of the repository.
fn text_of(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn document(path: &str) -> Document {
    Document::parse(path, &text_of(path))
}

/// The files with this extension below a folder of the repository, without what is built.
fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut found = paths(folder);
    found.retain(|path| Path::new(path).extension().is_some_and(|is| is == extension));
    found
}

/// All files below a folder of the repository, without what is built.
fn paths(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    collect(&root().join(folder), &mut found);
    found.sort();
    found
}

fn collect(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository is readable") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy();
        if name.starts_with('.') || name == "target" || name == "node_modules" {
            continue;
        }
        match path.is_dir() {
            true => collect(&path, found),
            false => found.push(path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned()),
        }
    }
}

/// Every Markdown file of the repository.
fn documents() -> Vec<Document> {
    files(".", "md").iter().map(|path| document(path)).collect()
}

/// Fails with one difference a line.
fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Fails with what a page lacks, and with what it says in vain.
fn assert_same(page: &Document, said: &BTreeSet<String>, is: &BTreeSet<String>) {
    let lacking = is.difference(said).map(|what| page.at(1, format!("the page lacks {what}")));
    let in_vain = said.difference(is).map(|what| page.at(1, format!("there is no {what}")));
    assert_none(&lacking.chain(in_vain).collect::<Vec<_>>());
}

#[test]
fn what_pages_lack_and_what_they_say_in_vain_is_found() {
    let compare = |said: &[&str], is: &[&str]| {
        let [said, is] = [said, is].map(|list| list.iter().map(|what| (*what).to_owned()).collect());
        std::panic::catch_unwind(|| assert_same(&Document::parse("x.md", ""), &said, &is)).is_ok()
    };
    assert_eq!([compare(&["a"], &["a"]), compare(&[], &["a"]), compare(&["a"], &[])], [true, false, false]);
}
