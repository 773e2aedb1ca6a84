//! Servers that lease their worker ids from a coordinator: its standbys, backups and copies, copies of the servers' disks and
//! memory, a network that loses requests and answers, and operators who change the pool.
//!
//! One coordinator grants at a time: operators fence the old one, as the documents demand.

use super::process::Process;
use super::run::{Act, Scene};
use super::server::{BEGIN_MS, Phase, Server};
use super::stage::Stage;
use coordinator::Coordination;
use database::POOLS;
use member::Member;
use std::rc::Rc;
use std::time::Duration;

mod coordinator;
mod database;
mod judge;
mod link;
mod member;
mod members;
mod operators;
mod replicas;

/// Servers that coordinate or can; the others lease.
const COORDINATORS: usize = 3;
const NAMES: [char; 7] = ['A', 'B', 'C', 'D', 'E', 'F', 'G'];
/// Pools end below this worker id. Those by hand are above.
const MOST_WORKER_IDS: i32 = 8;
const BY_HAND: usize = 100;

pub struct Workers {
    coordination: Rc<Coordination>,
    /// The server that may coordinate.
    primary: usize,
    /// A copy of the coordinator's data that runs beside it.
    beside: Option<usize>,
    /// Since the faults have ended.
    live_steps: u64,
}

impl Scene for Workers {
    /// A coordinator with room for two more, and three servers with room for a copy.
    fn begin(stage: &mut Stage) -> Self {
        let coordination = Rc::new(Coordination::new(COORDINATORS));
        let workers = Self { coordination, primary: 0, beside: None, live_steps: 0 };
        for (index, name) in NAMES.into_iter().enumerate() {
            let mut server = Server::new(name, stage.world.identity());
            server.is_void = matches!(name, 'B' | 'C' | 'G');
            server.offset_us = stage.world.one_of(&[0, 0, -2_000_000, 2_000_000, 50_000_000]);
            stage.world.servers.borrow_mut().push(server);
            if index >= COORDINATORS {
                let has_pool = stage.world.below(4) < 3;
                let set = (!has_pool || stage.world.once_in(2)).then_some((BY_HAND + index) as u32);
                let pool = has_pool.then_some(POOLS[0]);
                let member = Member {
                    pool,
                    set,
                    is_copied: false,
                    memory: Default::default(),
                    must_stop: false,
                    has_issued: false,
                };
                workers.coordination.members.borrow_mut().push(member);
            }
        }
        let Coordination { is_synchronous, max_lead_us, .. } = &*workers.coordination;
        is_synchronous.set(stage.world.once_in(2));
        max_lead_us.set(stage.world.one_of(&[60_000_000, 5_000_000, 0]));
        workers.start_stopped(stage);
        workers
    }

    fn needed_acts() -> Vec<Act<Self>> {
        vec![
            |workers, stage| workers.start_stopped(stage),
            Self::keep_pool,
            Self::replicate,
            Self::replicate,
            |workers, stage| workers.draw(stage),
            |workers, stage| workers.draw(stage),
            |workers, stage| workers.end_faults(stage),
        ]
    }

    fn other_acts() -> Vec<Act<Self>> {
        let mut acts: Vec<Act<Self>> = vec![
            |workers, stage| workers.if_coordinates(stage, |workers, stage| stage.crash(workers.primary)),
            |workers, stage| workers.if_coordinates(stage, |workers, stage| stage.lose_power(workers.primary)),
            |workers, stage| workers.if_coordinates(stage, Self::take_backup),
            Self::copy_to_standby,
            Self::promote,
            Self::remove_signal,
            Self::restore,
            Self::put_back_snapshot,
            |workers, stage| workers.if_coordinates(stage, Self::reset_wal),
            Self::copy_beside,
            Self::step_clock,
            Self::correct_clock,
            |_, stage| stage.suspend(),
            |_, stage| stage.fail_files(),
            |workers, _| workers.coordination.network.is_cut.set(true),
            |workers, stage| {
                workers.coordination.network.loses_once_in.set(stage.world.one_of(&[10, 3]));
            },
            |workers, stage| {
                let delay = Duration::from_millis(stage.world.one_of(&[100, 2000, 10_000]));
                workers.coordination.network.delay.set(delay);
            },
            |workers, stage| {
                workers.coordination.is_synchronous.set(stage.world.below(2) == 1);
            },
        ];
        acts.extend(operators::acts());
        acts.extend(members::acts());
        acts
    }

    fn idle(&mut self, stage: &mut Stage) {
        match stage.world.once_in(3) {
            true => self.start_stopped(stage),
            false => self.draw(stage),
        }
        self.replicate(stage);
    }

    /// Each server that is left has a worker id, and makes ids.
    fn live(&mut self, stage: &mut Stage) -> bool {
        if self.live_steps == 0 {
            self.repair(stage);
        }
        self.live_steps += 1;
        self.replicate(stage);
        if self.live_steps.is_multiple_of(10) {
            self.start_stopped(stage);
            self.keep_pool(stage);
            self.widen_pool(stage);
            self.keep_history(stage);
            self.draw(stage);
        }
        let pool = POOLS[self.pool(stage)];
        let members = &mut self.coordination.members.borrow_mut();
        let running = |index: usize| stage.server(index, |server| server.phase == Phase::Running);
        (COORDINATORS..NAMES.len()).filter(|index| stage.server(*index, |server| !server.is_void)).fold(
            true,
            |all, index| {
                let member = &mut members[index - COORDINATORS];
                if member.pool != Some(pool) {
                    member.pool = Some(pool);
                    stage.world.signal(index);
                }
                all && running(index) && member.has_issued && member::has_lease(member)
            },
        )
    }

    const STUCK: &str = "W1: a server gets no worker id";
}

impl Workers {
    fn phase(&self, stage: &Stage, index: usize) -> Phase {
        stage.server(index, |server| server.phase)
    }

    fn if_coordinates(&mut self, stage: &mut Stage, act: Act<Self>) {
        if self.phase(stage, self.primary) == Phase::Running {
            act(self, stage);
        }
    }

    fn start_stopped(&self, stage: &mut Stage) {
        for index in 0..NAMES.len() {
            if stage.server(index, |server| !server.is_void && server.phase == Phase::Stopped) {
                self.start(stage, index);
            }
        }
    }

    fn start(&self, stage: &mut Stage, index: usize) {
        let coordination = self.coordination.clone();
        stage.start(
            index,
            Box::new(move |process: &Process| match index < COORDINATORS {
                true => coordinator::start_up(process, &coordination),
                false => member::start_up(process, &coordination),
            }),
        );
    }

    fn draw(&self, stage: &Stage) {
        for index in COORDINATORS..NAMES.len() {
            if self.phase(stage, index) == Phase::Running {
                member::draw(&self.coordination, &stage.world, index);
            }
        }
    }

    fn end_faults(&self, stage: &mut Stage) {
        stage.end_faults();
        let network = &self.coordination.network;
        network.is_cut.set(false);
        network.loses_once_in.set(0);
        network.delay.set(Duration::ZERO);
        self.coordination.address.set(self.primary);
    }

    /// For the servers to live. Where clocks were ahead, their ids and rectangles are: until then time passes, and no longer, or
    /// it would make up for what servers have to recover from.
    fn repair(&mut self, stage: &mut Stage) {
        let ids_ms = self.coordination.members.borrow().iter().map(member::next_ms).max().unwrap_or(0);
        let latest_us =
            (ids_ms * 1000).max(self.coordination.judged.borrow().latest_us()).max(self.forgotten_until_us(stage));
        stage.world.now_us.set(stage.world.now_us.get().max(latest_us - BEGIN_MS * 1000));
        self.end_faults(stage);
        stage.world.servers.borrow_mut().iter_mut().for_each(|server| server.offset_us = 0);
        self.coordination.judged.borrow_mut().allow_interruptions();
        self.coordination.is_synchronous.set(false);
        self.coordination.members.borrow_mut().iter_mut().for_each(|member| member.has_issued = false);
    }

    fn correct_clock(&mut self, stage: &mut Stage) {
        stage.server(self.primary, |server| server.offset_us = 0);
        self.coordination.judged.borrow_mut().allow_interruptions();
    }

    fn step_clock(&mut self, stage: &mut Stage) {
        let index = stage.world.below(NAMES.len() as u32) as usize;
        const MINUTE_US: i64 = 60_000_000;
        let offset_us = stage.world.one_of(&[0, -2_000_000, 2_000_000, 10 * MINUTE_US, -10 * MINUTE_US]);
        stage.server(index, |server| server.offset_us = offset_us);
        if index < COORDINATORS {
            self.coordination.judged.borrow_mut().allow_interruptions();
        }
        stage.world.tell(index, || format!("its clock is {} ms off", offset_us / 1000));
    }
}
