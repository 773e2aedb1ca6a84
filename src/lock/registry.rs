//! The registry of names: PostgreSQL knows locks by their keys, and the view `idgen.locks` shows their names.

use super::{errors, holds};
use crate::pg::session::database;
use crate::settings;
use crate::shmem::{Locked, Part};
use idgen_core::lock::registry::{self, Lookup, NameEntry};
use idgen_core::lock::{MAX_NAME_BYTES, NameHash};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*};

/// Which name each entry has. Read without a lock.
pub static NAMES: Part<&'static [NameSlot]> =
    Part::new(c"idgen lock names", |block| block.array(settings::max_lock_names(), NameSlot::default));

/// The texts of the names. The exclusive lock is also for changing an entry of [`NAMES`].
pub static NAME_TEXTS: Locked<&'static mut [NameText]> =
    Locked::new(c"idgen lock name texts", 50, |block| block.array(settings::max_lock_names(), NameText::new));

#[derive(Default)]
pub struct NameSlot {
    /// 0 if the entry is free.
    database: AtomicU32,
    key: AtomicI64,
    check: AtomicU64,
}

#[derive(Clone, Copy)]
pub struct NameText {
    length: usize,
    bytes: [u8; MAX_NAME_BYTES],
}

impl NameSlot {
    fn entry(&self) -> Option<NameEntry> {
        // Acquire: key and check were written before.
        let database = self.database.load(Acquire);
        let hash = NameHash { key: self.key.load(Relaxed), check: self.check.load(Relaxed) };
        (database != 0).then_some(NameEntry { database, hash })
    }

    fn set(&self, entry: NameEntry) {
        self.database.store(0, Release);
        self.key.store(entry.hash.key, Relaxed);
        self.check.store(entry.hash.check, Relaxed);
        self.database.store(entry.database, Release);
    }
}

impl NameText {
    fn new() -> Self {
        Self { length: 0, bytes: [0; MAX_NAME_BYTES] }
    }

    fn set(&mut self, name: &str) {
        self.length = name.len().min(MAX_NAME_BYTES);
        self.bytes[..self.length].copy_from_slice(&name.as_bytes()[..self.length]);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.length]).into_owned()
    }
}

/// Registers the name of a lock that this process holds or waits for. Does nothing without preload. `name` is called
/// only if the name is not registered yet.
#[inline]
pub fn register(hash: NameHash, name: &dyn Fn() -> String) {
    let Some(names) = NAMES.get() else {
        return;
    };
    let entry = NameEntry { database: database(), hash };
    let mut candidates = registry::candidates(names.len(), entry.database, hash.key);
    if !candidates.any(|index| names[index].entry() == Some(entry)) {
        register_new(names, entry, name);
    }
}

#[cold]
fn register_new(names: &[NameSlot], entry: NameEntry, name: &dyn Fn() -> String) {
    // Allocated before the lock is acquired.
    let name = name();
    let mut other = NameText::new();
    let collides = NAME_TEXTS.exclusive(|texts| {
        let at = |index: usize| names[index].entry();
        let is_in_use = |entry: &NameEntry| holds::may_be_in_use(entry.database, entry.hash.key);
        match registry::look_up(names.len(), entry, at, is_in_use) {
            Lookup::Take(index) => {
                texts[index].set(&name);
                names[index].set(entry);
                false
            }
            Lookup::Collides(index) => {
                other = texts[index];
                true
            }
            Lookup::Known(_) | Lookup::Full => false,
        }
    });
    if collides {
        errors::collision(&name, &other.text()).warn();
    }
}

/// The registered names of this database's locks, with their keys; `None` without preload.
pub fn registered() -> Option<impl Iterator<Item = (i64, String)>> {
    let names = NAMES.get()?;
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(names.len());
    NAME_TEXTS.shared(|texts| {
        for (slot, text) in names.iter().zip(texts.iter()) {
            if let Some(entry) = slot.entry().filter(|entry| entry.database == database()) {
                found.push((entry.hash.key, *text));
            }
        }
    });
    Some(found.into_iter().map(|(key, text)| (key, text.text())))
}
