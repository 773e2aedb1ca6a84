//! What operators and faults do to a fleet.

use super::super::disk::ControlState;
use super::super::run::Act;
use super::super::server::Phase;
use super::super::stage::Stage;
use super::scene::Fleet;
use super::{Backend, COORDINATORS, life, operators, sessions};

/// Sessions and backends at a time.
const PROCESSES: usize = 14;

impl Fleet {
    pub fn faults_and_statements() -> Vec<Act<Self>> {
        vec![
            |fleet, stage| fleet.strike(stage, Stage::crash),
            |fleet, stage| fleet.strike(stage, Stage::lose_power),
            Self::stop_cleanly,
            Self::back_up,
            Self::promote,
            Self::remove_signal,
            Self::restore,
            Self::copy_back,
            Self::keep_or_put_back_snapshot,
            Self::reset_wal,
            |fleet, stage| fleet.at_server(stage, operators::detach),
            |fleet, stage| fleet.at_server(stage, operators::draw_from_own_row),
            |fleet, stage| fleet.at_server(stage, operators::drop_here),
            |fleet, stage| fleet.at_server(stage, operators::alter_step),
            |fleet, stage| fleet.at_server(stage, operators::create_own),
            |fleet, stage| fleet.at_coordinator(stage, operators::alter_shared),
            |fleet, stage| fleet.at_coordinator(stage, operators::alter_step),
            |fleet, stage| fleet.at_coordinator(stage, operators::resume),
            |fleet, stage| fleet.at_coordinator(stage, operators::drop_and_create),
            Self::cut_network,
            |fleet, stage| fleet.shared.network.borrow_mut().loses_once_in = stage.world.one_of(&[20, 5, 2]),
            |fleet, _| fleet.shared.network.borrow_mut().is_slow = true,
            |fleet, stage| fleet.shared.network.borrow_mut().repeats_once_in = stage.world.one_of(&[10, 2]),
            |fleet, stage| fleet.shared.low_water_part.set(stage.world.one_of(&[2, 1, 10])),
            |_, stage| stage.cancel_session(),
            |_, stage| stage.suspend(),
            |_, stage| stage.fail_workers(),
            Self::terminate_worker,
        ]
    }

    fn any_server(&self, stage: &Stage) -> usize {
        stage.world.below(self.servers(stage) as u32) as usize
    }

    pub fn start_session(&mut self, stage: &mut Stage) {
        let index = self.any_server(stage);
        if stage.server(index, |server| server.phase) == Phase::Running && stage.processes.len() < PROCESSES {
            self.shared.spawn(&stage.world, index, "session", sessions::draw);
        }
    }

    pub fn start_stopped(&mut self, stage: &mut Stage) {
        for index in 0..self.servers(stage) {
            if stage.server(index, |server| !server.is_void && server.phase == Phase::Stopped) {
                self.start(stage, index);
            }
        }
    }

    pub fn attach(&mut self, stage: &mut Stage) {
        self.at_server(stage, operators::attach);
    }

    /// A statement at an attached server.
    fn at_server(&mut self, stage: &mut Stage, statement: fn(&Backend, usize)) {
        let servers = self.servers(stage) - COORDINATORS;
        let index = COORDINATORS + stage.world.below(servers as u32) as usize;
        self.run_statement(stage, index, statement);
    }

    fn at_coordinator(&mut self, stage: &mut Stage, statement: fn(&Backend, usize)) {
        self.run_statement(stage, self.coordinator(), statement);
    }

    fn run_statement(&mut self, stage: &mut Stage, index: usize, statement: fn(&Backend, usize)) {
        let tag = stage.world.below(self.shared.tags as u32) as usize;
        if stage.server(index, |server| server.phase) == Phase::Running && stage.processes.len() < PROCESSES {
            self.shared.spawn(&stage.world, index, "statement", move |backend| statement(backend, tag));
        }
    }

    fn strike(&mut self, stage: &mut Stage, act: fn(&mut Stage, usize)) {
        let index = self.any_server(stage);
        if stage.server(index, |server| server.phase != Phase::Stopped) {
            act(stage, index);
        }
    }

    fn stop_cleanly(&mut self, stage: &mut Stage) {
        let index = self.any_server(stage);
        if stage.server(index, |server| server.phase) != Phase::Running {
            return;
        }
        stage.world.tell(index, || "is stopped".to_owned());
        stage.end_processes(index);
        let now_us = stage.world.now_us.get();
        stage.server(index, |server| {
            life::checkpoint(server, now_us);
            server.directory.control.state = ControlState::ShutDown;
            server.phase = Phase::Starting;
        });
        if index == self.coordinator() && stage.world.below(2) == 0 {
            self.cold = Some(stage.server(index, |server| server.directory.clone()));
        }
        self.shared.spawn(&stage.world, index, "postmaster", life::shut_down);
    }

    fn back_up(&mut self, stage: &mut Stage) {
        let index = self.coordinator();
        if stage.server(index, |server| server.phase) != Phase::Running {
            return;
        }
        let now_us = stage.world.now_us.get();
        stage.world.tell(index, || "is backed up".to_owned());
        let backup = stage.server(index, |server| {
            life::checkpoint(server, now_us);
            server.directory.flushed()
        });
        self.backup = Some(backup);
    }

    /// A server reaches nobody, or hears nothing.
    fn cut_network(&mut self, stage: &mut Stage) {
        let (index, is_request) = (self.any_server(stage), stage.world.below(2) == 0);
        let network = &mut *self.shared.network.borrow_mut();
        let cut = if is_request { &mut network.no_requests } else { &mut network.no_answers };
        cut.insert(index);
    }

    /// A worker gets a signal. In its wait for the standby, it ends only the wait.
    fn terminate_worker(&mut self, stage: &mut Stage) {
        let workers: Vec<u64> =
            stage.processes.iter().filter(|it| it.name.ends_with("worker")).map(|process| process.id).collect();
        if !workers.is_empty() {
            stage.world.canceled.borrow_mut().insert(stage.world.one_of(&workers));
        }
    }
}
