//! The data directory of a server: its write-ahead log with the rows, its control file, and files that are not logged. A disk
//! loses what was not synced when its machine loses power, and tears what it was writing.

use super::choices::Choices;
use super::rows::Database;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const SECTOR: usize = 512;

/// A file that PostgreSQL does not log.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// What processes read; `None` if there is none of this name.
    pub content: Option<Vec<u8>>,
    /// What a loss of power leaves at least.
    synced: Option<Vec<u8>>,
    /// Sectors that a failed sync has dropped: they read as written, and the next sync does not write them.
    dropped: BTreeSet<usize>,
}

impl File {
    pub fn write_at(&mut self, bytes: &[u8], offset: usize) {
        let content = self.content.get_or_insert_default();
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.dropped.retain(|sector| !(offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR)).contains(sector));
    }

    /// Makes the content durable, under a name that is durable already.
    pub fn sync(&mut self) {
        if let (Some(synced), Some(content)) = (&mut self.synced, &self.content) {
            synced.resize(content.len(), 0);
            let sectors = synced.chunks_mut(SECTOR).zip(content.chunks(SECTOR)).enumerate();
            for (_, (old, new)) in sectors.filter(|(sector, _)| !self.dropped.contains(sector)) {
                old.copy_from_slice(new);
            }
        }
    }

    pub fn fail_to_sync(&mut self) {
        if let (Some(synced), Some(content)) = (&self.synced, &self.content) {
            let sectors = synced.chunks(SECTOR).zip(content.chunks(SECTOR)).enumerate();
            self.dropped.extend(sectors.filter(|(_, (old, new))| old != new).map(|(sector, _)| sector));
        }
    }

    /// Makes the name durable, with the content.
    pub fn sync_name(&mut self) {
        self.synced = self.content.clone();
    }

    /// Each sector that was not synced is there or is not.
    fn lose_power(&mut self, choices: &mut Choices) {
        if self.content == self.synced {
            return;
        }
        self.content = match (self.synced.take(), self.content.take()) {
            (Some(synced), Some(content)) if synced.len() == content.len() => {
                let sectors = synced.chunks(SECTOR).zip(content.chunks(SECTOR));
                Some(
                    sectors
                        .flat_map(|(old, new)| if old == new || choices.once_in(2) { new } else { old })
                        .copied()
                        .collect(),
                )
            }
            (synced, content) => {
                if choices.once_in(2) {
                    content
                } else {
                    synced
                }
            }
        };
        self.synced = self.content.clone();
        self.dropped.clear();
    }
}

/// An entry of the write-ahead log.
#[derive(Debug)]
pub struct Entry {
    pub timeline: u32,
    /// When it was committed, by the clock of the server that wrote it.
    pub wall_ms: i64,
    /// All rows after it.
    pub rows: Rc<Database>,
}

#[derive(Clone, Debug, Default)]
pub struct Wal {
    pub entries: Vec<Rc<Entry>>,
    /// So many survive a crash.
    pub flushed: usize,
}

impl Wal {
    pub fn truncate_to_flushed(&mut self) {
        self.entries.truncate(self.flushed);
    }
}

/// The state in the control file, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlState {
    ShutDown,
    InProduction,
    InRecovery,
}

#[derive(Clone, Debug)]
pub struct Control {
    /// The file's own: a restore makes another one.
    pub identity: u64,
    pub state: ControlState,
    pub checkpoint_ms: i64,
    /// How many entries of WAL came before the checkpoint.
    pub checkpoint: usize,
    /// `pg_resetwal` has written the checkpoint.
    pub is_reset: bool,
    pub timeline: u32,
}

/// How a recovery is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Standby,
    Archive,
    /// A backup's label without another file.
    Backup,
}

#[derive(Clone, Debug)]
pub struct Directory {
    /// A copy has another one.
    pub identity: u64,
    pub control: Control,
    pub wal: Wal,
    pub files: BTreeMap<&'static str, File>,
    pub signal: Option<Signal>,
}

impl Control {
    /// Where the checkpoint is in WAL. That of `pg_resetwal` is elsewhere than the one before.
    pub fn position(&self) -> u64 {
        2 * self.checkpoint as u64 + u64::from(!self.is_reset)
    }
}

impl Directory {
    pub fn new(identity: u64, wall_ms: i64) -> Self {
        let state = ControlState::ShutDown;
        let control = Control { identity, state, checkpoint_ms: wall_ms, checkpoint: 0, is_reset: false, timeline: 1 };
        Self { identity, control, wal: Wal::default(), files: BTreeMap::new(), signal: None }
    }

    pub fn file(&mut self, name: &'static str) -> &mut File {
        self.files.entry(name).or_default()
    }

    pub fn rows(&self) -> Rc<Database> {
        self.wal.entries.last().map(|entry| entry.rows.clone()).unwrap_or_default()
    }

    pub fn flush(&mut self) {
        self.wal.flushed = self.wal.entries.len();
    }

    /// A crash of all processes. Entries that were not flushed may have been written.
    pub fn crash(&mut self, choices: &mut Choices) {
        let unsure = self.wal.entries.len() - self.wal.flushed;
        let lost = if unsure > 0 { choices.below(unsure as u32 + 1) as usize } else { 0 };
        self.wal.entries.truncate(self.wal.entries.len() - lost);
        self.flush();
    }

    pub fn lose_power(&mut self, choices: &mut Choices) {
        self.wal.truncate_to_flushed();
        self.files.values_mut().for_each(|file| file.lose_power(choices));
    }

    /// WAL since the last checkpoint cannot be read: `pg_resetwal` makes the server start without it.
    pub fn reset_wal(&mut self) {
        self.wal.entries.truncate(self.control.checkpoint);
        self.flush();
        (self.control.state, self.control.is_reset) = (ControlState::ShutDown, true);
    }

    /// Before its first start, the label of the backup stays.
    pub fn remove_signal(&mut self) {
        self.signal = (self.control.state != ControlState::InRecovery).then_some(Signal::Backup);
    }

    /// A copy with no more WAL than is flushed.
    pub fn flushed(&self) -> Self {
        let mut copy = self.clone();
        copy.wal.truncate_to_flushed();
        copy
    }

    /// A copy, as of a cold directory.
    pub fn copy(&self, identity: u64) -> Self {
        let mut copy = self.clone();
        copy.identity = identity;
        copy.control.identity = identity;
        copy.files.values_mut().for_each(File::sync_name);
        copy
    }
}
