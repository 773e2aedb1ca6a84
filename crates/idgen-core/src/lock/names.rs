//! The registry of names: a table of fixed size, so that a lock can be shown by its name.

use super::NameHash;

/// How many places a name can be in. It is looked for at each of them.
pub const WAYS: usize = 8;

/// Whose name is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub database: u32,
    pub hash: NameHash,
}

/// Where a name is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Known(usize),
    /// Another name with the same key is at this place.
    Collides(usize),
    /// Free, or of a lock that nobody holds or waits for.
    Take(usize),
    /// Every place of the name is in use: the lock is shown by its key.
    Full,
}

/// The places of a key, in a table of so many.
pub fn places(size: usize, database: u32, key: i64) -> impl Iterator<Item = usize> {
    // A key is a hash already; the database keeps equal names of many databases apart.
    // Its upper half scaled to the size, which is cheaper than a remainder.
    let first = ((((key as u64 >> 32) ^ u64::from(database)) * size as u64) >> 32) as usize;
    (0..WAYS.min(size)).map(move |way| {
        let index = first + way;
        if index < size { index } else { index - size }
    })
}

/// Where a name is, or is to be. `at` is what a place has, `in_use` whether somebody has or wants that lock.
pub fn place(
    size: usize,
    wanted: Entry,
    at: impl Fn(usize) -> Option<Entry>,
    in_use: impl Fn(&Entry) -> bool,
) -> Place {
    let places = || places(size, wanted.database, wanted.hash.key);
    let same_key = |entry: &Entry| entry.database == wanted.database && entry.hash.key == wanted.hash.key;
    if let Some((index, entry)) = places().find_map(|index| Some((index, at(index).filter(same_key)?))) {
        return if entry == wanted { Place::Known(index) } else { Place::Collides(index) };
    }
    let free = places().find(|index| at(*index).is_none());
    let idle = || places().find(|index| at(*index).is_none_or(|entry| !in_use(&entry)));
    free.or_else(idle).map_or(Place::Full, Place::Take)
}
