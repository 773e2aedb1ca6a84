//! The registry of names: a table of fixed size, so that the views show locks by name.
//!
//! A process counts its use of a lock, then looks for the name without the registry's lock. A process that needs the entry
//! of another name vacates it, then reads the count. So a name that a process has found stays while that uses the lock.

use super::NameHash;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of entries that may hold a given name. A lookup reads all of them.
pub const WAYS: usize = 8;

/// A registered name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry {
    pub database: u32,
    pub hash: NameHash,
}

impl NameEntry {
    /// The name in one word, never 0: a lookup without the lock must not see a part of one name and a part of the next.
    fn tag(&self) -> u64 {
        (self.hash.check ^ u64::from(self.database).wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1)
    }
}

/// The name of an entry as processes find it without the registry's lock. 0 if the entry is free.
#[derive(Default)]
pub struct NameTag(AtomicU64);

impl NameTag {
    /// True if the entry has this name. Call [`LockUses::begin`] first.
    #[inline]
    pub fn is(&self, entry: &NameEntry) -> bool {
        self.0.load(Ordering::Relaxed) == entry.tag()
    }

    /// For the holder of the registry's lock, as [`vacate`](Self::vacate).
    pub fn set(&self, entry: &NameEntry) {
        self.0.store(entry.tag(), Ordering::Relaxed);
    }

    /// Frees the entry, which has this name, unless its lock may be in use.
    pub fn vacate(&self, entry: &NameEntry, uses: &LockUses) -> bool {
        if uses.0.load(Ordering::Relaxed) > 0 {
            return false;
        }
        self.0.store(0, Ordering::Relaxed);
        // Changes nothing, and reads the latest count. Release: a use that begins later finds no name here.
        let is_idle = uses.0.fetch_add(0, Ordering::Release) == 0;
        if !is_idle {
            self.set(entry);
        }
        is_idle
    }
}

/// How many holds and waits there are. Locks share a counter, so a count of 0 is certain, and another one is not.
#[derive(Default)]
pub struct LockUses(AtomicU32);

impl LockUses {
    #[inline]
    pub fn begin(&self) {
        // Acquire: see `NameTag::vacate`.
        self.0.fetch_add(1, Ordering::Acquire);
    }

    #[inline]
    pub fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    Known(usize),
    /// Another name with the same key has this entry.
    Collides(usize),
    /// The name is not known, and may take this entry: it is free, or was vacated.
    Take(usize),
    /// All entries for the name are in use: the lock is shown by its key.
    Full,
}

/// The index of a lock in a table of this size.
#[inline]
pub fn home(size: usize, database: u32, key: i64) -> usize {
    // A key is a hash already. The database, multiplied into the upper bits, keeps equal names of many databases apart.
    let hash = (key as u64 >> 32) as u32 ^ database.wrapping_mul(0x9E37_79B9);
    // Scaling is cheaper than a remainder.
    ((u64::from(hash) * size as u64) >> 32) as usize
}

/// The indexes of the entries that may hold a key, in a table of this size.
pub fn candidates(size: usize, database: u32, key: i64) -> impl Iterator<Item = usize> {
    let first = home(size, database, key);
    (0..WAYS.min(size)).map(move |way| {
        let index = first + way;
        if index < size { index } else { index - size }
    })
}

/// Looks up a name. For the holder of the registry's lock. `at` returns the entry at an index; `vacate` frees one, unless
/// its lock may be in use.
pub fn look_up(
    size: usize,
    wanted: NameEntry,
    at: impl Fn(usize) -> Option<NameEntry>,
    vacate: impl Fn(usize, &NameEntry) -> bool,
) -> Lookup {
    let candidates = || candidates(size, wanted.database, wanted.hash.key);
    let same_key = |entry: &NameEntry| entry.database == wanted.database && entry.hash.key == wanted.hash.key;
    if let Some((index, entry)) = candidates().find_map(|index| Some((index, at(index).filter(same_key)?))) {
        return if entry == wanted { Lookup::Known(index) } else { Lookup::Collides(index) };
    }
    let free = candidates().find(|index| at(*index).is_none());
    let idle = || candidates().find(|index| at(*index).is_none_or(|entry| vacate(*index, &entry)));
    free.or_else(idle).map_or(Lookup::Full, Lookup::Take)
}
