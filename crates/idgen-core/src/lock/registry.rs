//! The registry of names: a table of fixed size, so that the views show locks by name.

use super::NameHash;

/// The number of entries that may hold a given name. A lookup reads all of them.
pub const WAYS: usize = 8;

/// A registered name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry {
    pub database: u32,
    pub hash: NameHash,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    Known(usize),
    /// Another name with the same key has this entry.
    Collides(usize),
    /// The name is not known, and may take this entry: it is free, or its lock is neither held nor waited for.
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

/// Looks up a name. `at` returns the entry at an index; `in_use` is false only if no session holds its lock or waits for
/// it.
pub fn look_up(
    size: usize,
    wanted: NameEntry,
    at: impl Fn(usize) -> Option<NameEntry>,
    in_use: impl Fn(&NameEntry) -> bool,
) -> Lookup {
    let candidates = || candidates(size, wanted.database, wanted.hash.key);
    let same_key = |entry: &NameEntry| entry.database == wanted.database && entry.hash.key == wanted.hash.key;
    if let Some((index, entry)) = candidates().find_map(|index| Some((index, at(index).filter(same_key)?))) {
        return if entry == wanted { Lookup::Known(index) } else { Lookup::Collides(index) };
    }
    let free = candidates().find(|index| at(*index).is_none());
    let idle = || candidates().find(|index| at(*index).is_none_or(|entry| !in_use(&entry)));
    free.or_else(idle).map_or(Lookup::Full, Lookup::Take)
}
