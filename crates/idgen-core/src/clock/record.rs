//! The high-water file: two records, written in turn, so that a torn write leaves the other one intact.
//!
//! Each record has two copies, so that damage to one block does not lose the newest mark: the older record does not
//! tell how late that is.

use crate::coordinator::has_one_writer;
use sha2::{Digest, Sha256};

/// Bytes of one record: a disk sector, which most disks write atomically.
pub const RECORD: usize = 512;
/// Each copy has a block of its own.
const BLOCK: usize = 4096;
/// The offsets of a record's copies: those of odd turns, those of even turns.
const OFFSETS: [[usize; 2]; 2] = [[0, BLOCK], [2 * BLOCK, 3 * BLOCK]];
/// Bytes of the file.
pub const FILE: usize = 3 * BLOCK + RECORD;

const MAGIC: [u8; 8] = *b"idgenclk";
const VERSION: u32 = 4;
/// As idgen 0.14.1 to 0.19.0 wrote it: with a byte for "in recovery" in place of the life.
const VERSION_WITHOUT_LIFE: u32 = 3;
/// As idgen 0.14.0 wrote it: without the latest label, too.
const VERSION_WITHOUT_LABEL: u32 = 2;
const CHECKSUM: usize = 32;
/// Room for the number of a life.
const LIFE: usize = 32;
/// Room for the layout. A canonical spec has at most 130 characters.
const LAYOUT: usize = RECORD - CHECKSUM - 8 - 4 - 8 - 8 - 8 - 1 - LIFE - 8 - 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Counts the records; the first is 1.
    pub turn: u64,
    /// No id has this time or a later one (milliseconds since 1970).
    pub mark_ms: i64,
    pub system_identifier: u64,
    /// The number of the life of the data, as `idgen_place` had it. In another life the data may be newer than the mark.
    /// `None` if an earlier release wrote the record.
    pub life: Option<String>,
    /// No label that this server had written by then, or was about to write, is later. A later one in the catalog proves
    /// that the data is newer than the file. `i64::MAX` if an older release wrote the record.
    pub latest_label_ms: i64,
    /// The canonical spec of `idgen.layout` when it was written.
    pub layout: String,
}

/// The newest record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub record: Record,
    /// The other record is damaged, and may have been newer.
    pub other_is_damaged: bool,
}

impl Record {
    pub fn offsets(&self) -> [u64; 2] {
        OFFSETS[usize::from(self.turn.is_multiple_of(2))].map(|offset| offset as u64)
    }

    /// True if this server has written its data alone since it wrote the record. A start draws a number before it follows
    /// other WAL, so one that is promoted or restored has another one; an empty one is not known.
    pub fn continues_in(&self, life: &str) -> bool {
        match &self.life {
            Some(written) => !life.is_empty() && written == life,
            None => has_one_writer(life),
        }
    }

    /// Magic, version, turn, mark, system identifier, latest label, lengths of the life's and the layout's text, both texts,
    /// and SHA-256 of all that. Numbers are little-endian.
    pub fn encode(&self) -> [u8; RECORD] {
        let life = self.life.as_deref().unwrap_or_default().as_bytes();
        let life = &life[..life.len().min(LIFE)];
        let layout = &self.layout.as_bytes()[..self.layout.len().min(LAYOUT)];
        let mut bytes = Vec::with_capacity(RECORD);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.turn.to_le_bytes());
        bytes.extend(self.mark_ms.to_le_bytes());
        bytes.extend(self.system_identifier.to_le_bytes());
        bytes.extend(self.latest_label_ms.to_le_bytes());
        bytes.push(life.len() as u8);
        bytes.extend((layout.len() as u16).to_le_bytes());
        bytes.extend(life);
        bytes.extend(layout);
        bytes.resize(RECORD - CHECKSUM, 0);
        let checksum = Sha256::digest(&bytes);
        bytes.extend(checksum);
        std::array::from_fn(|i| bytes[i])
    }

    /// `None` unless [`Record::encode`] of this or an earlier release wrote the bytes.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let (body, checksum) = bytes.split_at_checked(RECORD - CHECKSUM)?;
        if Sha256::digest(body)[..] != *checksum {
            return None;
        }
        let body = &mut body.strip_prefix(&MAGIC)?;
        let version = u32::from_le_bytes(take(body)?);
        let (turn, mark_ms) = (u64::from_le_bytes(take(body)?), i64::from_le_bytes(take(body)?));
        let system_identifier = u64::from_le_bytes(take(body)?);
        let [in_recovery] = match version {
            VERSION => [0],
            VERSION_WITHOUT_LIFE | VERSION_WITHOUT_LABEL => take(body)?,
            _ => return None,
        };
        let latest_label_ms = if version == VERSION_WITHOUT_LABEL { i64::MAX } else { i64::from_le_bytes(take(body)?) };
        let [life] = if version == VERSION { take(body)? } else { [0] };
        let length = usize::from(u16::from_le_bytes(take(body)?));
        let (life, rest) = body.split_at_checked(usize::from(life))?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        // A recovery that an earlier release has noted belongs to no life.
        let life = if version == VERSION || in_recovery == 1 { Some(text(life)?) } else { None };
        let layout = text(rest.get(..length)?)?;
        Some(Record { turn, mark_ms, system_identifier, life, latest_label_ms, layout })
    }

    /// The newest intact record of a file.
    pub fn newest(file: &[u8]) -> Option<Found> {
        let copy = |at: usize| file.get(at..at + RECORD);
        let read = |offsets: [usize; 2]| offsets.into_iter().find_map(|at| Record::decode(copy(at)?));
        let records = OFFSETS.map(read);
        let newest = records.iter().flatten().max_by_key(|record| record.turn)?;
        // Only after the first record is the other one blank.
        let other = usize::from(!newest.turn.is_multiple_of(2));
        let is_blank = |at| copy(at).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
        let other_is_blank = newest.turn == 1 && OFFSETS[other].into_iter().all(is_blank);
        let other_is_damaged = records[other].is_none() && !other_is_blank;
        Some(Found { record: newest.clone(), other_is_damaged })
    }
}

/// The next bytes of a record.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}
