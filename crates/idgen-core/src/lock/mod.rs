//! Named locks: the key of a name, and the order in which several are taken.

use sha2::{Digest, Sha256};

pub mod registry;

/// The longest name in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// The longest name that the holder of a lease or a worker id gives itself, in bytes. A notification has room for it, and
/// for most names of servers, which have the path of the data directory.
pub const MAX_OWNER_BYTES: usize = 1000;

/// The hash of a name. Never changes: two releases with different hashes would not exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash {
    /// The first 8 bytes of the SHA-256 of the name's UTF-8, big-endian: the advisory lock's key.
    pub key: i64,
    /// The next 8 bytes, to tell apart two names with the same key.
    pub check: u64,
}

impl NameHash {
    pub fn of(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let part = |at: usize| std::array::from_fn(|i| digest[at + i]);
        Self { key: i64::from_be_bytes(part(0)), check: u64::from_be_bytes(part(8)) }
    }
}

/// True if the name is 1 to 255 bytes long.
pub fn is_valid_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len())
}

/// Names in the order in which every session takes them, by key, each key once. So two sessions that ask for the same
/// locks in different orders do not deadlock.
pub fn in_lock_order(mut names: Vec<(NameHash, String)>) -> Vec<(NameHash, String)> {
    names.sort();
    names.dedup_by_key(|(hash, _)| hash.key);
    names
}

#[cfg(test)]
mod tests;
