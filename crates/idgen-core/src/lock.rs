//! Named locks: which key a name has, and in which order several are taken.

use sha2::{Digest, Sha256};

pub mod names;

/// The longest name in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// What a name is hashed to. Frozen: two releases that disagreed would not exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash {
    /// The first 8 bytes of the SHA-256 of the name's UTF-8, with the high byte first: the advisory lock's key.
    pub key: i64,
    /// The next 8 bytes. Two names with one key are told apart by it.
    pub check: u64,
}

impl NameHash {
    pub fn of(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let part = |at: usize| std::array::from_fn(|i| digest[at + i]);
        Self { key: i64::from_be_bytes(part(0)), check: u64::from_be_bytes(part(8)) }
    }
}

/// Is it 1 to 255 bytes long?
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len())
}

/// Names in the order in which everybody takes them, by key, each key once: so two sessions that want the same locks in
/// different orders do not wait for each other.
pub fn in_order(mut names: Vec<(NameHash, String)>) -> Vec<(NameHash, String)> {
    names.sort();
    names.dedup_by_key(|(hash, _)| hash.key);
    names
}

#[cfg(test)]
mod tests;
