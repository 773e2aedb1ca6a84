//! The parts of shared memory, and the order of their locks.

use crate::imports;
use std::fs;

/// The page has a table of the parts: the order of its lock, the name in `pg_shmem_allocations`, and the file that declares
/// it. 0: all processes use it by atomics.
#[test]
fn the_table_of_shared_memory_is_complete() {
    let page = fs::read_to_string(imports::repository().join("docs/architecture.md")).unwrap();
    let rows = page.lines().skip_while(|line| !line.starts_with("| order | part | file |")).skip(2);
    let cells = |row: &str| row.replace('`', "").split(" | ").take(3).collect::<Vec<_>>().join("  ");
    let says: Vec<String> = rows.take_while(|row| row.starts_with('|')).map(|row| cells(&row[2..])).collect();
    let mut parts = Vec::new();
    for module in imports::read("src").modules {
        let source = fs::read_to_string(imports::repository().join(&module.file)).unwrap();
        for (kind, begin) in [("Part", "Part::new("), ("Locked", "Locked::new(")] {
            for (at, _) in source.match_indices(begin) {
                let arguments: Vec<&str> = source[at + begin.len()..].splitn(3, ',').map(str::trim).collect();
                let name = arguments[0].strip_prefix("c\"").and_then(|name| name.strip_suffix('"'));
                let order = if kind == "Part" { "0" } else { arguments[1] };
                parts.extend(name.map(|name| (order.len(), format!("{order}  {name}  {}", module.file))));
            }
        }
    }
    parts.sort();
    let parts: Vec<String> = parts.into_iter().map(|(_, part)| part).collect();
    assert_eq!(says, parts, "in the order of locks, as declared");
}

/// The kinds of advisory locks in the code, and in the page of the architecture: the letters and the number of each.
#[test]
fn the_table_of_advisory_locks_is_complete() {
    let mut kinds = Vec::new();
    for module in imports::read("src").modules {
        let source = fs::read_to_string(imports::repository().join(&module.file)).unwrap();
        kinds.extend(source.split("LockKind::new(b\"").skip(1).map(|rest| rest[..2].to_owned()));
    }
    kinds.sort();
    assert!(kinds.windows(2).all(|two| two[0] != two[1]), "a kind has one room: {kinds:?}");
    let page = fs::read_to_string(imports::repository().join("docs/architecture.md")).unwrap();
    let (_, section) = page.split_once("| order | kind | `objsubid` |").expect("the table of the page");
    let rows = section
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('|').collect::<Vec<_>>());
    let mut shown = Vec::new();
    for cells in rows.filter(|cells| cells[2].contains('`')) {
        for (kind, number) in cells[2].split(',').zip(cells[3].split(',')) {
            let kind = kind.trim().trim_matches('`').to_owned();
            let letters = u16::from_be_bytes(kind.as_bytes().try_into().expect("two letters"));
            assert_eq!(number.trim(), letters.to_string(), "{kind}");
            shown.push(kind);
        }
    }
    shown.sort();
    assert_eq!(shown, kinds, "in the page and in the code");
}
