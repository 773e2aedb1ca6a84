//! A run of a fleet: how it begins, and how all servers draw again once faults have ended.

use super::super::disk::Directory;
use super::super::rows::{Key, Row};
use super::super::run::{Act, Scene};
use super::super::server::{Phase, Server};
use super::super::stage::Stage;
use super::network::Network;
use super::{COORDINATORS, Shared, life, operators, sessions, tag_row};
use idgen_core::segment::fleet::ServerReport;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The steps from one look at what operators have to do to the next, once faults have ended.
const STEPS_TO_A_LOOK: u32 = 200;

pub struct Fleet {
    pub shared: Rc<Shared>,
    /// What operators have kept of the coordinator: a backup, a copy from a clean stop, a snapshot of its disk.
    pub backup: Option<Directory>,
    pub cold: Option<Directory>,
    pub snapshot: Option<Directory>,
    /// Of the servers that must draw at the end: whether each has.
    last_sessions: Vec<(usize, usize, Rc<Cell<bool>>)>,
    looks_in: u32,
}

impl Scene for Fleet {
    fn begin(stage: &mut Stage) -> Self {
        let attached = stage.world.one_of(&[2, 1, 3]);
        for name in ['A', 'B', 'C', 'D', 'E'].into_iter().take(COORDINATORS + attached) {
            let mut server = Server::new(name, stage.world.identity());
            server.is_void = name == 'B';
            stage.world.servers.borrow_mut().push(server);
        }
        let shared = Rc::new(Shared::new(&stage.world, COORDINATORS + attached));
        shared.raises.borrow_mut().extend((0..shared.tags).map(|tag| (tag, -1)));
        let (backup, cold, snapshot) = (None, None, None);
        let fleet = Self { shared, backup, cold, snapshot, last_sessions: Vec::new(), looks_in: 0 };
        for index in (0..COORDINATORS + attached).filter(|index| *index != 1) {
            fleet.start(stage, index);
        }
        fleet
    }

    fn needed_acts() -> Vec<Act<Self>> {
        vec![
            Self::start_session,
            Self::start_session,
            Self::start_stopped,
            Self::attach,
            Self::attach,
            Self::copy_to_standby,
            |fleet, stage| fleet.end_faults(stage),
        ]
    }

    fn other_acts() -> Vec<Act<Self>> {
        Self::faults_and_statements()
    }

    fn idle(&mut self, stage: &mut Stage) {
        match stage.world.once_in(4) {
            true => self.start_stopped(stage),
            false => self.start_session(stage),
        }
    }

    /// Each attached server draws of each tag, and gets new values for that.
    fn live(&mut self, stage: &mut Stage) -> bool {
        if self.looks_in == 0 {
            self.look(stage);
            self.looks_in = STEPS_TO_A_LOOK;
        }
        self.looks_in -= 1;
        // Also in a story that was shortened to choices by which no time passes, and one process runs again and again.
        stage.world.now_us.set(stage.world.now_us.get() + 1000);
        stage.take_turns();
        let is_over = !self.last_sessions.is_empty() || self.attached(stage).is_empty();
        is_over && !self.last_sessions.iter().any(|last| Self::has_to_draw(stage, last))
    }

    const STUCK: &str = "G4: a server gets no values";
}

impl Fleet {
    pub fn coordinator(&self) -> usize {
        self.shared.coordinator.get()
    }

    pub fn servers(&self, stage: &Stage) -> usize {
        stage.world.servers.borrow().len()
    }

    pub fn start(&self, stage: &mut Stage, index: usize) {
        self.shared.forget_memory(index);
        stage.start(index, self.shared.work(life::start_up));
    }

    pub fn end_faults(&mut self, stage: &mut Stage) {
        stage.end_faults();
        self.shared.network.replace(Network::default());
    }

    fn attached(&self, stage: &Stage) -> Vec<(usize, usize)> {
        let all =
            (COORDINATORS..self.servers(stage)).flat_map(|server| (0..self.shared.tags).map(move |tag| (server, tag)));
        let is_attached = |(server, tag): &(usize, usize)| {
            tag_row(&stage.world, *server, *tag).is_some_and(|row| row.link.is_attached())
        };
        all.filter(is_attached).collect()
    }

    /// What operators do once faults have ended.
    fn look(&mut self, stage: &mut Stage) {
        self.end_faults(stage);
        stage.processes.iter_mut().for_each(|process| process.stopped_until_us = 0);
        self.copy_to_standby(stage);
        self.start_stopped(stage);
        let coordinator = self.coordinator();
        if stage.server(coordinator, |server| server.phase) != Phase::Running {
            return;
        }
        for tag in 0..self.shared.tags {
            let Some(row) = tag_row(&stage.world, coordinator, tag) else {
                self.shared.spawn(&stage.world, coordinator, "statement", move |it| {
                    operators::create_again(it, tag, operators::FLEET)
                });
                continue;
            };
            if row.definition.upper_bound < i64::MAX {
                self.shared.spawn(&stage.world, coordinator, "statement", move |it| operators::raise_bound(it, tag));
            }
            if self.has_gone(stage, tag) {
                stage.world.reach("a server is given up");
                self.shared.spawn(&stage.world, coordinator, "statement", move |it| operators::resume(it, tag));
            }
        }
        if self.last_sessions.is_empty() {
            for (server, tag) in self.attached(stage) {
                self.last_sessions.push((server, tag, Rc::default()));
            }
        }
        for index in COORDINATORS..self.servers(stage) {
            // A worker that was terminated does not begin again by itself.
            if stage.server(index, |server| server.phase) == Phase::Running {
                self.shared.spawn(&stage.world, index, "statement", |backend| backend.summon_worker(true, false));
            }
        }
        // One tag of a server after the other: they may take the only ring from each other.
        let mut busy = BTreeSet::new();
        for (server, tag, has_drawn) in self.last_sessions.iter().filter(|last| Self::has_to_draw(stage, last)) {
            if busy.insert(*server) && stage.server(*server, |server| server.phase) == Phase::Running {
                let (tag, has_drawn) = (*tag, has_drawn.clone());
                self.shared.spawn(&stage.world, *server, "last session", move |backend| {
                    has_drawn.set(has_drawn.get() | sessions::draw_new(backend, tag).is_ok());
                });
            }
        }
    }

    /// True for a tag that is attached, and has not drawn new values since faults have ended.
    fn has_to_draw(stage: &Stage, (server, tag, has_drawn): &(usize, usize, Rc<Cell<bool>>)) -> bool {
        !has_drawn.get() && tag_row(&stage.world, *server, *tag).is_some_and(|row| row.link.is_attached())
    }

    /// True if the coordinator knows a server that will not report.
    fn has_gone(&self, stage: &Stage, tag: usize) -> bool {
        let number = |server| tag_row(&stage.world, server, tag)?.link.server;
        let numbers: BTreeSet<i64> = (COORDINATORS..self.servers(stage)).filter_map(number).collect();
        let rows = stage.server(self.coordinator(), |server| server.directory.rows());
        let report = |row: &Row| match row {
            Row::Report(report) => Some(report.clone()),
            _ => None,
        };
        let range = rows.range(Key::Report(tag, i64::MIN)..=Key::Report(tag, i64::MAX));
        let reports: Vec<ServerReport> = range.filter_map(|(_, row)| report(row)).collect();
        let will_report =
            |report: &ServerReport| numbers.contains(&report.server) && !self.has_left(stage, tag, report.server);
        !reports.iter().all(will_report)
    }

    /// True if the server of this number is detached, and has told the coordinator.
    fn has_left(&self, stage: &Stage, tag: usize, number: i64) -> bool {
        let mut rows = (COORDINATORS..self.servers(stage)).filter_map(|server| tag_row(&stage.world, server, tag));
        let row = rows.find(|row| row.link.server == Some(number));
        row.is_some_and(|row| !row.link.is_attached() && row.link.received.is_none())
    }
}
