//! What operators do to servers, and what happens to them: starts and stops, crashes, copies, promotions, recoveries to a
//! point, clocks and disks.
//!
//! One server writes at a time: operators fence the old one, as the documents demand. A server that was replaced is empty
//! until another one is copied into it.

use super::clock::{Clock, HIGH_WATER_FILE};
use super::disk::{ControlState, File, Signal};
use super::judge::Promised;
use super::memory::Memory;
use super::process::Process;
use super::run::Run;
use super::server::{Floor, Phase, Server};
use super::{World, sessions};
use idgen_core::clock::label::MarkLabel;
use idgen_core::clock::moves;
use idgen_core::clock::record::Record;
use idgen_core::life;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    StartSession,
    Start,
    Replicate,
    Flush,
    Checkpoint,
    StopCleanly,
    Crash,
    LosePower,
    StopStandby,
    RemoveSignal,
    CopyToStandby,
    Promote,
    RestoreToPoint,
    RestoreBackup,
    StepClock,
    CorrectClock,
    Cancel,
    Suspend,
    FailFiles,
    FailWorkers,
    EndFaults,
    ChangeSettings,
    PutBackFile,
    RemoveFile,
}

impl Act {
    pub const ALL: [Self; 24] = [
        Self::StartSession,
        Self::Start,
        Self::Replicate,
        Self::Flush,
        Self::Checkpoint,
        Self::StopCleanly,
        Self::Crash,
        Self::LosePower,
        Self::StopStandby,
        Self::RemoveSignal,
        Self::CopyToStandby,
        Self::Promote,
        Self::RestoreToPoint,
        Self::RestoreBackup,
        Self::StepClock,
        Self::CorrectClock,
        Self::Cancel,
        Self::Suspend,
        Self::FailFiles,
        Self::FailWorkers,
        Self::EndFaults,
        Self::ChangeSettings,
        Self::PutBackFile,
        Self::RemoveFile,
    ];

    /// Without it nothing happens at all.
    pub fn is_needed(self) -> bool {
        matches!(self, Self::StartSession | Self::Start | Self::Replicate | Self::Flush | Self::EndFaults)
    }
}

const SERVERS: usize = 3;
/// Sessions at a time.
const SESSIONS: usize = 5;

/// One server, and room for two more.
pub fn begin(world: &World) {
    for name in ['A', 'B', 'C'].into_iter().take(SERVERS) {
        let mut server = Server::new(name, world.identity());
        server.is_void = name != 'A';
        server.offset_us = world.one_of(&[0, 0, -2_000_000, -60_000_000, 60_000_000]);
        world.servers.borrow_mut().push(server);
    }
}

impl Run {
    pub fn act(&mut self, act: Act) {
        let world = self.world.clone();
        let primary = self.primary;
        let phase = self.server(primary, |server| server.phase);
        let is_running = phase == Phase::Running;
        match act {
            Act::StartSession if is_running && self.processes.len() < SESSIONS => {
                world.spawn(primary, "session", Box::new(sessions::draw));
            }
            Act::Start => self.start_stopped(),
            Act::Replicate => self.replicate(),
            Act::Flush if is_running => self.server(primary, |server| server.directory.flush()),
            Act::Checkpoint if is_running => self.checkpoint(),
            Act::StopCleanly if is_running => self.stop_cleanly(),
            Act::Crash if phase != Phase::Stopped => self.crash(primary),
            Act::LosePower if phase != Phase::Stopped => self.lose_power(primary),
            Act::StopStandby => self.stop_standby(),
            Act::RemoveSignal => self.remove_signal(),
            Act::CopyToStandby => self.copy_to_standby(),
            Act::Promote => self.promote(),
            Act::RestoreToPoint | Act::RestoreBackup if is_running => self.restore(act == Act::RestoreToPoint),
            Act::StepClock => self.step_clock(),
            Act::CorrectClock => {
                let server = world.below(SERVERS as u32) as usize;
                self.server(server, |server| server.offset_us = 0);
                world.tell(server, || "its clock is corrected".to_owned());
            }
            Act::Cancel => self.cancel(),
            Act::Suspend => self.suspend(),
            Act::FailFiles => world.faults.borrow_mut().io_fails_once_in = world.one_of(&[4, 2, 1]),
            Act::FailWorkers => world.faults.borrow_mut().no_workers = true,
            Act::EndFaults => drop(world.faults.take()),
            Act::ChangeSettings => world.change_settings(),
            Act::PutBackFile | Act::RemoveFile if phase == Phase::Stopped => self.lose_file(act == Act::PutBackFile),
            _ => {}
        }
    }

    pub fn server<R>(&self, index: usize, change: impl FnOnce(&mut Server) -> R) -> R {
        change(&mut self.world.servers.borrow_mut()[index])
    }

    /// A server of the other two, in this phase.
    fn standby_in(&self, phase: Phase) -> Option<usize> {
        let servers = self.world.servers.borrow();
        (0..SERVERS).find(|i| *i != self.primary && !servers[*i].is_void && servers[*i].phase == phase)
    }

    fn start_stopped(&mut self) {
        for index in 0..SERVERS {
            if self.server(index, |server| !server.is_void && server.phase == Phase::Stopped) {
                self.start(index);
            }
        }
    }

    pub fn start(&mut self, index: usize) {
        self.server(index, |server| {
            (server.memory, server.phase, server.replayed_ms) = (Rc::new(Memory::new()), Phase::Starting, None);
        });
        self.world.tell(index, || "starts".to_owned());
        self.world.spawn(index, "postmaster", Box::new(start_up));
    }

    /// The server that may write, if it runs; starts it otherwise.
    pub fn ensure_primary(&mut self) -> Option<usize> {
        match self.server(self.primary, |server| server.phase) {
            Phase::Running => return Some(self.primary),
            Phase::Stopped => {
                self.server(self.primary, |server| {
                    server.directory.signal = server.directory.signal.filter(|_| server.archive.1)
                });
                self.start(self.primary);
            }
            Phase::Starting | Phase::Recovering => {}
        }
        None
    }

    fn crash(&mut self, index: usize) {
        self.world.tell(index, || "is killed".to_owned());
        self.end_processes(index);
        let world = self.world.clone();
        self.server(index, |server| {
            server.directory.crash(&mut world.choices.borrow_mut());
            server.stop(Floor::Mark);
        });
    }

    fn lose_power(&mut self, index: usize) {
        self.world.tell(index, || "loses power".to_owned());
        self.end_processes(index);
        let world = self.world.clone();
        self.server(index, |server| {
            server.directory.lose_power(&mut world.choices.borrow_mut());
            server.booted_us = world.now_us.get();
            server.stop(Floor::Unknown);
        });
        world.reach("a machine loses power");
    }

    fn checkpoint(&mut self) {
        let now_us = self.world.now_us.get();
        let takes_backup = self.world.below(2) == 0;
        self.server(self.primary, |server| {
            server.directory.flush();
            server.directory.control.checkpoint_ms = server.wall_ms(now_us);
            if takes_backup {
                server.backup = Some(server.directory.clone());
            }
        });
    }

    fn stop_cleanly(&mut self) {
        self.world.tell(self.primary, || "is stopped".to_owned());
        self.end_processes(self.primary);
        let now_us = self.world.now_us.get();
        self.server(self.primary, |server| {
            server.directory.flush();
            server.directory.control.checkpoint_ms = server.wall_ms(now_us);
            server.directory.control.state = ControlState::ShutDown;
            server.phase = Phase::Starting;
        });
        self.world.spawn(self.primary, "postmaster", Box::new(shut_down));
    }

    fn stop_standby(&mut self) {
        if let Some(index) = self.standby_in(Phase::Recovering) {
            self.world.tell(index, || "is stopped in recovery".to_owned());
            self.end_processes(index);
            self.server(index, |server| server.stop(Floor::Unknown));
        }
    }

    /// A recovery ends without a promotion: the standby becomes the primary as it is.
    fn remove_signal(&mut self) {
        let is_pending =
            |server: &Server| server.phase == Phase::Stopped && server.directory.signal == Some(Signal::Archive);
        if self.server(self.primary, |server| is_pending(server)) {
            self.server(self.primary, |server| server.directory.signal = None);
            return self.world.tell(self.primary, || "has no signal file any more".to_owned());
        }
        let Some(index) = self.standby_in(Phase::Stopped) else { return };
        if self.server(index, |server| server.directory.rows().is_empty()) {
            return;
        }
        self.world.tell(index, || "takes over without a promotion".to_owned());
        self.world.reach("a standby takes over without a promotion");
        self.server(index, |server| server.directory.signal = None);
        self.take_over(index);
    }

    fn copy_to_standby(&mut self) {
        let Some(index) = (0..SERVERS).find(|i| self.server(*i, |server| server.is_void)) else { return };
        let now = self.server(self.primary, |server| server.directory.clone());
        let directory = self.server(self.primary, |server| server.backup.clone()).unwrap_or(now);
        self.world.tell(index, || "becomes a copy".to_owned());
        let identity = self.world.identity();
        self.server(index, |server| {
            server.directory = directory.copy(identity);
            server.directory.wal.truncate_to_flushed();
            server.directory.signal = Some(Signal::Standby);
            (server.is_void, server.phase) = (false, Phase::Stopped);
        });
        self.start(index);
    }

    /// Standbys receive what the primary has flushed, or a part of it.
    fn replicate(&mut self) {
        let (entries, flushed) =
            self.server(self.primary, |server| (server.directory.wal.entries.clone(), server.directory.wal.flushed));
        let checkpoint_ms = self.server(self.primary, |server| server.directory.control.checkpoint_ms);
        for index in (0..SERVERS).filter(|index| *index != self.primary) {
            let is_standby = self.server(index, |server| server.phase == Phase::Recovering && !server.is_void);
            let known = self.server(index, |server| server.directory.wal.entries.len());
            if is_standby && known < flushed {
                let until = known + 1 + self.world.below((flushed - known) as u32) as usize;
                self.server(index, |server| {
                    server.directory.wal.entries.extend_from_slice(&entries[known..until]);
                    server.directory.flush();
                    server.replayed_ms = Some(entries[until - 1].wall_ms);
                    server.directory.control.checkpoint_ms = checkpoint_ms;
                });
            }
        }
    }

    fn promote(&mut self) {
        let Some(index) = self.standby_in(Phase::Recovering) else { return };
        self.world.tell(index, || "is promoted".to_owned());
        self.world.reach("a standby is promoted");
        self.take_over(index);
        let now_us = self.world.now_us.get();
        self.server(index, |server| server.promote(now_us));
    }

    /// The old primary is fenced. Others follow the new one if they have no more than it has.
    fn take_over(&mut self, index: usize) {
        let old = std::mem::replace(&mut self.primary, index);
        if self.server(old, |server| server.phase != Phase::Stopped) {
            self.crash(old);
        }
        let before = self.server(old, |server| std::mem::take(&mut server.promised));
        let was_passed = self.server(old, |server| server.memory.high_water.label.reach.is_passed());
        let move_ms = self.world.settings.shortest_move_ms.get();
        let length = self.server(index, |server| {
            let replayed = Promised::by_rows(&server.directory.wal.entries);
            let covers = |label: MarkLabel| before.reached_ms < label.until_ms + move_ms;
            let is_promised = server.label().is_some_and(covers) && !was_passed;
            server.promised = if is_promised { replayed.and(&before) } else { replayed };
            server.directory.wal.entries.len()
        });
        for other in (0..SERVERS).filter(|other| *other != index) {
            let has_more = self.server(other, |server| server.directory.wal.entries.len() > length);
            if other == old || has_more {
                self.end_processes(other);
                self.server(other, |server| {
                    (server.is_void, server.phase, server.backup) = (true, Phase::Stopped, None)
                });
            }
        }
    }

    /// A backup replaces the primary: with WAL up to a point, or with that of the backup only.
    fn restore(&mut self, is_to_point: bool) {
        let Some(backup) = self.server(self.primary, |server| server.backup.clone()) else { return };
        let Some(index) = (0..SERVERS).find(|i| self.server(*i, |server| server.is_void)) else { return };
        let (entries, flushed) =
            self.server(self.primary, |server| (server.directory.wal.entries.clone(), server.directory.wal.flushed));
        let begin = backup.wal.flushed;
        let point = begin + self.world.below((flushed - begin) as u32 + 1) as usize;
        let (identity, promotes) = (self.world.identity(), self.world.below(2) == 0);
        self.world.tell(index, || format!("is restored, to a point: {is_to_point}, promotes: {promotes}"));
        self.world.reach(if is_to_point { "a recovery to a point" } else { "a restored backup" });
        self.server(index, |server| {
            server.directory = backup.copy(identity);
            server.directory.wal.truncate_to_flushed();
            server.archive = (Vec::new(), promotes);
            match is_to_point {
                true => server.archive.0 = entries[begin..point].to_vec(),
                false => server.directory.wal.entries.extend_from_slice(&entries[begin..point]),
            }
            server.directory.flush();
            server.directory.signal = Some(if is_to_point { Signal::Archive } else { Signal::Backup });
            (server.is_void, server.phase) = (false, Phase::Stopped);
        });
        self.take_over(index);
        // What the restored data do not have is not promised.
        self.server(index, |server| server.promised = Promised::by_rows(&server.directory.wal.entries));
        self.start(index);
    }

    fn step_clock(&mut self) {
        const HOUR_US: i64 = 3_600_000_000;
        let index = self.world.below(SERVERS as u32) as usize;
        let by_us = self.world.one_of(&[-2_000_000, 2_000_000, -10_000, 10_000, -HOUR_US, HOUR_US, 24 * 365 * HOUR_US]);
        self.server(index, |server| server.offset_us += by_us);
        self.world.tell(index, || format!("its clock steps by {} ms", by_us / 1000));
    }

    fn cancel(&mut self) {
        let sessions: Vec<u64> =
            self.processes.iter().filter(|process| process.name == "session").map(|process| process.id).collect();
        if !sessions.is_empty() {
            self.world.canceled.borrow_mut().insert(self.world.one_of(&sessions));
        }
    }

    /// A process gets no time for a while.
    fn suspend(&mut self) {
        if self.processes.is_empty() {
            return;
        }
        let worker = self.processes.iter().position(|process| process.name == "label worker");
        let any = self.world.below(self.processes.len() as u32) as usize;
        let index = worker.filter(|_| self.world.below(2) == 1).unwrap_or(any);
        let until_us = self.world.now_us.get() + self.world.one_of(&[10_000, 1_000_000, 20_000_000]);
        self.processes[index].stopped_until_us = until_us;
    }

    /// The high-water file is removed, or an older copy of it is put back.
    fn lose_file(&mut self, is_put_back: bool) {
        let Some(copy) = self.server(self.primary, |server| match is_put_back {
            true => server.backup.as_ref()?.files.get(HIGH_WATER_FILE).cloned().map(Some),
            false => Some(None),
        }) else {
            return;
        };
        self.world
            .tell(self.primary, || format!("its file is {}", if is_put_back { "an older copy" } else { "removed" }));
        self.world.reach("the file is lost or an old one");
        self.server(self.primary, |server| {
            let latest_label_ms = copy.as_ref().and_then(|file| latest_label_ms(file));
            match copy {
                Some(file) => drop(server.directory.files.insert(HIGH_WATER_FILE, file)),
                None => drop(server.directory.files.remove(HIGH_WATER_FILE)),
            }
            server.lose_file(latest_label_ms);
        });
    }
}

/// What the postmaster does before it lets sessions in.
fn start_up(process: &Process) {
    let clock = Clock::new(process);
    let (signal, state) = process.server(|server| (server.directory.signal, server.directory.control.state));
    let exists = |name: &str| match name {
        "standby.signal" => signal == Some(Signal::Standby),
        "recovery.signal" => signal == Some(Signal::Archive),
        _ => signal == Some(Signal::Backup),
    };
    if life::starts_from_other_wal(exists, state == ControlState::InRecovery) {
        clock.memory.high_water.is_replayed.store(true, Relaxed);
        // A start does not fail for it.
        let _ = moves::note_recovery(&clock, &mut clock.memory.written.borrow_mut());
    }
    process.step();
    match signal {
        Some(Signal::Standby) => process.change(|server| server.follow()),
        Some(Signal::Archive) => recover_to_point(process),
        Some(Signal::Backup) => {
            process.change(|server| server.follow());
            process.step();
            process.change(|server| server.begin_to_write());
        }
        None => process.change(|server| server.begin_to_write()),
    }
}

fn recover_to_point(process: &Process) {
    process.change(|server| server.follow());
    while !process.server(|server| server.archive.0.is_empty()) {
        process.step();
        process.change(|server| {
            let entry = server.archive.0.remove(0);
            server.replayed_ms = Some(entry.wall_ms);
            server.directory.wal.entries.push(entry);
            server.directory.flush();
            server.promised = Promised::by_rows(&server.directory.wal.entries);
        });
    }
    process.step();
    let now_us = process.world.now_us.get();
    match process.server(|server| server.archive.1) {
        true => process.change(|server| server.promote(now_us)),
        false => process.change(|server| server.stop(Floor::Unknown)),
    }
}

/// What the postmaster does after the checkpoint of a clean stop, when no other process is left.
fn shut_down(process: &Process) {
    let clock = Clock::new(process);
    if clock.memory.high_water.mark.is_known() {
        let exact_ms = clock.memory.table.borrow().unused_from_ms();
        let written = moves::write(&clock, &mut clock.memory.written.borrow_mut(), exact_ms);
        let floor = if written.is_ok() { Floor::Exact } else { Floor::Mark };
        return process.change(|server| server.stop(floor));
    }
    process.change(|server| server.stop(Floor::Mark));
}

fn latest_label_ms(file: &File) -> Option<i64> {
    Some(Record::newest(file.content.as_ref()?)?.record.latest_label_ms)
}
