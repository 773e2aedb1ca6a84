//! The high-water file: two records, written in turn, so that a torn write leaves the other whole.

use sha2::{Digest, Sha256};

/// Bytes of one record: a disk sector, which most disks write whole.
pub const RECORD: usize = 512;
/// Where the second record begins: in a block of its own, so that damage to one block leaves the other.
pub const SPACING: usize = 4096;
/// Bytes of the file.
pub const FILE: usize = SPACING + RECORD;

const MAGIC: [u8; 8] = *b"idgenclk";
const VERSION: u32 = 1;
const CHECKSUM: usize = 32;
/// What a record has room for. A canonical spec has 130 characters at the most.
const LAYOUT: usize = RECORD - CHECKSUM - 8 - 4 - 8 - 8 - 8 - 2;

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which record it is: the first is 1; odd ones are in the first place, even ones in the second.
    pub turn: u64,
    /// No id has this time or a later one (milliseconds since 1970).
    pub mark_ms: i64,
    pub system_identifier: u64,
    /// The canonical spec of `idgen.layout` when it was written.
    pub layout: String,
}

/// The newest record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub record: Record,
    /// The other record is neither whole nor blank: it may have been newer than this.
    pub other_is_damaged: bool,
}

impl Record {
    /// Where in the file this record goes.
    pub fn offset(&self) -> u64 {
        match self.turn % 2 {
            1 => 0,
            _ => SPACING as u64,
        }
    }

    /// magic, version, turn, mark, system identifier, length of the layout's text, text, SHA-256 of all that;
    /// numbers with the low byte first.
    pub fn encode(&self) -> [u8; RECORD] {
        let layout = &self.layout.as_bytes()[..self.layout.len().min(LAYOUT)];
        let mut bytes = Vec::with_capacity(RECORD);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.turn.to_le_bytes());
        bytes.extend(self.mark_ms.to_le_bytes());
        bytes.extend(self.system_identifier.to_le_bytes());
        bytes.extend((layout.len() as u16).to_le_bytes());
        bytes.extend(layout);
        bytes.resize(RECORD - CHECKSUM, 0);
        let checksum = Sha256::digest(&bytes);
        bytes.extend(checksum);
        std::array::from_fn(|i| bytes[i])
    }

    /// `None` for anything that [`Record::encode`] did not write.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let (body, checksum) = bytes.split_at_checked(RECORD - CHECKSUM)?;
        if Sha256::digest(body)[..] != *checksum {
            return None;
        }
        let (magic, rest) = body.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (turn, rest) = rest.split_first_chunk()?;
        let (mark_ms, rest) = rest.split_first_chunk()?;
        let (system_identifier, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        if *magic != MAGIC || u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let layout = rest.get(..usize::from(u16::from_le_bytes(*length)))?;
        Some(Record {
            turn: u64::from_le_bytes(*turn),
            mark_ms: i64::from_le_bytes(*mark_ms),
            system_identifier: u64::from_le_bytes(*system_identifier),
            layout: String::from_utf8(layout.to_vec()).ok()?,
        })
    }

    /// The newest whole record of a file's bytes; `None` when there is none.
    pub fn newest(file: &[u8]) -> Option<Found> {
        let place = |at: usize| file.get(at..(at + RECORD).min(file.len())).unwrap_or_default();
        let places = [place(0), place(SPACING)];
        let (found, at) =
            (0..2).filter_map(|i| Record::decode(places[i]).map(|r| (r, i))).max_by_key(|(r, _)| r.turn)?;
        // The first record leaves the second place blank, and only the first record does.
        let other = places[1 - at];
        let blank = found.turn == 1 && other.len() == RECORD && other.iter().all(|b| *b == 0);
        let other_is_damaged = !blank && Record::decode(other).is_none();
        Some(Found { record: found, other_is_damaged })
    }
}
