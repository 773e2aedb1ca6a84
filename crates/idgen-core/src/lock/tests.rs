use super::names::{Entry, Place, place, places};
use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// Frozen. Anybody can compute them: SELECT encode(substring(sha256('name') FOR 8), 'hex').
#[test]
fn keys_are_what_they_have_always_been() {
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
fn a_million_names_have_a_million_keys() {
    let keys: HashSet<i64> = (0..1_000_000).map(|n| NameHash::of(&format!("order:{n}")).key).collect();
    assert_eq!(keys.len(), 1_000_000);
}

#[test]
fn a_name_has_1_to_255_bytes() {
    assert!(!is_name("") && is_name("x") && is_name(&"x".repeat(255)));
    assert!(!is_name(&"x".repeat(256)) && !is_name(&"é".repeat(128)));
}

fn entry(key: i64, check: u64) -> Entry {
    Entry { database: 5, hash: NameHash { key, check } }
}

fn put(table: &mut [Option<Entry>], wanted: Entry, in_use: impl Fn(&Entry) -> bool) -> Place {
    let found = place(table.len(), wanted, |index| table[index], in_use);
    if let Place::Take(index) = found {
        table[index] = Some(wanted);
    }
    found
}

#[test]
fn two_names_with_one_key_are_noticed() {
    let mut table = [None; 16];
    let Place::Take(index) = put(&mut table, entry(7, 1), |_| true) else { panic!() };
    assert_eq!(put(&mut table, entry(7, 1), |_| true), Place::Known(index));
    assert_eq!(put(&mut table, entry(7, 2), |_| true), Place::Collides(index));
    let elsewhere = Entry { database: 6, ..entry(7, 2) };
    assert!(matches!(put(&mut table, elsewhere, |_| true), Place::Take(_)));
}

#[test]
fn a_full_table_forgets_who_is_not_in_use_and_nobody_else() {
    let mut table = [None; 4];
    for key in 0..4 {
        assert!(matches!(put(&mut table, entry(key, 0), |_| true), Place::Take(_)));
    }
    assert_eq!(put(&mut table, entry(9, 0), |_| true), Place::Full);
    let idle = entry(2, 0);
    assert!(matches!(put(&mut table, entry(9, 0), |entry| *entry != idle), Place::Take(_)));
    assert!(!table.contains(&Some(idle)));
}

proptest! {
    #[test]
    fn names_are_taken_in_key_order_each_once(names in prop::collection::vec("[a-f]{1,2}", 0..40)) {
        let hashed = |names: &[String]| names.iter().map(|n| (NameHash::of(n), n.clone())).collect::<Vec<_>>();
        let ordered = in_order(hashed(&names));
        prop_assert!(ordered.windows(2).all(|pair| pair[0].0.key < pair[1].0.key));
        let (all, got): (HashSet<_>, HashSet<_>) = (names.iter().collect(), ordered.iter().map(|(_, n)| n).collect());
        prop_assert_eq!(all, got);
        let mut reversed = names.clone();
        reversed.reverse();
        prop_assert_eq!(in_order(hashed(&reversed)), ordered);
    }

    #[test]
    fn a_key_has_its_places(size in 1..100usize, database in any::<u32>(), key in any::<i64>()) {
        let places: Vec<usize> = places(size, database, key).collect();
        prop_assert!(places.iter().all(|place| *place < size));
        prop_assert_eq!(places.iter().collect::<HashSet<_>>().len(), size.min(names::WAYS));
    }
}
