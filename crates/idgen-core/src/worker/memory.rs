//! What a server remembers over restarts of the worker ids that it has leased: the text of one small file.

use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Which database a coordinator is, over all servers: elsewhere a token means nothing, or another's term. Copies of it are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub system_identifier: u64,
    pub database: u32,
}

/// A term that was granted, by what it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub pool: String,
    pub coordinator: Identity,
    pub token: i64,
    pub worker: u32,
}

/// That there is one says that the server has, or had, a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Which data directory wrote it, as a file of its file system: a copied directory is another one.
    pub place: String,
    /// The last term. `None` before the first, and since the worker id was set by hand again.
    pub term: Option<Remembered>,
}

const MAGIC: &str = "idgen worker 1";

impl Memory {
    /// One line each for the format, the place, the term if there is one, its pool, and a checksum of all that.
    pub fn encode(&self) -> String {
        let mut text = format!("{MAGIC}\nplace {}\n", self.place);
        if let Some(Remembered { pool, coordinator, token, worker }) = &self.term {
            let Identity { system_identifier, database } = coordinator;
            let pool = pool.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "term {system_identifier} {database} {token} {worker}\npool {pool}");
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
        let place = lines.next()?.strip_prefix("place ")?.to_owned();
        let term = match lines.next() {
            None => None,
            Some(term) => Some(remembered(term.strip_prefix("term ")?, lines.next()?.strip_prefix("pool ")?)?),
        };
        Some(Memory { place, term })
    }
}

fn remembered(term: &str, pool: &str) -> Option<Remembered> {
    let mut numbers = term.split(' ');
    let coordinator =
        Identity { system_identifier: numbers.next()?.parse().ok()?, database: numbers.next()?.parse().ok()? };
    let (token, worker) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(Remembered { pool: unescaped(pool), coordinator, token, worker })
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

    fn memory(place: String, term: Option<(String, u64, u32, i64, u32)>) -> Memory {
        let term = term.map(|(pool, system_identifier, database, token, worker)| Remembered {
            pool,
            coordinator: Identity { system_identifier, database },
            token,
            worker,
        });
        Memory { place, term }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            place in "[0-9]{1,20}-[0-9]{0,20}",
            term in proptest::option::of(("\\PC*|[a\\\\\n\r]{1,8}|pool sha256 ", any::<u64>(), any::<u32>(), any::<i64>(), any::<u32>())),
        ) {
            let memory = memory(place, term);
            prop_assert_eq!(Memory::decode(memory.encode().as_bytes()), Some(memory));
        }

        #[test]
        fn damage_is_noticed(at: prop::sample::Index, bit in 0..8u8) {
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
    fn nothing_is_not_a_memory() {
        assert_eq!(Memory::decode(b""), None);
        assert_eq!(Memory::decode(&[0; 4096]), None);
    }
}
