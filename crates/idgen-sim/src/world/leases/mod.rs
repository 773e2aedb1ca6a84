//! Servers with leases: clients acquire, renew, release and fence, also by tokens that are over. The server is killed, loses
//! power, has standbys that are promoted and backups that are restored.
//!
//! One server writes at a time: operators fence the old one, as the documents demand.

use super::disk::{Entry, Signal};
use super::place;
use super::process::Process;
use super::run::{Act, Scene};
use super::server::{Phase, Server};
use super::stage::Stage;
use idgen_core::lease::{EndedSessions, clock_name};
use judge::{Judge, Note};
use locks::Locks;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

mod acquirer;
mod clients;
mod judge;
mod locks;
mod replicas;
mod row;
mod transaction;

/// Servers that write or can.
const NAMES: [char; 3] = ['A', 'B', 'C'];
/// The names of leases.
const LEASES: usize = 2;
const MOST_SESSIONS: usize = 6;

/// What processes share, and what the judge knows.
pub struct Leasing {
    locks: Locks,
    judged: RefCell<Judge>,
    /// Of each server.
    running: RefCell<Vec<Running>>,
    is_synchronous: Cell<bool>,
    /// Leases that running transactions have begun a term of, and their processes.
    granting: RefCell<Vec<(usize, u64)>>,
    /// Those that clients were told, of which lease each.
    tokens: RefCell<Vec<(usize, i64)>>,
    /// Leases that were granted since the faults have ended.
    served: RefCell<Vec<usize>>,
}

/// What a server knows while it runs.
pub struct Running {
    /// When it began to write, by the clock of leases.
    began_us: i64,
    /// Names the last start.
    start: u64,
    /// The clock of leases, as rows name it.
    clock: Rc<str>,
    ended: EndedSessions<4>,
}

impl Leasing {
    fn commit(&self, process: &Process, entry: &Rc<Entry>, notes: &[Note]) {
        let now_us = process.world.now_us.get();
        for note in notes {
            process.tell(|| format!("commits {note:?}"));
            let broken = self.judged.borrow_mut().happened(Some(entry), now_us, note.clone());
            broken.into_iter().for_each(|broken| process.world.break_promise(process.server, broken));
        }
    }
}

pub struct Leases {
    leasing: Rc<Leasing>,
    /// The server that may write.
    primary: usize,
    /// The rows that it has may be by another clock.
    is_other_clock: Rc<Cell<bool>>,
    live_steps: u64,
}

impl Scene for Leases {
    fn begin(stage: &mut Stage) -> Self {
        for name in NAMES {
            let mut server = Server::new(name, stage.world.identity());
            server.is_void = name != 'A';
            server.offset_us = stage.world.one_of(&[0, 0, -2_000_000, 50_000_000]);
            stage.world.servers.borrow_mut().push(server);
        }
        let running = || Running { began_us: 0, start: 0, clock: "".into(), ended: EndedSessions::new() };
        let leasing = Leasing {
            locks: Locks::default(),
            judged: RefCell::default(),
            running: RefCell::new(NAMES.iter().map(|_| running()).collect()),
            is_synchronous: Cell::new(stage.world.once_in(2)),
            granting: RefCell::default(),
            tokens: RefCell::default(),
            served: RefCell::default(),
        };
        let leases = Self { leasing: Rc::new(leasing), primary: 0, is_other_clock: Rc::default(), live_steps: 0 };
        leases.start(stage, 0);
        leases
    }

    fn needed_acts() -> Vec<Act<Self>> {
        vec![Self::start_stopped, Self::replicate, Self::replicate, Self::connect, Self::connect, Self::connect]
    }

    fn other_acts() -> Vec<Act<Self>> {
        vec![
            |leases, stage| leases.if_running(stage, Self::crash),
            |leases, stage| leases.if_running(stage, Self::crash_process),
            |leases, stage| leases.if_running(stage, Self::lose_power),
            |leases, stage| leases.if_running(stage, Self::take_backup),
            |leases, stage| leases.if_running(stage, Self::define),
            |leases, stage| leases.if_running(stage, Self::define),
            |leases, stage| leases.if_running(stage, Self::end_session),
            Self::copy_to_standby,
            Self::promote,
            Self::remove_signal,
            Self::restore,
            |_, stage| stage.step_clock(),
            |_, stage| stage.correct_clock(),
            |_, stage| stage.suspend(),
            |_, stage| stage.suspend(),
            |_, stage| stage.cancel_session(),
            |leases, stage| leases.leasing.is_synchronous.set(stage.world.below(2) == 1),
        ]
    }

    fn idle(&mut self, stage: &mut Stage) {
        match stage.world.once_in(3) {
            true => self.start_stopped(stage),
            false => self.connect(stage),
        }
        self.replicate(stage);
    }

    /// Each lease is granted once more.
    fn live(&mut self, stage: &mut Stage) -> bool {
        if self.live_steps == 0 {
            self.leasing.is_synchronous.set(false);
            self.leasing.served.borrow_mut().clear();
        }
        self.live_steps += 1;
        if self.live_steps.is_multiple_of(10) {
            self.start_stopped(stage);
            self.want(stage);
        }
        (0..LEASES).all(|name| self.leasing.served.borrow().contains(&name))
    }

    const STUCK: &str = "L2: a lease is free, and nobody gets it";
}

impl Leases {
    fn if_running(&mut self, stage: &mut Stage, act: Act<Self>) {
        if stage.server(self.primary, |server| server.phase == Phase::Running) {
            act(self, stage);
        }
    }

    fn start_stopped(&mut self, stage: &mut Stage) {
        for index in 0..NAMES.len() {
            if stage.server(index, |server| !server.is_void && server.phase == Phase::Stopped) {
                self.start(stage, index);
            }
        }
    }

    /// What the postmaster does.
    fn start(&self, stage: &mut Stage, index: usize) {
        let (leasing, is_other_clock) = (self.leasing.clone(), self.is_other_clock.clone());
        let start_up = move |process: &Process| {
            place::begin(process);
            process.step();
            let start = process.world.identity();
            let clock = process.server(|server| {
                clock_name(&server.booted_us.to_string(), place::identity(&server.directory).place.life()).into()
            });
            leasing.running.borrow_mut()[process.server] =
                Running { began_us: 0, start, clock, ended: EndedSessions::new() };
            let signal = process.server(|server| server.directory.signal);
            if signal.is_some() {
                process.change(|server| server.follow());
                process.step();
            }
            match signal {
                Some(Signal::Standby) => return,
                Some(Signal::Archive) => process.change(|server| server.promote()),
                Some(Signal::Backup) | None => process.change(|server| server.begin_to_write()),
            }
            began(&leasing, process.world, process.server, is_other_clock.take(), true);
        };
        stage.start(index, Box::new(start_up));
    }
}

/// The server begins to write.
fn began(leasing: &Leasing, world: &super::World, server: usize, is_other_clock: bool, is_started: bool) {
    let now_us = world.now_us.get();
    let boot_us = world.servers.borrow()[server].boot_us(now_us);
    leasing.running.borrow_mut()[server].began_us = boot_us;
    let is_held = leasing.judged.borrow().is_any_held(now_us);
    world.tell(server, || format!("begins to write at {boot_us} of its clock"));
    if is_held {
        world.reach(if is_other_clock {
            "a server goes on with a term of another clock"
        } else {
            "a server restarts under a term"
        });
    }
    leasing.judged.borrow_mut().happened(None, now_us, Note::Began { is_other_clock, is_started });
}
