//! A run of a world: what happens between two steps, and how it ends.

use super::choices::Choices;
use super::stage::Stage;
use super::{Faults, World};
use std::collections::BTreeMap;

/// Between two acts of an operator or faults there are so many steps on average.
const STEPS_TO_AN_ACT: u32 = 25;
/// The steps in which servers that are left alone have to go on.
const STEPS_TO_LIVE: u32 = 20_000;
/// A session that waits for the clock takes many steps in a second. What has failed is tried again after a pause.
const TIME_TO_LIVE_US: i64 = 600_000_000;
const MOST_STEPS_TO_LIVE: u32 = 100 * STEPS_TO_LIVE;

/// What an operator does, or a fault. Does nothing where it is not possible.
pub type Act<S> = fn(&mut S, &mut Stage);

/// The servers of a run, and what operators do to them.
pub trait Scene: Sized {
    fn begin(stage: &mut Stage) -> Self;
    /// Acts without which nothing happens at all.
    fn needed_acts() -> Vec<Act<Self>>;
    /// A run has about half of these.
    fn other_acts() -> Vec<Act<Self>>;
    /// No process can run.
    fn idle(&mut self, stage: &mut Stage);
    /// Faults have ended: starts what has to go on. True when it has. Called before each step.
    fn live(&mut self, stage: &mut Stage) -> bool;
    /// The promise that is broken if it never has.
    const STUCK: &str;
}

/// What a search should meet, or it shows little.
pub const GOALS: &[&str] = &[
    "a transaction has drawn",
    "a draw fails because of the file",
    "a statement is canceled in a wait",
    "a write of the file fails",
    "a machine loses power",
    "a clean stop",
    "a standby is promoted",
    "a standby takes over without a promotion",
    "a recovery to a point",
    "a restored backup",
    "the file is lost or an old one",
    "the mark has passed the label",
    "a session has drawn values",
    "a session draws in turn",
    "a worker is terminated",
    "a wait for the standby is canceled",
    "an answer is lost",
    "a request is repeated",
    "values are withheld",
    "values were not asked for",
    "a coordinator waits before it draws",
    "a report shows that grants are lost",
    "a server leaves",
    "a server returns",
    "a server is given up",
    "a detached server draws from its own row",
    "a tag is created again",
    "a standby without the last grants is promoted",
    "a standby of a fleet takes over without a promotion",
    "a backup of a coordinator is restored in place",
    "a directory is copied back in place",
    "a snapshot of a coordinator's disk is put back",
    "the WAL of a coordinator is reset",
    "values of a tag without a fleet are drawn",
    "a grant waits for a worker id that is locked",
    "an answer of the coordinator is lost",
    "a worker id is lost",
    "a worker id by hand beside a pool",
    "the worker id by hand is not free",
    "a server leaves its pool",
    "the record of a worker id is corrected",
    "the coordinator's extension is dropped",
    "the memory of a running server is copied",
    "the files of a server are copied beside it",
    "an older copy of a server's files is put back",
    "a coordinator's standby is promoted",
    "a coordinator's backup is restored in place",
    "a copy of the coordinator runs beside it",
    "a copy of the coordinator begins a history",
    "a holder shows that the coordinator was set back",
    "a lease is taken over after its term",
    "a holder whose term is over is refused",
    "a take-over waits for a fence or a grant",
    "a fenced transaction has written",
    "a waiter for a lease is served in its turn",
    "a shared term begins beside another",
    "an expired term makes room for another slot",
    "several leases are acquired at once",
    "a term is revoked",
    "more hold a lease than its new slots",
    "a server restarts under a term",
    "a server goes on with a term of another clock",
    "a backup with leases is restored",
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

/// Runs a scene for so many steps, then without faults until it has gone on.
pub fn run<S: Scene>(choices: Choices, steps: u32, has_story: bool) -> Outcome {
    let mut stage = Stage::new(choices, has_story);
    let mut scene = S::begin(&mut stage);
    // Many faults hide what few of them show.
    let mut acts = S::other_acts();
    acts.retain(|_| stage.world.below(2) == 1);
    acts.extend(S::needed_acts());
    for _ in 0..steps {
        if stage.world.is_broken() {
            break;
        }
        if stage.world.once_in(STEPS_TO_AN_ACT) {
            stage.world.one_of(&acts)(&mut scene, &mut stage);
        }
        if !stage.step() {
            scene.idle(&mut stage);
        }
    }
    live(&mut scene, &mut stage);
    end(stage)
}

fn live<S: Scene>(scene: &mut S, stage: &mut Stage) {
    stage.world.faults.replace(Faults::default());
    let until_us = stage.world.now_us.get() + TIME_TO_LIVE_US;
    for step in 0..MOST_STEPS_TO_LIVE {
        if stage.world.is_broken() || scene.live(stage) {
            return;
        }
        if step >= STEPS_TO_LIVE && stage.world.now_us.get() > until_us {
            break;
        }
        stage.step();
    }
    stage.world.break_promise(0, S::STUCK.to_owned());
}

fn end(mut stage: Stage) -> Outcome {
    let servers = stage.world.servers.borrow().len();
    (0..servers).for_each(|server| stage.end_processes(server));
    let world: &World = &stage.world;
    Outcome {
        steps: stage.steps,
        broken: world.broken.take(),
        goals: world.goals.take(),
        story: world.story.take().unwrap_or_default(),
        choices: std::mem::replace(&mut *world.choices.borrow_mut(), Choices::replaying(Vec::new())).into_made(),
    }
}
