//! The memory of a server for its worker id, kept over restarts: the text of one small file.

use crate::coordinator::CoordinatorId;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// A lease of a worker id that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedLease {
    pub pool: String,
    pub coordinator: CoordinatorId,
    pub token: i64,
    pub worker_id: u32,
}

/// If the file exists, the server has or had a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The data directory that wrote it, as a file of its file system: a copied directory is another one.
    pub directory: String,
    /// The last lease. `None` before the first, and after the worker id was set by hand again.
    pub lease: Option<RememberedLease>,
}

const MAGIC: &str = "idgen worker 1";

impl Memory {
    /// One line each: the format, the data directory, the lease and its pool if there is one, and a checksum.
    pub fn encode(&self) -> String {
        let mut text = format!("{MAGIC}\nplace {}\n", self.directory);
        if let Some(RememberedLease { pool, coordinator, token, worker_id }) = &self.lease {
            let CoordinatorId { system_identifier, database } = coordinator;
            let pool = pool.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "term {system_identifier} {database} {token} {worker_id}\npool {pool}");
        }
        let checksum = checksum(&text);
        text + &checksum
    }

    /// `None` for anything that [`Memory::encode`] did not write.
    pub fn decode(bytes: &[u8]) -> Option<Memory> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (body, sum) = text.split_at_checked(text.rfind("sha256 ")?)?;
        if checksum(body) != sum {
            return None;
        }
        let mut lines = body.split_terminator('\n');
        if lines.next()? != MAGIC {
            return None;
        }
        let directory = lines.next()?.strip_prefix("place ")?.to_owned();
        let lease = match lines.next() {
            None => None,
            Some(lease) => Some(remembered(lease.strip_prefix("term ")?, lines.next()?.strip_prefix("pool ")?)?),
        };
        Some(Memory { directory, lease })
    }
}

fn remembered(lease: &str, pool: &str) -> Option<RememberedLease> {
    let mut numbers = lease.split(' ');
    let coordinator =
        CoordinatorId { system_identifier: numbers.next()?.parse().ok()?, database: numbers.next()?.parse().ok()? };
    let (token, worker_id) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(RememberedLease { pool: unescaped(pool), coordinator, token, worker_id })
}

fn unescaped(pool: &str) -> String {
    let mut chars = pool.chars();
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.extend(chars.next().map(|c| if c == 'n' { '\n' } else { c })),
            c => text.push(c),
        }
    }
    text
}

fn checksum(text: &str) -> String {
    let sum = Sha256::digest(text.as_bytes());
    let mut line = String::from("sha256 ");
    sum.iter().for_each(|byte| {
        let _ = write!(line, "{byte:02x}");
    });
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(directory: String, lease: Option<(String, u64, u32, i64, u32)>) -> Memory {
        let lease = lease.map(|(pool, system_identifier, database, token, worker_id)| RememberedLease {
            pool,
            coordinator: CoordinatorId { system_identifier, database },
            token,
            worker_id,
        });
        Memory { directory, lease }
    }

    proptest! {
        #[test]
        fn memory_reads_back(
            directory in "[0-9]{1,20}-[0-9]{0,20}",
            lease in proptest::option::of((
                "\\PC*|[a\\\\\n\r]{1,8}|pool sha256 ", any::<u64>(), any::<u32>(), any::<i64>(), any::<u32>(),
            )),
        ) {
            let memory = memory(directory, lease);
            prop_assert_eq!(Memory::decode(memory.encode().as_bytes()), Some(memory));
        }

        #[test]
        fn damaged_memory_is_rejected(at: prop::sample::Index, bit in 0..8u8) {
            let memory = memory("17-4".to_owned(), Some(("servers".to_owned(), 7, 5, 3, 2)));
            let mut bytes = memory.encode().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Memory::decode(&bytes), None);
            let whole = memory.encode();
            prop_assert_eq!(Memory::decode(&whole.as_bytes()[..at]), None);
        }
    }

    #[test]
    fn empty_and_zeroed_files_are_rejected() {
        assert_eq!(Memory::decode(b""), None);
        assert_eq!(Memory::decode(&[0; 4096]), None);
    }
}
