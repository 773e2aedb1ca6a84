//! A world of simulated servers that run the decisions of the core, and what goes wrong in it.
//!
//! One number seeds a run. Each effect of a process is a step: between two steps another process may run, a fault may
//! happen, or an operator may act. The judge checks the promises at every id.

use choices::Choices;
use corosensei::stack::DefaultStack;
use idgen_core::layout::{Layout, Node};
use idgen_core::snowflake::IdSpace;
use process::Work;
use server::Server;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

pub mod choices;
mod clock;
mod disk;
mod effects;
pub mod fleet;
pub mod ids;
mod judge;
pub mod leases;
mod memory;
mod place;
mod postmaster;
mod process;
mod rows;
pub mod run;
mod server;
mod sessions;
pub mod shorten;
mod stage;
pub mod workers;

/// What runs share: the servers, the time, and what was seen.
pub struct World {
    pub choices: RefCell<Choices>,
    /// The true time, in microseconds since the world began.
    pub now_us: Cell<i64>,
    pub servers: RefCell<Vec<Server>>,
    pub settings: Settings,
    pub faults: RefCell<Faults>,
    /// Processes to start.
    spawned: RefCell<Vec<(usize, &'static str, Work)>>,
    /// Servers whose waiting processes wake.
    signaled: RefCell<BTreeSet<usize>>,
    /// Sessions that are to end at the next test for that.
    canceled: RefCell<BTreeSet<u64>>,
    /// Lines for a reader; `None` if there is none.
    story: RefCell<Option<Vec<String>>>,
    /// The first promise that was broken.
    broken: RefCell<Option<String>>,
    goals: RefCell<BTreeMap<&'static str, u64>>,
    stacks: RefCell<Vec<DefaultStack>>,
    /// The times of ids that were observed, unless the statement was canceled.
    pub observed_ms: RefCell<Vec<i64>>,
    identities: Cell<u64>,
}

/// Of all servers.
pub struct Settings {
    pub drift_ms: Cell<i64>,
    pub window_ms: Cell<i64>,
    pub longest_move_ms: Cell<i64>,
}

/// The moves of the mark under any settings, which can change before the first id. Ids of a server within the shortest one are
/// known although they were not replicated.
pub const SHORTEST_MOVE_MS: i64 = 1500;
pub const LONGEST_MOVE_MS: i64 = 20_000;

/// Faults that last.
#[derive(Default)]
pub struct Faults {
    pub no_workers: bool,
    /// One in so many writes of a file fails; 0 for none.
    pub io_fails_once_in: u32,
}

impl World {
    fn new(choices: Choices, has_story: bool) -> Self {
        let settings = Settings { drift_ms: Cell::new(0), window_ms: Cell::new(0), longest_move_ms: Cell::new(0) };
        let world = Self {
            choices: RefCell::new(choices),
            now_us: Cell::new(0),
            servers: RefCell::default(),
            settings,
            faults: RefCell::default(),
            spawned: RefCell::default(),
            signaled: RefCell::default(),
            canceled: RefCell::default(),
            story: RefCell::new(has_story.then(Vec::new)),
            broken: RefCell::default(),
            goals: RefCell::default(),
            stacks: RefCell::default(),
            identities: Cell::new(1),
            observed_ms: RefCell::default(),
        };
        world.change_settings();
        world
    }

    pub fn change_settings(&self) {
        self.set(self.one_of(&[1000, 0, 10, 5000]), self.one_of(&[3000, 100, 500, 1000, 10_000]));
    }

    /// A number that no other file has.
    pub fn identity(&self) -> u64 {
        self.identities.set(self.identities.get() + 1);
        self.identities.get()
    }

    pub fn below(&self, count: u32) -> u32 {
        self.choices.borrow_mut().below(count)
    }

    pub fn once_in(&self, times: u32) -> bool {
        self.choices.borrow_mut().once_in(times)
    }

    pub fn one_of<T: Copy>(&self, of: &[T]) -> T {
        self.choices.borrow_mut().one_of(of)
    }

    /// All servers have one worker id: each is the standby or the copy of another.
    pub fn space(&self, layout: usize) -> (Layout, Node, IdSpace) {
        let (layout, node) = (memory::layout_of(layout), Node { datacenter: None, worker: 1 });
        (layout, node, layout.id_space(node).expect("a small worker id"))
    }

    /// Changes the settings of all servers.
    pub fn set(&self, drift_ms: i64, window_ms: i64) {
        const SHORTEST_WINDOW_MS: i64 = 1000;
        let Settings { drift_ms: drift, window_ms: window, longest_move_ms } = &self.settings;
        drift.set(drift_ms);
        window.set(window_ms);
        let move_ms = drift_ms + window_ms.max(SHORTEST_WINDOW_MS) * 3 / 2;
        longest_move_ms.set(longest_move_ms.get().max(move_ms));
    }

    pub fn spawn(&self, server: usize, name: &'static str, work: Work) {
        self.spawned.borrow_mut().push((server, name, work));
    }

    pub fn signal(&self, server: usize) {
        self.signaled.borrow_mut().insert(server);
    }

    /// Counts a state that a search should meet.
    pub fn reach(&self, goal: &'static str) {
        debug_assert!(run::GOALS.contains(&goal), "{goal} is not listed");
        *self.goals.borrow_mut().entry(goal).or_default() += 1;
    }

    pub fn tell(&self, server: usize, text: impl FnOnce() -> String) {
        if let Some(story) = &mut *self.story.borrow_mut() {
            let name = self.servers.borrow()[server].name;
            story.push(format!("{:>12.6} s  {name}  {}", self.now_us.get() as f64 / 1e6, text()));
        }
    }

    pub fn break_promise(&self, server: usize, text: String) {
        self.tell(server, || text.clone());
        self.broken.borrow_mut().get_or_insert(text);
    }

    pub fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }
}
