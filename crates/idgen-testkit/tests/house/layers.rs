//! Layers and rooms: a module imports from layers below its own, and a room from other rooms along few arrows.

use crate::imports::{self, Crate};
use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;
use std::collections::BTreeSet;

/// The rooms of the extension, each with the rooms that it may import.
const ROOMS: [(&str, &[&str]); 8] = [
    ("clock", &[]),
    ("public_id", &[]),
    ("snowflake", &["clock"]),
    ("uuid", &["snowflake"]),
    ("segment", &[]),
    ("lock", &[]),
    ("lease", &[]),
    ("worker", &["clock", "snowflake"]),
];

/// Modules below the rooms, with their layers. What is not listed is above the rooms.
const GROUND: [(&str, u8); 8] = [
    ("pg", 1),
    ("args", 2),
    ("coordinator", 2),
    ("draws", 2),
    ("error", 2),
    ("place", 2),
    ("settings", 2),
    ("shmem", 2),
];
const ROOM_LAYER: u8 = 3;
const TOP_LAYER: u8 = 4;

/// The most files of the extension that import each other in a circle.
const LARGEST_CYCLE: usize = 3;

fn layer(module: &str) -> u8 {
    let ground = GROUND.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer);
    let room = ROOMS.iter().any(|(name, _)| *name == module).then_some(ROOM_LAYER);
    ground.or(room).unwrap_or(TOP_LAYER)
}

/// Top-level modules, each with one that it imports.
fn arrows(house: &Crate) -> BTreeSet<(&str, &str)> {
    let top = |index: usize| house.modules[index].path.first().map_or("lib", String::as_str);
    house.imports.iter().map(|(from, to)| (top(*from), top(*to))).filter(|(from, to)| from != to).collect()
}

/// The files of each cycle of imports.
fn cycles(house: &Crate) -> Vec<Vec<&str>> {
    let edges = house.imports.iter().map(|(from, to)| (*from as u32, *to as u32));
    let graph = DiGraph::<(), (), u32>::from_edges(edges);
    let components = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1);
    components.map(|files| files.into_iter().map(|file| &*house.modules[file.index()].file).collect()).collect()
}

#[test]
fn modules_import_only_from_layers_below() {
    let house = imports::read("src");
    let is_allowed = |from: &str, to: &str| {
        let room = ROOMS.iter().find(|(name, _)| *name == from);
        layer(to) < layer(from)
            // Settings, arguments and shared memory raise errors, and draws are kept in shared memory.
            || layer(from) == 2 && to == "error"
            || (from, to) == ("draws", "shmem")
            || room.is_some_and(|(_, imports)| imports.contains(&to))
            || layer(from) == TOP_LAYER
    };
    let upward: Vec<_> = arrows(&house).into_iter().filter(|(from, to)| !is_allowed(from, to)).collect();
    assert!(upward.is_empty(), "imports against the layers: {upward:?}");
}

#[test]
fn every_allowed_arrow_between_rooms_is_used() {
    let house = imports::read("src");
    let used = arrows(&house);
    for (room, imports) in ROOMS {
        for import in imports {
            assert!(used.contains(&(room, import)), "{room} may import {import}, and does not");
        }
    }
}

#[test]
fn page_of_the_architecture_shows_the_arrows_between_rooms() {
    let page = std::fs::read_to_string(imports::repository().join("docs/architecture.md")).unwrap();
    let is_of_room = |line: &&str| ROOMS.iter().any(|(room, _)| line.starts_with(&format!("{room} -> ")));
    let says: Vec<&str> = page.lines().map(str::trim).filter(is_of_room).collect();
    let importing = ROOMS.iter().filter(|(_, imports)| !imports.is_empty());
    assert_eq!(says, importing.map(|(room, imports)| format!("{room} -> {}", imports.join(", "))).collect::<Vec<_>>());
}

#[test]
fn files_of_the_extension_import_each_other_in_small_circles_only() {
    let house = imports::read("src");
    let large: Vec<_> = cycles(&house).into_iter().filter(|files| files.len() > LARGEST_CYCLE).collect();
    assert!(large.is_empty(), "{large:#?}");
}

#[test]
fn modules_of_the_core_import_each_other_in_no_circle() {
    let core = imports::read("crates/idgen-core/src");
    let arrows = arrows(&core);
    let mut names: Vec<&str> = arrows.iter().flat_map(|(from, to)| [*from, *to]).collect();
    names.sort_unstable();
    names.dedup();
    let place = |name: &str| names.binary_search(&name).unwrap() as u32;
    let graph = DiGraph::<(), (), u32>::from_edges(arrows.iter().map(|(from, to)| (place(from), place(to))));
    let circles: Vec<Vec<&str>> = tarjan_scc(&graph)
        .into_iter()
        .filter(|modules| modules.len() > 1)
        .map(|modules| modules.into_iter().map(|module| names[module.index()]).collect())
        .collect();
    assert!(circles.is_empty(), "{circles:?}");
}

#[test]
fn imports_are_found() {
    let house = imports::read("src");
    let file = |name: &str| house.modules.iter().position(|module| module.file == name).expect(name);
    assert!(house.imports.contains(&(file("src/snowflake/layouts.rs"), file("src/clock/mod.rs"))));
    assert!(arrows(&house).contains(&("lib", "settings")));
}
