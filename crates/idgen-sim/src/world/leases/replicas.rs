//! The server's crashes, standbys and backups.

use super::{Leases, NAMES, began};
use crate::world::disk::{Directory, Signal};
use crate::world::process::Process;
use crate::world::server::Phase;
use crate::world::stage::Stage;

impl Leases {
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let primary = self.primary;
        (0..NAMES.len()).filter(move |index| *index != primary)
    }

    /// The primary goes on with the commits that it has.
    fn set_back(&mut self, stage: &mut Stage, is_crash: bool, is_synchronous: bool) {
        let kept = stage.server(self.primary, |server| server.directory.wal.entries.clone());
        for other in self.others() {
            if stage.server(other, |server| server.directory.wal.entries.len() > kept.len()) {
                stage.end_processes(other);
                stage.server(other, |server| (server.is_void, server.phase) = (true, Phase::Stopped));
            }
        }
        let broken = self.leasing.judged.borrow_mut().set_back(&kept, is_crash, is_synchronous);
        broken.into_iter().for_each(|broken| stage.world.break_promise(self.primary, broken));
    }

    pub(super) fn crash(&mut self, stage: &mut Stage) {
        stage.crash(self.primary);
        self.set_back(stage, true, false);
    }

    /// One of its processes has crashed: the postmaster ends the others, and starts again what it needs.
    pub(super) fn crash_process(&mut self, stage: &mut Stage) {
        self.crash(stage);
        let leasing = self.leasing.clone();
        stage.server(self.primary, |server| server.phase = Phase::Starting);
        let restart = move |process: &Process| {
            leasing.running.borrow_mut()[process.server].ended = idgen_core::lease::EndedSessions::new();
            process.change(|server| server.begin_to_write());
            began(&leasing, process.world, process.server, false, false);
        };
        stage.world.spawn(self.primary, "postmaster", Box::new(restart));
    }

    pub(super) fn lose_power(&mut self, stage: &mut Stage) {
        stage.lose_power(self.primary);
        self.is_other_clock.set(true);
        self.set_back(stage, true, false);
    }

    /// Standbys receive what the primary has flushed, or a part of it.
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
            server.directory.flush();
            server.backup = Some(server.directory.clone());
        });
    }

    pub(super) fn copy_to_standby(&mut self, stage: &mut Stage) {
        let void = self.others().find(|index| stage.server(*index, |server| server.is_void));
        let Some(index) = void else { return };
        let directory = stage.server(self.primary, |server| server.directory.clone());
        let identity = stage.world.identity();
        stage.world.tell(index, || "becomes a standby".to_owned());
        self.put(stage, index, &directory, identity, Some(Signal::Standby));
    }

    /// A server gets a copy of these data, in this directory, and starts.
    fn put(&self, stage: &mut Stage, index: usize, data: &Directory, directory: u64, signal: Option<Signal>) {
        stage.end_processes(index);
        let control = stage.world.identity();
        stage.server(index, |server| {
            server.directory = data.copy(directory);
            server.directory.control.identity = control;
            server.directory.wal.truncate_to_flushed();
            server.directory.signal = signal;
            (server.is_void, server.phase) = (false, Phase::Stopped);
        });
        self.start(stage, index);
    }

    /// With synchronous replication, the one that has received most.
    fn standby(&self, stage: &Stage) -> Option<usize> {
        let length = |index: &usize| stage.server(*index, |server| server.directory.wal.entries.len());
        let is_standby =
            |index: &usize| stage.server(*index, |server| !server.is_void && server.phase == Phase::Recovering);
        let standbys: Vec<usize> = self.others().filter(is_standby).collect();
        match self.leasing.is_synchronous.get() {
            true => standbys.into_iter().max_by_key(length),
            false => standbys.get(stage.world.below(2) as usize).or(standbys.first()).copied(),
        }
    }

    pub(super) fn promote(&mut self, stage: &mut Stage) {
        let Some(index) = self.standby(stage) else { return };
        stage.world.tell(index, || "is promoted".to_owned());
        self.take_over(stage, index);
        stage.server(index, |server| server.promote());
        began(&self.leasing, &stage.world, index, self.is_other_clock.take(), true);
    }

    /// A standby becomes the primary as it is: its signal file is removed, and it is restarted.
    pub(super) fn remove_signal(&mut self, stage: &mut Stage) {
        let Some(index) = self.standby(stage) else { return };
        stage.world.tell(index, || "takes over without a promotion".to_owned());
        self.take_over(stage, index);
        stage.crash(index);
        stage.server(index, |server| server.directory.signal = None);
        self.start(stage, index);
    }

    /// The old primary is fenced. Others follow the new one if they have no more than it has.
    fn take_over(&mut self, stage: &mut Stage, index: usize) {
        let old = std::mem::replace(&mut self.primary, index);
        stage.crash(old);
        self.is_other_clock.set(true);
        let is_synchronous = self.leasing.is_synchronous.get();
        self.set_back(stage, false, is_synchronous);
        stage.server(old, |server| (server.is_void, server.backup) = (true, None));
    }

    /// A backup replaces the data in the directory. Without a signal, it was taken cold.
    pub(super) fn restore(&mut self, stage: &mut Stage) {
        let Some(backup) = stage.server(self.primary, |server| server.backup.clone()) else { return };
        let signal = stage.world.one_of(&[Some(Signal::Backup), Some(Signal::Archive), None]);
        stage.world.tell(self.primary, || format!("a backup is restored in its place: {signal:?}"));
        stage.world.reach("a backup with leases is restored");
        let directory = stage.server(self.primary, |server| server.directory.identity);
        stage.crash(self.primary);
        self.is_other_clock.set(true);
        self.put(stage, self.primary, &backup, directory, signal);
        self.set_back(stage, false, false);
    }

    pub(super) fn end_session(&mut self, stage: &mut Stage) {
        let sessions: Vec<usize> =
            (0..stage.processes.len()).filter(|i| stage.processes[*i].name == "session").collect();
        if !sessions.is_empty() {
            stage.world.tell(self.primary, || "a session is killed".to_owned());
            let index = stage.world.one_of(&sessions);
            stage.processes.swap_remove(index).end(&stage.world);
        }
    }
}
