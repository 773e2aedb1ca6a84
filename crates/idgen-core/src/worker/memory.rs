//! The memory of a server for its worker id, kept over restarts: the text of one small file.

use super::lease::WorkerLease;
use super::server::Server;
use crate::coordinator::{CoordinatorId, Place};
use sha2::{Digest, Sha256};
use std::fmt::Write;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedLease {
    pub pool: String,
    pub coordinator: CoordinatorId,
    pub token: i64,
    pub worker_id: u32,
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The place that wrote it: a copied or restored directory is another one.
    pub place: Place,
    pub worker: LastWorkerId,
}

/// The last worker id, as far as it matters to a server with a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastWorkerId {
    /// No lease since the worker id was set by hand.
    Unknown,
    /// Ids were issued under it here when the pool was configured, and no worker id was leased since.
    ByHand(u32),
    Leased(RememberedLease),
}

/// The file, which exists if the server has or had a pool of worker ids.
///
/// A worker id that is not set acts as 0 only if the file does not exist: otherwise the pool may have granted 0 to
/// another server. A copy of the directory has the file too. So a copy without a pool has no worker id until one is set. It does
/// not release its origin's lease, because the file names the place that it was written in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryFile {
    /// No worker id was ever leased to this server.
    Missing,
    Valid(Memory),
    /// The reason. The server may have had a pool.
    Unreadable(String),
}

/// The lease in the file. `None` if another directory has written the file: this directory is a copy, and the lease is
/// its origin's.
pub(super) fn remembered(server: &impl Server) -> Option<RememberedLease> {
    match server.read_memory() {
        MemoryFile::Valid(Memory { worker: LastWorkerId::Leased(lease), place }) => {
            server.here().is_some_and(|here| here.is_directory_of(&place)).then_some(lease)
        }
        _ => None,
    }
}

/// Records that this server has a pool, and the worker id by hand under which it has issued ids, before its first
/// lease. Keeps what the file says of an earlier lease, also if it is unreadable: only the next lease replaces it.
pub(super) fn remember_pool<S: Server>(server: &mut S) -> Result<(), S::Error> {
    let worker = server.setting().before_lease();
    let is_current = match server.read_memory() {
        MemoryFile::Unreadable(_) | MemoryFile::Valid(Memory { worker: LastWorkerId::Leased(_), .. }) => true,
        MemoryFile::Valid(memory) => memory.worker == worker && server.here().is_some_and(|here| here == memory.place),
        MemoryFile::Missing => false,
    };
    if is_current { Ok(()) } else { server.write_memory(worker) }
}

/// Records the lease that ids are about to be issued under.
pub(super) fn remember<S: Server>(server: &mut S, pool: &str, lease: &WorkerLease) -> Result<(), S::Error> {
    let WorkerLease { coordinator, token, worker_id, .. } = *lease;
    let leased = LastWorkerId::Leased(RememberedLease { pool: pool.to_owned(), coordinator, token, worker_id });
    let is_current = matches!(server.read_memory(), MemoryFile::Valid(memory) if memory.worker == leased);
    if is_current { Ok(()) } else { server.write_memory(leased) }
}

const MAGIC: &str = "idgen worker 1";

impl Memory {
    /// True if a worker id that is set by hand counts here beside a pool. Otherwise the pool may have granted it to another
    /// server: a standby, a copy, a restored backup and a rewound server do not know what the pool has granted.
    pub fn allows_by_hand(&self, here: &Place, worker_id: u32) -> bool {
        self.worker == LastWorkerId::ByHand(worker_id) && here.continues(&self.place)
    }

    /// One line each: the format, the place, the worker id by hand or the lease and its pool, and a checksum.
    pub fn encode(&self) -> String {
        let mut text = format!("{MAGIC}\nplace {}\n", self.place);
        let _ = match &self.worker {
            LastWorkerId::Unknown => Ok(()),
            LastWorkerId::ByHand(worker_id) => writeln!(text, "hand {worker_id}"),
            LastWorkerId::Leased(RememberedLease { pool, coordinator, token, worker_id }) => {
                let CoordinatorId { system_identifier, database } = coordinator;
                let pool = pool.replace('\\', "\\\\").replace('\n', "\\n");
                writeln!(text, "term {system_identifier} {database} {token} {worker_id}\npool {pool}")
            }
        };
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
        let place = Place::parse(lines.next()?.strip_prefix("place ")?);
        let worker = match lines.next().map(|line| line.split_at_checked(5)) {
            None => LastWorkerId::Unknown,
            Some(Some(("hand ", worker_id))) => LastWorkerId::ByHand(worker_id.parse().ok()?),
            Some(Some(("term ", lease))) => {
                LastWorkerId::Leased(parse_lease(lease, lines.next()?.strip_prefix("pool ")?)?)
            }
            Some(_) => return None,
        };
        Some(Memory { place, worker })
    }
}

fn parse_lease(lease: &str, pool: &str) -> Option<RememberedLease> {
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
    let digits: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256 {digits}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::life_number;
    use proptest::prelude::*;

    fn leased((pool, system_identifier, database, token, worker_id): (String, u64, u32, i64, u32)) -> LastWorkerId {
        let coordinator = CoordinatorId { system_identifier, database };
        LastWorkerId::Leased(RememberedLease { pool, coordinator, token, worker_id })
    }

    fn last_worker_ids() -> impl Strategy<Value = LastWorkerId> {
        let pools = "\\PC*|[a\\\\\n\r]{1,8}|pool sha256 ";
        prop_oneof![
            Just(LastWorkerId::Unknown),
            any::<u32>().prop_map(LastWorkerId::ByHand),
            (pools, any::<u64>(), any::<u32>(), any::<i64>(), any::<u32>()).prop_map(leased),
        ]
    }

    proptest! {
        #[test]
        fn memory_reads_back(
            place in "[0-9]{1,20}-[0-9]{0,20}( [0-9]{1,20}-[0-9]{0,20}/[0-9a-f]{16}r?)?",
            worker in last_worker_ids(),
        ) {
            let memory = Memory { place: Place::parse(&place), worker };
            prop_assert_eq!(Memory::decode(memory.encode().as_bytes()), Some(memory));
        }

        #[test]
        fn damaged_memory_is_rejected(at: prop::sample::Index, bit in 0..8u8) {
            let memory = Memory { place: Place::parse("17-4"), worker: leased(("servers".to_owned(), 7, 5, 3, 2)) };
            let mut bytes = memory.encode().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Memory::decode(&bytes), None);
            let whole = memory.encode();
            prop_assert_eq!(Memory::decode(&whole.as_bytes()[..at]), None);
        }
    }

    #[test]
    fn worker_id_by_hand_counts_only_in_the_place_that_issued_under_it() {
        let place = |directory: &str, random| Place::new(directory, "6-7", &life_number(random, false));
        let here = place("4-5", 1);
        let by_hand = Memory { place: here.clone(), worker: LastWorkerId::ByHand(5) };
        assert!(by_hand.allows_by_hand(&here, 5));
        assert!(!by_hand.allows_by_hand(&here, 6), "another setting");
        assert!(!by_hand.allows_by_hand(&place("8-9", 1), 5), "a copy");
        assert!(!by_hand.allows_by_hand(&place("4-5", 2), 5), "it has followed other WAL since");
        for worker in [LastWorkerId::Unknown, leased(("servers".to_owned(), 7, 5, 3, 5))] {
            assert!(!Memory { worker, ..by_hand.clone() }.allows_by_hand(&here, 5));
        }
    }

    #[test]
    fn empty_and_zeroed_files_are_rejected() {
        assert_eq!(Memory::decode(b""), None);
        assert_eq!(Memory::decode(&[0; 4096]), None);
    }
}
