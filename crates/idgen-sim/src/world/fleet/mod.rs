//! A fleet: a coordinator with a standby, and servers that are attached to its tags.
//!
//! Each server has rows, rings in shared memory, sessions that draw, and the workers that fill rings. What the coordinator
//! does for others runs in backends of its own, which a network reaches. One server writes the coordinator's rows at a time:
//! operators fence the old one, as the documents demand.

use super::World;
use super::process::{Process, Work};
use super::rows::{Key, Row};
use super::server::Phase;
use idgen_core::segment::tag::TagRow;
use judge::Judge;
use memory::Memory;
use network::Network;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

mod acts;
mod backends;
mod judge;
mod life;
mod losses;
mod memory;
mod network;
mod operators;
mod port;
pub mod scene;
mod sessions;
mod supply;
mod transaction;
mod workers;

/// The names of tags. A run has one of them or both.
pub const TAGS: [&str; 2] = ["order", "ticket"];

/// The coordinator is one of these servers.
pub const COORDINATORS: usize = 2;

/// What the servers of a fleet share: the network, and what operators and the judge know.
pub struct Shared {
    /// The shared memory of each server.
    memories: RefCell<Vec<Rc<Memory>>>,
    pub coordinator: Cell<usize>,
    /// Commits of the coordinator that ask for it wait for its standby.
    pub is_synchronous: bool,
    /// So many entries of the coordinator's log were promised to be on its standby.
    pub acknowledged: Cell<usize>,
    pub tags: usize,
    /// Of each server.
    rings: usize,
    /// One in so many values of a range is left when a refill is requested.
    pub low_water_part: Cell<u64>,
    pub network: RefCell<Network>,
    pub judge: RefCell<Judge>,
    /// What `max_id` operators raise before the first server connects, for each tag.
    pub raises: RefCell<Vec<(usize, i64)>>,
    begin: Instant,
}

/// A process of a server of a fleet.
pub struct Backend<'a> {
    pub process: &'a Process<'a>,
    pub shared: &'a Rc<Shared>,
    pub memory: Rc<Memory>,
}

impl Shared {
    pub fn new(world: &World, servers: usize) -> Self {
        let rings = world.one_of(&[2, 1]);
        Self {
            memories: RefCell::new((0..servers).map(|_| Rc::new(Memory::new(rings))).collect()),
            coordinator: Cell::new(0),
            is_synchronous: world.below(2) == 1,
            acknowledged: Cell::new(0),
            tags: world.one_of(&[1, 1, 2]),
            rings,
            low_water_part: Cell::new(2),
            network: RefCell::default(),
            judge: RefCell::default(),
            raises: RefCell::default(),
            begin: Instant::now(),
        }
    }

    /// The shared memory of a server that starts.
    pub fn forget_memory(&self, server: usize) {
        self.memories.borrow_mut()[server] = Rc::new(Memory::new(self.rings));
    }

    pub fn memory(&self, server: usize) -> Rc<Memory> {
        self.memories.borrow()[server].clone()
    }

    /// Starts a process.
    pub fn spawn(
        self: &Rc<Self>,
        world: &World,
        server: usize,
        name: &'static str,
        work: impl FnOnce(&Backend) + 'static,
    ) {
        world.spawn(server, name, self.work(work));
    }

    pub fn work(self: &Rc<Self>, work: impl FnOnce(&Backend) + 'static) -> Work {
        let shared = self.clone();
        Box::new(move |process: &Process| {
            let memory = shared.memory(process.server);
            work(&Backend { process, shared: &shared, memory });
        })
    }
}

/// The row of a tag, by what is committed.
pub fn tag_row(world: &World, server: usize, tag: usize) -> Option<TagRow> {
    match world.servers.borrow()[server].directory.rows().get(&Key::Segment(tag)) {
        Some(Row::Segment(row)) => Some(row.clone()),
        _ => None,
    }
}

impl Backend<'_> {
    pub fn world(&self) -> &World {
        self.process.world
    }

    pub fn server(&self) -> usize {
        self.process.server
    }

    /// By a clock that never steps.
    pub fn now_us(&self) -> i64 {
        self.process.server(|server| server.boot_us(self.world().now_us.get()))
    }

    pub fn instant(&self) -> Instant {
        self.shared.begin + Duration::from_micros(self.world().now_us.get() as u64)
    }

    pub fn is_coordinator(&self) -> bool {
        self.shared.coordinator.get() == self.server()
    }

    pub fn tag_row(&self, tag: usize) -> Option<TagRow> {
        tag_row(self.world(), self.server(), tag)
    }

    /// Waits until the standby of this coordinator has so many entries. False if it is canceled, or takes longer.
    pub fn await_standby(&self, position: usize, until_us: i64) -> bool {
        while self.shared.is_synchronous && self.is_coordinator() {
            let standby = COORDINATORS - 1 - self.server();
            let received = {
                let standby = &self.world().servers.borrow()[standby];
                let is_one = !standby.is_void && standby.phase == Phase::Recovering;
                is_one.then_some(standby.directory.wal.entries.len())
            };
            if received >= Some(position) {
                break;
            }
            if self.world().canceled.borrow_mut().remove(&self.process.id) || self.world().now_us.get() >= until_us {
                return false;
            }
            self.process.wait(Duration::from_millis(100));
        }
        if self.is_coordinator() {
            self.shared.acknowledged.set(self.shared.acknowledged.get().max(position));
        }
        true
    }
}
