//! A run of a world: which process is next, and what happens between two steps.

use super::choices::Choices;
use super::operator::{self, Act};
use super::process::Scheduled;
use super::{Faults, World, sessions};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Between two acts of an operator or faults there are so many steps on average.
const STEPS_TO_AN_ACT: u32 = 25;
/// The steps in which a server that is left alone has to issue an id.
const STEPS_TO_LIVE: u32 = 20_000;
const LONGEST_PAUSE_US: i64 = 10_000_000;

/// What a search should meet, or it shows little.
pub const GOALS: [&str; 11] = [
    "a transaction has drawn",
    "a draw fails because of the file",
    "a statement is canceled in a wait",
    "a write of the file fails",
    "a machine loses power",
    "a standby is promoted",
    "a standby takes over without a promotion",
    "a recovery to a point",
    "a restored backup",
    "the file is lost or an old one",
    "the mark has passed the label",
];

/// What a run has shown.
pub struct Outcome {
    pub steps: u64,
    /// The first promise that was broken.
    pub broken: Option<String>,
    pub goals: BTreeMap<&'static str, u64>,
    /// What happened, a line each, if that was asked for.
    pub story: Vec<String>,
    /// By which the run can be repeated.
    pub choices: Vec<u32>,
}

/// Runs a world for so many steps, then without faults until each server issues ids.
pub fn run(choices: Choices, steps: u32, has_story: bool) -> Outcome {
    let mut run = Run::new(choices, has_story);
    run.go(steps);
    if !run.world.is_broken() {
        run.live();
    }
    run.end()
}

pub struct Run {
    pub world: Rc<World>,
    pub processes: Vec<Scheduled>,
    acts: Vec<Act>,
    /// The server that may write.
    pub primary: usize,
    next_id: u64,
    steps: u64,
}

impl Run {
    fn new(choices: Choices, has_story: bool) -> Self {
        let world = Rc::new(World::new(choices, has_story));
        operator::begin(&world);
        // Some kinds of acts, not all: many faults hide what few of them show.
        let acts = Act::ALL.into_iter().filter(|act| act.is_needed() || world.below(2) == 1).collect();
        let mut run = Self { world, processes: Vec::new(), acts, primary: 0, next_id: 0, steps: 0 };
        run.start(0);
        run
    }

    fn go(&mut self, steps: u32) {
        for _ in 0..steps {
            if self.world.is_broken() {
                return;
            }
            if self.world.once_in(STEPS_TO_AN_ACT) {
                let act = self.acts[self.world.below(self.acts.len() as u32) as usize];
                self.act(act);
            }
            self.step();
        }
    }

    /// Lets one process run until its next effect, or time pass.
    fn step(&mut self) {
        self.take_spawned();
        let world = self.world.clone();
        let now_us = world.now_us.get() + world.one_of(&[0, 0, 0, 20, 500, 20_000]);
        world.now_us.set(now_us);
        let ready: Vec<usize> = (0..self.processes.len()).filter(|i| self.processes[*i].is_ready(now_us)).collect();
        if ready.is_empty() {
            self.act(if world.once_in(4) { Act::Start } else { Act::StartSession });
            let next_us = self.processes.iter().map(Scheduled::wakes_at_us).min().unwrap_or(i64::MAX);
            world.now_us.set(next_us.min(now_us + 1 + i64::from(world.below(LONGEST_PAUSE_US as u32))));
            return;
        }
        self.steps += 1;
        let index = ready[world.below(ready.len() as u32) as usize];
        if !self.processes[index].run() {
            self.processes.swap_remove(index).end(&world);
        }
        self.wake_signaled();
    }

    fn take_spawned(&mut self) {
        for (server, name, work) in self.world.spawned.take() {
            self.next_id += 1;
            self.processes.push(Scheduled::new(&self.world, server, self.next_id, name, work));
        }
    }

    fn wake_signaled(&mut self) {
        for server in self.world.signaled.take() {
            self.processes.iter_mut().filter(|process| process.server == server).for_each(Scheduled::wake);
        }
    }

    /// Ends all processes of a server where they are.
    pub fn end_processes(&mut self, server: usize) {
        self.take_spawned();
        let (ended, rest) =
            std::mem::take(&mut self.processes).into_iter().partition(|process| process.server == server);
        self.processes = rest;
        let ended: Vec<Scheduled> = ended;
        ended.into_iter().for_each(|process| process.end(&self.world));
        // What they have asked for in their last moments.
        self.world.spawned.borrow_mut().retain(|(of, ..)| *of != server);
    }

    /// Without faults, ids go on.
    fn live(&mut self) {
        self.world.faults.replace(Faults::default());
        let is_done = Rc::new(Cell::new(false));
        let asked = Rc::new(RefCell::new(false));
        for _ in 0..STEPS_TO_LIVE {
            if is_done.get() || self.world.is_broken() {
                return;
            }
            match self.ensure_primary() {
                Some(server) if !asked.replace(true) => {
                    let is_done = is_done.clone();
                    self.world.spawn(
                        server,
                        "last session",
                        Box::new(move |process| is_done.set(sessions::draw_once(process))),
                    );
                }
                _ => {}
            }
            self.step();
        }
        self.world.break_promise(0, "S3: generation has stopped".to_owned());
    }

    fn end(mut self) -> Outcome {
        let servers = self.world.servers.borrow().len();
        (0..servers).for_each(|server| self.end_processes(server));
        let world = &self.world;
        Outcome {
            steps: self.steps,
            broken: world.broken.take(),
            goals: world.goals.take(),
            story: world.story.take().unwrap_or_default(),
            choices: std::mem::replace(&mut *world.choices.borrow_mut(), Choices::replaying(Vec::new())).into_made(),
        }
    }
}
