//! The registry of names of locks.

use super::spawn;
use idgen_core::lock::NameHash;
use idgen_core::lock::registry::{LockUses, NameEntry, NameTag};
use loom::sync::Arc;

fn entry(name: &str) -> NameEntry {
    NameEntry { database: 5, hash: NameHash::of(name) }
}

/// The only process that would register the name again has found it, so its lock would be shown without the name.
#[test]
fn name_that_a_process_has_found_stays_while_it_uses_the_lock() {
    loom::model(|| {
        let registry = Arc::new((NameTag::default(), LockUses::default()));
        registry.0.set(&entry("a"));
        let taker = spawn(&registry, |(tag, uses)| {
            if tag.vacate(&entry("a"), uses) {
                tag.set(&entry("b"));
            }
        });
        let (tag, uses) = &*registry;
        // An earlier hold, which may keep the name.
        uses.begin();
        uses.end();
        uses.begin();
        let is_found = tag.is(&entry("a"));
        taker.join().unwrap();
        assert!(!is_found || tag.is(&entry("a")));
    });
}
