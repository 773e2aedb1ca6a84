//! The coordinator's standbys, backups and copies.

use super::{COORDINATORS, Workers};
use crate::world::disk::{Directory, Signal};
use crate::world::rows::Key;
use crate::world::server::Phase;
use crate::world::stage::Stage;

impl Workers {
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let primary = self.primary;
        (0..COORDINATORS).filter(move |index| *index != primary)
    }

    fn void(&self, stage: &Stage) -> Option<usize> {
        self.others().find(|index| stage.server(*index, |server| server.is_void))
    }

    /// Standbys receive what the coordinator has flushed, or a part of it.
    pub(super) fn replicate(&mut self, stage: &mut Stage) {
        for index in self.others() {
            if stage.server(index, |server| server.phase == Phase::Recovering && !server.is_void) {
                stage.replicate(self.primary, index);
            }
        }
    }

    pub(super) fn take_backup(&mut self, stage: &mut Stage) {
        stage.world.tell(self.primary, || "is backed up".to_owned());
        stage.server(self.primary, |server| {
            server.checkpoint();
            server.backup = Some(server.directory.clone());
        });
    }

    /// A server that was replaced follows the coordinator, in its old directory or in another one.
    pub(super) fn copy_to_standby(&mut self, stage: &mut Stage) {
        let Some(index) = self.void(stage) else { return };
        let (directory, own) = (
            stage.server(self.primary, |server| server.directory.clone()),
            stage.server(index, |server| server.directory.identity),
        );
        let (identity, is_in_place) = (stage.world.identity(), stage.world.once_in(2));
        stage.world.tell(index, || format!("becomes a standby, in its old directory: {is_in_place}"));
        self.put(stage, index, &directory, (if is_in_place { own } else { identity }, identity), Some(Signal::Standby));
    }

    /// A server gets a copy of these data, with the identities of a directory and a control file, and starts.
    fn put(
        &self,
        stage: &mut Stage,
        index: usize,
        data: &Directory,
        (directory, control): (u64, u64),
        signal: Option<Signal>,
    ) {
        stage.end_processes(index);
        stage.server(index, |server| {
            server.directory = data.copy(directory);
            server.directory.control.identity = control;
            server.directory.wal.truncate_to_flushed();
            server.directory.signal = signal;
            (server.is_void, server.phase) = (false, Phase::Stopped);
        });
        self.start(stage, index);
    }

    pub(super) fn promote(&mut self, stage: &mut Stage) {
        let Some(index) = self.standby(stage) else { return };
        stage.world.tell(index, || "is promoted".to_owned());
        stage.world.reach("a coordinator's standby is promoted");
        self.take_over(stage, index);
        stage.server(index, |server| server.promote());
        self.coordination.begins_to_write(index, stage.world.now_us.get());
    }

    /// With synchronous replication, the one that has received most.
    fn standby(&self, stage: &Stage) -> Option<usize> {
        let length = |index: &usize| stage.server(*index, |server| server.directory.wal.entries.len());
        let is_standby =
            |index: &usize| stage.server(*index, |server| !server.is_void && server.phase == Phase::Recovering);
        let standbys: Vec<usize> = self.others().filter(is_standby).collect();
        match self.coordination.is_synchronous.get() {
            true => standbys.into_iter().max_by_key(length),
            false => standbys.get(stage.world.below(2) as usize).or(standbys.first()).copied(),
        }
    }

    /// A standby becomes the coordinator as it is: its signal file is removed, and it is restarted.
    pub(super) fn remove_signal(&mut self, stage: &mut Stage) {
        let Some(index) = self.standby(stage) else { return };
        stage.world.tell(index, || "takes over without a promotion".to_owned());
        self.take_over(stage, index);
        stage.crash(index);
        stage.server(index, |server| server.directory.remove_signal());
        self.start(stage, index);
    }

    /// The old coordinator is fenced. Others follow the new one if they have no more than it has.
    fn take_over(&mut self, stage: &mut Stage, index: usize) {
        let old = std::mem::replace(&mut self.primary, index);
        stage.crash(old);
        self.coordination.address.set(index);
        self.set_back(stage, true);
        stage.server(old, |server| (server.is_void, server.backup) = (true, None));
    }

    fn set_back(&mut self, stage: &mut Stage, is_noticed: bool) {
        let kept = stage.server(self.primary, |server| server.directory.wal.entries.clone());
        for other in self.others() {
            let has_more = stage.server(other, |server| server.directory.wal.entries.len() > kept.len());
            if has_more {
                stage.end_processes(other);
                stage.server(other, |server| (server.is_void, server.phase) = (true, Phase::Stopped));
            }
        }
        self.beside = self.beside.filter(|index| stage.server(*index, |server| !server.is_void));
        self.coordination.judged.borrow_mut().set_back(&kept, is_noticed);
    }

    /// A backup replaces the coordinator's data, in its directory.
    pub(super) fn restore(&mut self, stage: &mut Stage) {
        let Some(backup) = stage.server(self.primary, |server| server.backup.clone()) else { return };
        // Without a signal, a cold backup: its control file is another file.
        let signal = stage.world.one_of(&[Some(Signal::Backup), Some(Signal::Archive), None]);
        stage.world.tell(self.primary, || format!("a backup is restored in its place: {signal:?}"));
        stage.world.reach("a coordinator's backup is restored in place");
        let directory = stage.server(self.primary, |server| server.directory.identity);
        stage.crash(self.primary);
        let control = stage.world.identity();
        self.put(stage, self.primary, &backup, (directory, control), signal);
        // A cold backup from before the first pool has nothing that another control file contradicts.
        let is_noticed = signal.is_some() || has_had_pools(&backup);
        self.set_back(stage, is_noticed);
    }

    pub(super) fn reset_wal(&mut self, stage: &mut Stage) {
        stage.world.tell(self.primary, || "its WAL is reset".to_owned());
        stage.world.reach("the WAL of a coordinator is reset");
        stage.crash(self.primary);
        stage.server(self.primary, |server| server.directory.reset_wal());
        self.set_back(stage, true);
        self.start(stage, self.primary);
    }

    /// Nothing in the data shows it.
    pub(super) fn put_back_snapshot(&mut self, stage: &mut Stage) {
        let Some(backup) = stage.server(self.primary, |server| server.backup.clone()) else {
            return self.if_coordinates(stage, Self::take_backup);
        };
        stage.world.tell(self.primary, || "its volume is put back to a snapshot".to_owned());
        stage.crash(self.primary);
        let identities = (backup.identity, backup.control.identity);
        self.put(stage, self.primary, &backup, identities, None);
        self.set_back(stage, false);
    }

    /// A copy of the coordinator's data is started beside it, and keepers reach the copy, or the origin again. Or the origin is
    /// gone, and the copy takes its place.
    pub(super) fn copy_beside(&mut self, stage: &mut Stage) {
        let Some(index) = self.beside.take() else {
            let Some(index) = self.void(stage) else { return };
            let directory = stage.server(self.primary, |server| server.directory.clone());
            // Without them, each of the two is a coordinator with pools of its own.
            if !has_had_pools(&directory) {
                return;
            }
            let identity = stage.world.identity();
            stage.world.tell(index, || "is a copy of the coordinator beside it, and keepers reach it".to_owned());
            stage.world.reach("a copy of the coordinator runs beside it");
            self.coordination.judged.borrow_mut().allow_interruptions();
            self.put(stage, index, &directory, (identity, identity), None);
            self.coordination.address.set(index);
            self.beside = Some(index);
            return;
        };
        if stage.world.once_in(2) {
            stage.world.tell(index, || "the copy of the coordinator takes its place".to_owned());
            return self.take_over(stage, index);
        }
        stage.end_processes(index);
        stage.server(index, |server| (server.is_void, server.phase) = (true, Phase::Stopped));
        self.coordination.address.set(self.primary);
    }
}

/// The judge knows of pools, and not of what the coordinator records with them.
fn has_had_pools(directory: &Directory) -> bool {
    directory.rows().keys().any(|key| matches!(key, Key::Pool(_) | Key::Worker(..) | Key::WorkerHistory))
}
