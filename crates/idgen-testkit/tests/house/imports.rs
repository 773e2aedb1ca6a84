//! The imports of a crate, read from its source: every path that leads from one file to another.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

/// A source file and its module path; the crate's root has an empty one.
pub struct Module {
    pub file: String,
    pub path: Vec<String>,
}

pub struct Crate {
    pub modules: Vec<Module>,
    /// Importing and imported module, by their index.
    pub imports: BTreeSet<(usize, usize)>,
}

/// Reads a crate from the folder of its `lib.rs`, below the root of the repository. Modules for tests are left out.
pub fn read(folder: &str) -> Crate {
    let root = repository().join(folder);
    let mut files = Vec::new();
    collect(&root, &root, &mut files);
    files.sort_by(|a, b| a.0.cmp(&b.0));
    let modules: Vec<Module> = files
        .iter()
        .map(|(path, file)| Module {
            file: file.strip_prefix(repository()).unwrap().display().to_string(),
            path: path.clone(),
        })
        .collect();
    let mut imports = BTreeSet::new();
    for (index, (path, file)) in files.iter().enumerate() {
        let source = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap_or_else(|e| panic!("{file:?}: {e}"));
        let mut paths = Paths { module: path.clone(), children: children(&source), found: Vec::new() };
        paths.visit_file(&source);
        let targets = paths.found.iter().filter_map(|path| owner(&modules, path));
        imports.extend(targets.filter(|target| *target != index).map(|target| (index, target)));
    }
    Crate { modules, imports }
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(Vec<String>, PathBuf)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().unwrap() != "tests" {
                collect(root, &path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.file_name().unwrap() != "tests.rs"
        {
            let below = path.strip_prefix(root).unwrap().with_extension("");
            let mut module: Vec<String> = below.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            module.pop_if(|last| last == "mod" || last == "lib");
            files.push((module, path));
        }
    }
}

/// The file that defines the item at a path: the longest module path that begins it.
fn owner(modules: &[Module], path: &[String]) -> Option<usize> {
    let owners = modules.iter().enumerate().filter(|(_, module)| path.starts_with(&module.path));
    owners.max_by_key(|(_, module)| module.path.len()).map(|(index, _)| index)
}

/// The modules that a file declares.
fn children(source: &syn::File) -> Vec<String> {
    let name = |item: &Item| match item {
        Item::Mod(module) if module.content.is_none() => Some(module.ident.to_string()),
        _ => None,
    };
    source.items.iter().filter_map(name).collect()
}

/// Collects the paths of a file that lead to modules of the crate, from its root.
struct Paths {
    module: Vec<String>,
    children: Vec<String>,
    found: Vec<Vec<String>>,
}

impl Paths {
    fn add(&mut self, segments: &[String]) {
        let mut path = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.module.clone(),
            Some(name) if self.children.iter().any(|child| child == name) => self.module.clone(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(path.pop()),
                name => path.push(name.to_owned()),
            }
        }
        self.found.push(path);
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.add(&with(&name.ident)),
            UseTree::Rename(rename) => self.add(&with(&rename.ident)),
            UseTree::Glob(_) => self.add(before),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Use(item) => self.add_tree(&[], &item.tree),
            // A module in the file: of tests, or one that has no imports of its own.
            Item::Mod(_) => {}
            _ => visit::visit_item(self, item),
        }
    }

    /// `pub(super)` imports nothing.
    fn visit_visibility(&mut self, _visibility: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&segments);
        visit::visit_path(self, path);
    }
}
