//! The registry of names of locks, because PostgreSQL knows locks by their keys. It keeps the names of locks that processes
//! hold or wait for.

use crate::pg::datum::{Composite, Text};
use crate::pg::ereport::errors;
use crate::pg::session::database;
use crate::settings;
use crate::shmem::{FixedText, Locked, Part};
use idgen_core::lock::registry::{self, LockUses, Lookup, NameEntry, NameTag};
use idgen_core::lock::{MAX_NAME_BYTES, NameHash};
use pgrx::prelude::*;

/// The uses of locks, by database and key. A search of all processes would cost more with each session.
pub static USES: Part<&'static [LockUses]> =
    Part::new(c"idgen lock uses", |block| block.array(4 * settings::max_lock_names().max(256), LockUses::default));

pub fn uses(database: u32, key: i64) -> &'static LockUses {
    let uses = USES.require();
    &uses[registry::home(uses.len(), database, key)]
}

/// Which name each entry has. Read without a lock.
pub static NAMES: Part<&'static [NameTag]> =
    Part::new(c"idgen lock names", |block| block.array(settings::max_lock_names(), NameTag::default));

/// The names with their texts. The exclusive lock is also for changing an entry of [`NAMES`].
pub static NAME_TEXTS: Locked<&'static mut [NameText]> =
    Locked::new(c"idgen lock name texts", 50, |block| block.array(settings::max_lock_names(), NameText::default));

#[derive(Clone, Copy, Default)]
pub struct NameText {
    /// `None` if the entry is free.
    entry: Option<NameEntry>,
    name: FixedText<MAX_NAME_BYTES>,
}

/// Registers the name of a lock that this process holds or waits for. Does nothing without preload.
#[inline]
pub fn register(hash: NameHash, name: &str) {
    let Some(names) = NAMES.get() else {
        return;
    };
    let entry = NameEntry { database: database(), hash };
    let mut candidates = registry::candidates(names.len(), entry.database, hash.key);
    if !candidates.any(|index| names[index].is(&entry)) {
        register_new(names, entry, name);
    }
}

#[cold]
fn register_new(names: &[NameTag], entry: NameEntry, name: &str) {
    let other = NAME_TEXTS.exclusive(|texts| {
        let at = |index: usize| texts[index].entry;
        let vacate = |index: usize, entry: &NameEntry| names[index].vacate(entry, uses(entry.database, entry.hash.key));
        match registry::look_up(names.len(), entry, at, vacate) {
            Lookup::Take(index) => {
                texts[index].entry = Some(entry);
                texts[index].name.set(name);
                names[index].set(&entry);
                None
            }
            Lookup::Collides(index) => Some(texts[index].name),
            Lookup::Known(_) | Lookup::Full => None,
        }
    });
    if let Some(other) = other.and_then(|other| other.text()) {
        collision(name, &other).warn();
    }
}

/// The registered names of this database's locks. Without preload no rows, with a warning.
#[pg_extern(sql = false)]
fn lock_get_names() -> SetOfIterator<'static, Composite<2>> {
    let mut found = Vec::new();
    if let Some(names) = NAMES.get() {
        // Allocated before the lock is acquired.
        found.reserve(names.len());
        NAME_TEXTS.shared(|texts| {
            let is_here = |text: &&NameText| text.entry.is_some_and(|entry| entry.database == database());
            found.extend(texts.iter().filter(is_here).copied());
        });
    } else {
        names_unknown().warn();
    }
    let row = |text: NameText| Some(Composite([text.entry?.hash.key.into(), Text::from(text.name.text()?).into()]));
    SetOfIterator::new(found.into_iter().filter_map(row))
}

errors! {
    fn collision(name: &str, other: &str) {
        ERRCODE_WARNING: "lock names \"{name}\" and \"{other}\" have the same key";
        detail: "They are one lock: a session that holds one of them blocks both.";
        hint: "Use another name for one of them.";
    }

    fn names_unknown() {
        ERRCODE_WARNING: "names of locks are known only when idgen is preloaded";
        hint: "Set shared_preload_libraries = 'idgen' in postgresql.conf and restart. Until then, lock_key(name) \
            returns the key of a name.";
    }
}
