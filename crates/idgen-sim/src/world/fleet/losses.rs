//! How a coordinator falls back to an earlier state, and what its operators do then.

use super::super::disk::{Directory, Signal};
use super::super::rows::{Key, Row};
use super::super::server::Phase;
use super::super::stage::Stage;
use super::life;
use super::scene::Fleet;
use super::{COORDINATORS, tag_row};
use idgen_core::segment::fleet::ServerReport;

impl Fleet {
    fn standby(&self) -> usize {
        COORDINATORS - 1 - self.coordinator()
    }

    pub fn copy_to_standby(&mut self, stage: &mut Stage) {
        let (from, to) = (self.coordinator(), self.standby());
        if !stage.server(to, |server| server.is_void) || stage.server(from, |server| server.phase) == Phase::Stopped {
            return;
        }
        let directory = match self.backup.clone().filter(|_| stage.world.below(2) == 0) {
            Some(backup) => backup,
            None => stage.server(from, |server| server.directory.clone()),
        };
        stage.world.tell(to, || "becomes a standby".to_owned());
        self.put(stage, to, directory, Some(Signal::Standby));
        self.start(stage, to);
    }

    /// A copy replaces the directory of a server that is stopped, as a whole or file by file.
    fn put(&self, stage: &mut Stage, index: usize, directory: Directory, signal: Option<Signal>) {
        let (identity, is_whole) = (stage.world.identity(), stage.world.below(2) == 0);
        stage.server(index, |server| {
            let before = server.directory.identity;
            server.directory = directory.copy(identity);
            if !is_whole {
                server.directory.identity = before;
            }
            server.directory.wal.truncate_to_flushed();
            server.directory.signal = signal;
            (server.is_void, server.phase) = (false, Phase::Stopped);
        });
    }

    /// The standby takes over: by a promotion, or without one.
    pub fn promote(&mut self, stage: &mut Stage) {
        self.take_over(stage, true);
    }

    pub fn remove_signal(&mut self, stage: &mut Stage) {
        self.take_over(stage, false);
    }

    fn take_over(&mut self, stage: &mut Stage, is_promoted: bool) {
        let (old, index) = (self.coordinator(), self.standby());
        let (is_ready, length) = stage.server(index, |server| {
            let is_ready = !server.is_void && server.phase == Phase::Recovering;
            (is_ready, server.directory.wal.entries.len())
        });
        let has_all = length >= self.shared.acknowledged.get();
        if !is_ready || (self.shared.is_synchronous && !has_all) || length == 0 {
            return;
        }
        stage.world.tell(index, || format!("takes over, promoted: {is_promoted}"));
        self.stop_at_once(stage, old);
        stage.end_processes(index);
        let lost = self.is_granted_above(stage, index);
        if lost && is_promoted {
            stage.world.reach("a standby without the last grants is promoted");
        }
        self.shared.coordinator.set(index);
        stage.server(old, |server| server.is_void = true);
        (self.backup, self.cold, self.snapshot) = (None, None, None);
        self.fall_back(stage, self.shared.is_synchronous);
        if !is_promoted {
            stage.world.reach("a standby of a fleet takes over without a promotion");
            stage.server(index, |server| (server.directory.signal, server.phase) = (None, Phase::Stopped));
            return self.start(stage, index);
        }
        let now_us = stage.world.now_us.get();
        stage.server(index, |server| {
            server.promote();
            life::checkpoint(server, now_us);
            server.phase = Phase::Starting;
        });
        self.shared.spawn(&stage.world, index, "postmaster", life::begin_to_serve);
    }

    fn is_granted_above(&self, stage: &Stage, index: usize) -> bool {
        let max_id = |tag| tag_row(&stage.world, index, tag).map(|row| row.definition.max_id);
        (0..self.shared.tags).any(|tag| max_id(tag) < Some(self.shared.judge.borrow().highest(tag)))
    }

    fn stop_at_once(&mut self, stage: &mut Stage, index: usize) {
        if stage.server(index, |server| server.phase != Phase::Stopped) {
            stage.crash(index);
        }
    }

    /// The standby has what the coordinator has lost.
    fn remove_standby(&mut self, stage: &mut Stage) {
        let standby = self.standby();
        stage.end_processes(standby);
        stage.server(standby, |server| (server.is_void, server.phase) = (true, Phase::Stopped));
    }

    /// A backup replaces the coordinator, with WAL up to a point. Its recovery may end with a promotion.
    pub fn restore(&mut self, stage: &mut Stage) {
        let Some(backup) = self.backup.clone() else { return };
        let index = self.coordinator();
        let (entries, flushed) =
            stage.server(index, |server| (server.directory.wal.entries.clone(), server.directory.wal.flushed));
        let begin = backup.wal.flushed;
        let point = begin + stage.world.below((flushed - begin) as u32 + 1) as usize;
        let signal = stage.world.one_of(&[Signal::Backup, Signal::Archive]);
        stage.world.tell(index, || format!("is restored from a backup by {signal:?}"));
        stage.world.reach("a backup of a coordinator is restored in place");
        self.stop_at_once(stage, index);
        self.remove_standby(stage);
        self.put(stage, index, backup, Some(signal));
        stage.server(index, |server| {
            server.directory.wal.entries.extend_from_slice(&entries[begin..point]);
            server.directory.flush();
        });
        (self.cold, self.snapshot) = (None, None);
        self.fall_back(stage, false);
        self.start(stage, index);
    }

    /// A copy of the directory, from a clean stop, is copied back in place.
    pub fn copy_back(&mut self, stage: &mut Stage) {
        let Some(cold) = self.cold.clone() else { return };
        let index = self.coordinator();
        stage.world.tell(index, || "its directory is copied back".to_owned());
        stage.world.reach("a directory is copied back in place");
        self.stop_at_once(stage, index);
        self.remove_standby(stage);
        self.put(stage, index, cold, None);
        (self.backup, self.snapshot) = (None, None);
        self.fall_back(stage, false);
        self.start(stage, index);
    }

    pub fn reset_wal(&mut self, stage: &mut Stage) {
        let index = self.coordinator();
        stage.world.tell(index, || "its WAL is reset".to_owned());
        stage.world.reach("the WAL of a coordinator is reset");
        self.stop_at_once(stage, index);
        self.remove_standby(stage);
        stage.server(index, |server| server.directory.reset_wal());
        (self.backup, self.cold, self.snapshot) = (None, None, None);
        self.fall_back(stage, false);
        self.start(stage, index);
    }

    /// A snapshot of the coordinator's disk is kept, and later put back, which leaves no trace.
    pub fn keep_or_put_back_snapshot(&mut self, stage: &mut Stage) {
        let index = self.coordinator();
        let Some(snapshot) = self.snapshot.take() else {
            if stage.server(index, |server| server.phase) == Phase::Running {
                stage.world.tell(index, || "a snapshot of its disk is kept".to_owned());
                self.snapshot = Some(stage.server(index, |server| server.directory.flushed()));
            }
            return;
        };
        stage.world.tell(index, || "a snapshot of its disk is put back".to_owned());
        stage.world.reach("a snapshot of a coordinator's disk is put back");
        self.stop_at_once(stage, index);
        self.remove_standby(stage);
        stage.server(index, |server| server.directory = snapshot);
        (self.backup, self.cold) = (None, None);
        self.fall_back(stage, false);
        for tag in 0..self.shared.tags {
            self.shared.judge.borrow_mut().snapshot(tag);
        }
        self.start(stage, index);
    }

    /// The coordinator has an earlier state. What no mechanism notices is the operator's duty: servers that the coordinator
    /// does not know.
    fn fall_back(&mut self, stage: &mut Stage, keeps_all: bool) {
        let index = self.coordinator();
        let length = stage.server(index, |server| server.directory.wal.entries.len());
        self.shared.acknowledged.set(self.shared.acknowledged.get().min(length));
        self.shared.raises.borrow_mut().clear();
        let rows = stage.server(index, |server| server.directory.rows());
        for tag in 0..self.shared.tags {
            let max_id = tag_row(&stage.world, index, tag).map_or(-1, |row| row.definition.max_id);
            let known = rows.range(Key::Report(tag, i64::MIN)..=Key::Report(tag, i64::MAX));
            let report = |row: &Row| match row {
                Row::Report(report) => Some(report.clone()),
                _ => None,
            };
            let reports: Vec<ServerReport> = known.filter_map(|(_, row)| report(row)).collect();
            let mut judge = self.shared.judge.borrow_mut();
            if max_id < 0 || !keeps_all && judge.is_unknown(tag, max_id, &reports) {
                self.shared.raises.borrow_mut().push((tag, judge.highest(tag)));
            }
            if !keeps_all {
                judge.falls_back(tag, max_id, COORDINATORS);
            }
        }
    }
}
