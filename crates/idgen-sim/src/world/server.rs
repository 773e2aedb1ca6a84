//! A simulated server: a data directory, clocks, and shared memory while it runs.

use super::LONGEST_MOVE_MS;
use super::clock::HIGH_WATER_FILE;
use super::disk::{ControlState, Directory, Entry};
use super::judge::Promised;
use super::memory::Memory;
use super::rows::{Key, Row};
use idgen_core::clock::label::MarkLabel;
use idgen_core::clock::record::Record;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Stopped,
    /// Its postmaster works, before recovery.
    Starting,
    /// It replays WAL: a standby, or a recovery from an archive.
    Recovering,
    Running,
}

pub struct Server {
    pub name: char,
    pub directory: Directory,
    pub phase: Phase,
    pub memory: Rc<Memory>,
    /// It has no data that anyone may start: another server has taken over.
    pub is_void: bool,
    /// A backup that was taken while it ran: its files as they were then, and its WAL so far.
    pub backup: Option<Directory>,
    /// What a recovery from an archive replays, and whether it ends with a promotion.
    pub archive: (Vec<Rc<Entry>>, bool),
    /// The time of the last commit that it has replayed since it started, by the clock of the one that has written it.
    pub replayed_ms: Option<i64>,
    /// The wall clock minus the true time.
    pub offset_us: i64,
    /// When the machine started, in true time.
    pub booted_us: i64,
    /// What no id of it may be at or below.
    pub promised: Promised,
}

/// The true time at the beginning of the world: 2026-01-01.
pub const BEGIN_MS: i64 = 1_767_225_600_000;

impl Server {
    pub fn new(name: char, identity: u64) -> Self {
        Self {
            name,
            directory: Directory::new(identity, BEGIN_MS),
            phase: Phase::Stopped,
            memory: Rc::new(Memory::new()),
            is_void: false,
            backup: None,
            archive: (Vec::new(), true),
            replayed_ms: None,
            offset_us: 0,
            booted_us: -3_600_000_000,
            promised: Promised::default(),
        }
    }

    /// The label that its rows have.
    pub fn label(&self) -> Option<MarkLabel> {
        match self.directory.rows().get(&Key::Label) {
            Some(Row::Label(label)) => Some(*label),
            _ => None,
        }
    }

    pub fn wall_ms(&self, now_us: i64) -> i64 {
        BEGIN_MS + (now_us + self.offset_us).div_euclid(1000)
    }

    pub fn wall_us(&self, now_us: i64) -> i64 {
        BEGIN_MS * 1000 + now_us + self.offset_us
    }

    pub fn boot_us(&self, now_us: i64) -> i64 {
        now_us - self.booted_us
    }

    /// It begins to replay WAL.
    pub fn follow(&mut self) {
        self.directory.control.state = ControlState::InRecovery;
        self.phase = Phase::Recovering;
    }

    /// It begins to write.
    pub fn begin_to_write(&mut self) {
        self.checkpoint();
        self.directory.control.state = ControlState::InProduction;
        self.directory.signal = None;
        self.phase = Phase::Running;
    }

    /// All that it has committed is in WAL before this.
    pub fn checkpoint(&mut self) {
        self.directory.flush();
        let Directory { control, wal, .. } = &mut self.directory;
        (control.checkpoint, control.is_reset) = (wal.flushed, false);
    }

    /// It will issue ids. After a recovery they begin at the mark, or one move past the label, at the latest.
    pub fn expect_ids(&mut self) {
        let is_promoted = self.label().is_some_and(|label| label.timeline != self.directory.control.timeline);
        let known_ms = self.promised.floor_at_most_ms;
        // Until it has written a label, a promoted server can begin past that of its primary at each start.
        if known_ms.is_none() || is_promoted {
            let latest_ms = self.latest_floor_ms();
            self.promised.restart(latest_ms.map(|latest_ms| latest_ms.max(known_ms.unwrap_or(latest_ms))));
        }
    }

    /// `None` if the clock decides: without a label, or with a file that is damaged.
    fn latest_floor_ms(&self) -> Option<i64> {
        let past_label_ms = self.label()?.until_ms + LONGEST_MOVE_MS;
        let file = self.directory.files.get(HIGH_WATER_FILE).and_then(|file| file.content.as_ref());
        let Some(content) = file else { return Some(past_label_ms) };
        let found = Record::newest(content).filter(|found| !found.other_is_damaged)?;
        Some(past_label_ms.max(found.record.mark_ms))
    }

    pub fn promote(&mut self) {
        self.directory.control.timeline += 1;
        self.promised.restart(None);
        self.begin_to_write();
    }

    pub fn stop(&mut self, floor: Floor) {
        self.phase = Phase::Stopped;
        let known_ms = self.promised.floor_at_most_ms;
        self.promised.restart(match floor {
            Floor::Exact if self.promised.has_issued() => Some(self.promised.reached_ms + 1),
            Floor::Exact => known_ms,
            // A record that was not written as a whole can make the file look older than the data.
            Floor::Mark if self.memory.is_disturbed.get() => None,
            Floor::Mark if self.promised.has_issued() => Some(self.promised.mark_ms),
            // It may have written no record since it was promoted, or since its file was lost.
            Floor::Mark => known_ms.map(|known_ms| known_ms.max(self.promised.mark_ms)),
            Floor::Unknown => None,
        });
    }

    /// Its file is gone, or this older one. Only what the label in the data covers is promised: without one nothing, and nothing
    /// above the mark of the older file if that does not show that it is old. Ids begin at that mark.
    pub fn lose_file(&mut self, found: Option<&Record>) {
        let label = self.label().filter(|label| Some(label.until_ms) > found.map(|record| record.latest_label_ms));
        if label.is_none_or(|label| label.until_ms <= self.promised.reached_ms) {
            if label.is_none() {
                self.delete_ids();
            }
            self.promised = Promised::by_rows(&self.directory.wal.entries);
            self.promised.mark_ms = found.map_or(0, |record| record.mark_ms);
        }
        self.promised.restart(None);
    }

    /// Deletes the rows whose ids may be repeated, or they would count again for a standby or a backup of this server.
    fn delete_ids(&mut self) {
        let Directory { wal, control, .. } = &mut self.directory;
        let Some(last) = wal.entries.last() else { return };
        let mut rows = (*last.rows).clone();
        rows.retain(|key, _| !matches!(key, Key::Ids(_)));
        let entry = Entry { timeline: control.timeline, wall_ms: last.wall_ms, rows: Rc::new(rows) };
        wal.entries.push(Rc::new(entry));
        self.directory.flush();
    }
}

/// Where ids begin after a stop.
pub enum Floor {
    /// After the last one.
    Exact,
    /// At the mark.
    Mark,
    Unknown,
}
