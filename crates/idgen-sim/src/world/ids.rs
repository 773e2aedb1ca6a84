//! A server that makes ids, its standbys and its backups: starts and stops, crashes, copies, promotions, recoveries to a point,
//! clocks and disks.
//!
//! One server writes at a time: operators fence the old one, as the documents demand. A server that was replaced is empty
//! until another one is copied into it.

use super::SHORTEST_MOVE_MS;
use super::clock::HIGH_WATER_FILE;
use super::disk::{ControlState, File, Signal};
use super::judge::Promised;
use super::postmaster::{shut_down, start_up};
use super::process::Process;
use super::run::{Act, Scene};
use super::server::{Floor, Phase, Server};
use super::sessions;
use super::stage::Stage;
use idgen_core::clock::label::MarkLabel;
use idgen_core::clock::moves;
use idgen_core::clock::record::Record;
use std::cell::Cell;
use std::rc::Rc;

/// Sessions at a time.
const SESSIONS: usize = 5;

pub struct Ids {
    /// The server that may write.
    primary: usize,
    /// Of the session that must get an id at the end: whether it has.
    last_session: Option<Rc<Cell<bool>>>,
}

impl Scene for Ids {
    /// One server, and room for two more.
    fn begin(stage: &mut Stage) -> Self {
        for name in ['A', 'B', 'C'] {
            let mut server = Server::new(name, stage.world.identity());
            server.is_void = name != 'A';
            server.offset_us = stage.world.one_of(&[0, 0, -2_000_000, -60_000_000, 60_000_000]);
            stage.world.servers.borrow_mut().push(server);
        }
        stage.start(0, Box::new(start_up));
        Self { primary: 0, last_session: None }
    }

    fn needed_acts() -> Vec<Act<Self>> {
        vec![
            Self::start_session,
            Self::start_stopped,
            Self::replicate,
            |ids, stage| ids.if_phase(stage, Phase::Running, Self::flush),
            |_, stage| stage.end_faults(),
        ]
    }

    fn other_acts() -> Vec<Act<Self>> {
        vec![
            |ids, stage| ids.if_phase(stage, Phase::Running, Self::checkpoint),
            |ids, stage| ids.if_phase(stage, Phase::Running, Self::stop_cleanly),
            |ids, stage| ids.if_alive(stage, Stage::crash),
            |ids, stage| ids.if_alive(stage, Stage::lose_power),
            Self::stop_standby,
            Self::remove_signal,
            Self::copy_to_standby,
            Self::promote,
            |ids, stage| ids.if_phase(stage, Phase::Running, |ids, stage| ids.restore(stage, true)),
            |ids, stage| ids.if_phase(stage, Phase::Running, |ids, stage| ids.restore(stage, false)),
            |ids, stage| ids.if_phase(stage, Phase::Stopped, |ids, stage| ids.lose_file(stage, true)),
            |ids, stage| ids.if_phase(stage, Phase::Stopped, |ids, stage| ids.lose_file(stage, false)),
            |ids, stage| ids.if_phase(stage, Phase::Running, Self::glitch),
            |_, stage| stage.step_clock(),
            |_, stage| stage.correct_clock(),
            |_, stage| stage.cancel_session(),
            |_, stage| stage.suspend(),
            |_, stage| stage.fail_files(),
            |_, stage| stage.fail_workers(),
            |_, stage| stage.world.change_settings(),
        ]
    }

    fn idle(&mut self, stage: &mut Stage) {
        self.judge_label(stage);
        match stage.world.once_in(4) {
            true => self.start_stopped(stage),
            false => self.start_session(stage),
        }
    }

    /// The server that may write issues an id.
    fn live(&mut self, stage: &mut Stage) -> bool {
        if let Some(has_drawn) = &self.last_session {
            return has_drawn.get();
        }
        match self.phase(stage) {
            Phase::Running => {
                let has_drawn = Rc::new(Cell::new(false));
                self.last_session = Some(has_drawn.clone());
                let draw = Box::new(move |process: &Process| has_drawn.set(sessions::draw_once(process)));
                stage.world.spawn(self.primary, "last session", draw);
            }
            Phase::Stopped => {
                // A recovery that ends with a stop would end so again.
                let ends_so = |server: &mut Server| server.directory.signal.is_some() && !server.archive.1;
                if stage.server(self.primary, ends_so) {
                    stage.server(self.primary, |server| server.directory.remove_signal());
                }
                stage.start(self.primary, Box::new(start_up));
            }
            Phase::Starting | Phase::Recovering => {}
        }
        false
    }

    const STUCK: &str = "S3: generation has stopped";
}

impl Ids {
    fn phase(&self, stage: &Stage) -> Phase {
        stage.server(self.primary, |server| server.phase)
    }

    fn if_phase(&mut self, stage: &mut Stage, phase: Phase, act: Act<Self>) {
        if self.phase(stage) == phase {
            act(self, stage);
        }
    }

    fn if_alive(&mut self, stage: &mut Stage, act: fn(&mut Stage, usize)) {
        if self.phase(stage) != Phase::Stopped {
            act(stage, self.primary);
        }
    }

    /// One of the other two servers, in this phase.
    fn standby_in(&self, stage: &Stage, phase: Phase) -> Option<usize> {
        self.others().find(|other| stage.server(*other, |server| !server.is_void && server.phase == phase))
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let primary = self.primary;
        (0..3).filter(move |index| *index != primary)
    }

    fn void(&self, stage: &Stage) -> Option<usize> {
        self.others().find(|other| stage.server(*other, |server| server.is_void))
    }

    fn start_session(&mut self, stage: &mut Stage) {
        if self.phase(stage) == Phase::Running && stage.processes.len() < SESSIONS {
            stage.world.spawn(self.primary, "session", Box::new(sessions::draw));
        }
    }

    fn start_stopped(&mut self, stage: &mut Stage) {
        for index in 0..3 {
            if stage.server(index, |server| !server.is_void && server.phase == Phase::Stopped) {
                stage.start(index, Box::new(start_up));
            }
        }
    }

    /// Standbys receive what the primary has flushed, or a part of it.
    fn replicate(&mut self, stage: &mut Stage) {
        for other in self.others() {
            if stage.server(other, |server| server.phase == Phase::Recovering && !server.is_void) {
                stage.replicate(self.primary, other);
            }
        }
    }

    /// While nothing happens, the label is no further ahead than the ids need it: a server that is promoted begins past it.
    fn judge_label(&self, stage: &Stage) {
        let is_busy = stage.processes.iter().any(|process| process.server == self.primary && process.name != "session");
        let (memory, label, known_ms) =
            stage.server(self.primary, |server| (server.memory.clone(), server.label(), server.promised.known_ms()));
        let Some(known_ms) = known_ms else { return };
        let is_calm = !is_busy && memory.transactions.get() == 0 && !memory.is_disturbed.get();
        if self.phase(stage) != Phase::Running || !is_calm || !moves::is_ready(&memory.high_water) {
            return;
        }
        let wall_ms = stage.server(self.primary, |server| server.wall_ms(stage.world.now_us.get()));
        let observed_ms = stage.world.observed_ms.borrow().iter().max().copied();
        let known_ms = known_ms.max(wall_ms).max(observed_ms.unwrap_or(i64::MIN));
        let at_most_ms = known_ms + 4 * stage.world.settings.longest_move_ms.get();
        if let Some(label) = label.filter(|label| label.until_ms > at_most_ms) {
            let text = format!("S3: the label is {} ms further ahead than it may be", label.until_ms - at_most_ms);
            stage.world.break_promise(self.primary, text);
        }
    }

    fn flush(&mut self, stage: &mut Stage) {
        stage.server(self.primary, |server| server.directory.flush());
    }

    fn checkpoint(&mut self, stage: &mut Stage) {
        let now_us = stage.world.now_us.get();
        let takes_backup = stage.world.below(2) == 0;
        stage.server(self.primary, |server| {
            server.directory.flush();
            server.directory.control.checkpoint_ms = server.wall_ms(now_us);
            if takes_backup {
                server.backup = Some(server.directory.clone());
            }
        });
    }

    /// The clock is wrong for a moment in which no id is drawn.
    fn glitch(&mut self, stage: &mut Stage) {
        const YEAR_US: i64 = 365 * 24 * 3_600_000_000;
        stage.world.tell(self.primary, || "makes a checkpoint while its clock is a year ahead".to_owned());
        stage.server(self.primary, |server| server.offset_us += YEAR_US);
        self.checkpoint(stage);
        stage.server(self.primary, |server| server.offset_us -= YEAR_US);
    }

    fn stop_cleanly(&mut self, stage: &mut Stage) {
        stage.world.tell(self.primary, || "is stopped".to_owned());
        stage.end_processes(self.primary);
        let now_us = stage.world.now_us.get();
        stage.server(self.primary, |server| {
            server.directory.flush();
            server.directory.control.checkpoint_ms = server.wall_ms(now_us);
            server.directory.control.state = ControlState::ShutDown;
            server.phase = Phase::Starting;
        });
        stage.world.spawn(self.primary, "postmaster", Box::new(shut_down));
    }

    fn stop_standby(&mut self, stage: &mut Stage) {
        if let Some(index) = self.standby_in(stage, Phase::Recovering) {
            stage.world.tell(index, || "is stopped in recovery".to_owned());
            stage.end_processes(index);
            stage.server(index, |server| server.stop(Floor::Unknown));
        }
    }

    /// A recovery ends without a promotion: the standby becomes the primary as it is.
    fn remove_signal(&mut self, stage: &mut Stage) {
        let is_pending =
            |server: &Server| server.phase == Phase::Stopped && server.directory.signal == Some(Signal::Archive);
        if stage.server(self.primary, |server| is_pending(server)) {
            stage.server(self.primary, |server| server.directory.remove_signal());
            return stage.world.tell(self.primary, || "has no signal file any more".to_owned());
        }
        let Some(index) = self.standby_in(stage, Phase::Stopped) else { return };
        if stage.server(index, |server| server.directory.rows().is_empty()) {
            return;
        }
        stage.world.tell(index, || "takes over without a promotion".to_owned());
        stage.world.reach("a standby takes over without a promotion");
        stage.server(index, |server| server.directory.remove_signal());
        self.take_over(stage, index);
    }

    fn copy_to_standby(&mut self, stage: &mut Stage) {
        let Some(index) = self.void(stage) else { return };
        let now = stage.server(self.primary, |server| server.directory.clone());
        let directory = stage.server(self.primary, |server| server.backup.clone()).unwrap_or(now);
        stage.world.tell(index, || "becomes a copy".to_owned());
        let identity = stage.world.identity();
        stage.server(index, |server| {
            server.directory = directory.copy(identity);
            server.directory.wal.truncate_to_flushed();
            server.directory.signal = Some(Signal::Standby);
            (server.is_void, server.phase) = (false, Phase::Stopped);
        });
        stage.start(index, Box::new(start_up));
    }

    fn promote(&mut self, stage: &mut Stage) {
        let Some(index) = self.standby_in(stage, Phase::Recovering) else { return };
        stage.world.tell(index, || "is promoted".to_owned());
        stage.world.reach("a standby is promoted");
        self.take_over(stage, index);
        stage.server(index, |server| {
            server.promote();
            server.expect_ids();
        });
    }

    /// The old primary is fenced. Others follow the new one if they have no more than it has.
    fn take_over(&mut self, stage: &mut Stage, index: usize) {
        let old = std::mem::replace(&mut self.primary, index);
        if stage.server(old, |server| server.phase != Phase::Stopped) {
            stage.crash(old);
        }
        let before = stage.server(old, |server| std::mem::take(&mut server.promised));
        let was_passed = stage.server(old, |server| server.memory.high_water.label.reach.is_passed());
        let length = stage.server(index, |server| {
            let replayed = Promised::by_rows(&server.directory.wal.entries);
            let covers = |label: MarkLabel| before.reached_ms < label.until_ms + SHORTEST_MOVE_MS;
            let is_promised = server.label().is_some_and(covers) && !was_passed;
            server.promised = if is_promised { replayed.and(&before) } else { replayed };
            server.directory.wal.entries.len()
        });
        for other in self.others() {
            let has_more = stage.server(other, |server| server.directory.wal.entries.len() > length);
            if other == old || has_more {
                stage.end_processes(other);
                stage.server(other, |server| {
                    (server.is_void, server.phase, server.backup) = (true, Phase::Stopped, None)
                });
            }
        }
    }

    /// A backup replaces the primary: with WAL up to a point, or with that of the backup only.
    fn restore(&mut self, stage: &mut Stage, is_to_point: bool) {
        let Some(backup) = stage.server(self.primary, |server| server.backup.clone()) else { return };
        let Some(index) = self.void(stage) else { return };
        let (entries, flushed) =
            stage.server(self.primary, |server| (server.directory.wal.entries.clone(), server.directory.wal.flushed));
        let begin = backup.wal.flushed;
        let point = begin + stage.world.below((flushed - begin) as u32 + 1) as usize;
        let (identity, promotes) = (stage.world.identity(), stage.world.below(2) == 0);
        stage.world.tell(index, || format!("is restored, to a point: {is_to_point}, promotes: {promotes}"));
        stage.world.reach(if is_to_point { "a recovery to a point" } else { "a restored backup" });
        stage.server(index, |server| {
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
        self.take_over(stage, index);
        // What the restored data do not have is not promised.
        stage.server(index, |server| server.promised = Promised::by_rows(&server.directory.wal.entries));
        stage.start(index, Box::new(start_up));
    }

    /// The high-water file is removed, or an older copy of it is put back.
    fn lose_file(&mut self, stage: &mut Stage, is_put_back: bool) {
        let Some(copy) = stage.server(self.primary, |server| match is_put_back {
            true => server.backup.as_ref()?.files.get(HIGH_WATER_FILE).cloned().map(Some),
            false => Some(None),
        }) else {
            return;
        };
        stage
            .world
            .tell(self.primary, || format!("its file is {}", if is_put_back { "an older copy" } else { "removed" }));
        stage.world.reach("the file is lost or an old one");
        stage.server(self.primary, |server| {
            let found = copy.as_ref().and_then(newest_record);
            match copy {
                Some(file) => drop(server.directory.files.insert(HIGH_WATER_FILE, file)),
                None => drop(server.directory.files.remove(HIGH_WATER_FILE)),
            }
            server.lose_file(found.as_ref());
        });
    }
}

fn newest_record(file: &File) -> Option<Record> {
    Some(Record::newest(file.content.as_ref()?)?.record)
}
