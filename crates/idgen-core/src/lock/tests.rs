use super::registry::{Lookup, NameEntry, NameTag, WAYS, candidates, home, look_up};
use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// Never change. To compute one: SELECT encode(substring(sha256('name') FOR 8), 'hex').
#[test]
fn keys_of_known_names_never_change() {
    let golden = [
        ("a", 0xca97_8112_ca1b_bdcau64),
        ("nightly-report", 0x6743_ba10_a2b2_c487),
        ("importer", 0x2c98_ae93_6632_f83b),
        ("é", 0x4a99_557e_4033_c353),
    ];
    for (name, key) in golden {
        assert_eq!(NameHash::of(name).key as u64, key, "{name}");
    }
}

#[test]
fn keys_of_a_million_names_differ() {
    let keys: HashSet<i64> = (0..1_000_000).map(|n| NameHash::of(&format!("order:{n}")).key).collect();
    assert_eq!(keys.len(), 1_000_000);
}

/// PostgreSQL numbers databases nearly in a row.
#[test]
fn equal_names_of_many_databases_have_different_homes() {
    let key = NameHash::of("nightly-report").key;
    for size in [64, 4096, 16_384] {
        let homes: HashSet<usize> = (16_384..16_384 + 48).map(|database| home(size, database, key)).collect();
        assert!(homes.len() > 40, "{} of 48 in a table of {size}", homes.len());
    }
}

#[test]
fn name_has_1_to_255_bytes() {
    assert!(!is_valid_name("") && is_valid_name("x") && is_valid_name(&"x".repeat(255)));
    assert!(!is_valid_name(&"x".repeat(256)) && !is_valid_name(&"é".repeat(128)));
}

fn entry(key: i64, check: u64) -> NameEntry {
    NameEntry { database: 5, hash: NameHash { key, check } }
}

fn put(table: &mut [Option<NameEntry>], wanted: NameEntry, in_use: impl Fn(&NameEntry) -> bool) -> Lookup {
    let found = look_up(table.len(), wanted, |index| table[index], |_, entry| !in_use(entry));
    if let Lookup::Take(index) = found {
        table[index] = Some(wanted);
    }
    found
}

#[test]
fn names_with_the_same_key_collide() {
    let mut table = [None; 16];
    let Lookup::Take(index) = put(&mut table, entry(7, 1), |_| true) else { panic!() };
    assert_eq!(put(&mut table, entry(7, 1), |_| true), Lookup::Known(index));
    assert_eq!(put(&mut table, entry(7, 2), |_| true), Lookup::Collides(index));
    let elsewhere = NameEntry { database: 6, ..entry(7, 2) };
    assert!(matches!(put(&mut table, elsewhere, |_| true), Lookup::Take(_)));
}

#[test]
fn tag_is_of_the_name_and_the_database() {
    let tag = NameTag::default();
    tag.set(&entry(7, 2));
    assert!(tag.is(&entry(7, 2)));
    assert!(!tag.is(&entry(7, 3)));
    assert!(!tag.is(&NameEntry { database: 6, ..entry(7, 2) }));
}

#[test]
fn full_table_replaces_a_name_that_is_not_in_use_and_no_other() {
    let mut table = [None; 4];
    for key in 0..4 {
        assert!(matches!(put(&mut table, entry(key, 0), |_| true), Lookup::Take(_)));
    }
    assert_eq!(put(&mut table, entry(9, 0), |_| true), Lookup::Full);
    let idle = entry(2, 0);
    assert!(matches!(put(&mut table, entry(9, 0), |entry| *entry != idle), Lookup::Take(_)));
    assert!(!table.contains(&Some(idle)));
}

proptest! {
    #[test]
    fn lock_order_is_by_key_and_has_each_name_once(names in prop::collection::vec("[a-f]{1,2}", 0..40)) {
        let hashed = |names: &[String]| names.iter().map(|n| (NameHash::of(n), n.clone())).collect::<Vec<_>>();
        let ordered = in_lock_order(hashed(&names));
        prop_assert!(ordered.windows(2).all(|pair| pair[0].0.key < pair[1].0.key));
        let (all, got): (HashSet<_>, HashSet<_>) = (names.iter().collect(), ordered.iter().map(|(_, n)| n).collect());
        prop_assert_eq!(all, got);
        let mut reversed = names.clone();
        reversed.reverse();
        prop_assert_eq!(in_lock_order(hashed(&reversed)), ordered);
    }

    #[test]
    fn candidates_are_distinct_indexes_of_the_table(
        size in 1..100usize, database in any::<u32>(), key in any::<i64>(),
    ) {
        let indexes: Vec<usize> = candidates(size, database, key).collect();
        prop_assert!(indexes.iter().all(|index| *index < size));
        prop_assert_eq!(indexes.iter().collect::<HashSet<_>>().len(), size.min(WAYS));
    }
}
