//! A server that leases its worker id: its shared memory, its keeper, and the ids that it makes.

use super::coordinator::Coordination;
use super::link::{Error, Link};
use crate::world::place::{self, replace_file};
use crate::world::process::Process;
use crate::world::server::{Floor, Phase};
use idgen_core::coordinator::Place;
use idgen_core::worker::by_hand::{self, WorkerSetting};
use idgen_core::worker::keeper::{Keeper, Next};
use idgen_core::worker::lease::ServerLease;
use idgen_core::worker::memory::{LastWorkerId, Memory, MemoryFile};
use idgen_core::worker::server::{ConfiguredPool, Event, Interrupt, NO_REQUEST, Server};
use std::ffi::CStr;
use std::rc::Rc;
use std::time::Duration;

const MEMORY_FILE: &str = "idgen_worker";
/// The file has a time that no id of the server has reached.
const MARK_FILE: &str = "mark";
const MARK_AHEAD_MS: i64 = 3000;
const MAX_DRIFT_MS: i64 = 1000;

/// Where the worker id of a server comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Node {
    #[default]
    None,
    Setting,
    /// With its token.
    Leased(u32, i64),
}

/// The settings of a server, and its shared memory.
#[derive(Clone, Debug)]
pub struct Member {
    pub pool: Option<&'static str>,
    /// The worker id by hand.
    pub set: Option<u32>,
    /// Its data were another server's, or older ones, or its memory was copied. So it may have no worker id by hand.
    pub is_copied: bool,
    pub memory: Shared,
    pub must_stop: bool,
    /// It has made ids since the faults have ended.
    pub has_issued: bool,
}

/// What lasts from a start to a crash or a stop.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    pub lease: ServerLease,
    pool: Option<String>,
    pub node: Node,
    first_ms: i64,
    pub end_ms: i64,
    has_issued_by_hand: bool,
    needed_ms: i64,
    /// No id of this server has this time or a later one.
    next_ms: i64,
    mark_ms: i64,
    /// When it last made ids ahead of its clock: no faster than time passes.
    ahead_us: i64,
}

/// A server, as a process of it sees it.
#[derive(Clone, Copy)]
pub struct Own<'a> {
    pub process: &'a Process<'a>,
    pub coordination: &'a Rc<Coordination>,
}

impl Own<'_> {
    /// An effect comes next. Sessions may draw before it.
    pub fn step(&self) {
        self.process.step();
        if self.process.world.once_in(4) {
            self.draw();
        }
    }

    pub fn member<R>(&self, change: impl FnOnce(&mut Member) -> R) -> R {
        change(&mut self.coordination.members.borrow_mut()[self.process.server - super::COORDINATORS])
    }

    fn shared<R>(&self, change: impl FnOnce(&mut Shared) -> R) -> R {
        self.member(|member| change(&mut member.memory))
    }

    /// As keepers name themselves.
    pub fn name(&self) -> String {
        self.process.server(|server| format!("{}", server.directory.identity))
    }

    fn draw(&self) {
        draw(self.coordination, self.process.world, self.process.server);
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.process.server(|server| server.directory.files.get(name).and_then(|file| file.content.clone()))
    }

    fn restrict(&self, node: Node, first_ms: i64, end_ms: i64) {
        self.shared(|shared| (shared.node, shared.first_ms, shared.end_ms) = (node, first_ms, end_ms));
        self.process.tell(|| format!("issues under {node:?}, {first_ms}..{end_ms}"));
    }
}

/// A session of a server makes ids, if it may.
pub fn draw(coordination: &Coordination, world: &crate::world::World, server: usize) {
    let wall_ms = world.servers.borrow()[server].wall_ms(world.now_us.get());
    let member = &mut coordination.members.borrow_mut()[server - super::COORDINATORS];
    if member.pool.is_none() && member.memory.node == Node::Setting {
        member.memory.has_issued_by_hand = true;
    }
    let (worker_id, token) = match (member.memory.node, member.set) {
        (Node::Leased(worker_id, token), _) => (worker_id, Some(token)),
        (Node::Setting, Some(worker_id)) => (worker_id, None),
        _ => return,
    };
    // As sessions do before they draw.
    let setting = setting(member);
    if member.pool.is_some() && setting.yields_to_pool() {
        member.memory.node = Node::None;
        return;
    }
    let memory = &mut member.memory;
    let from_ms = wall_ms.max(memory.next_ms).max(memory.first_ms);
    let mut until_ms = memory.end_ms.min(from_ms + world.one_of(&[1, 100, 1000]));
    if from_ms > wall_ms + MAX_DRIFT_MS {
        if world.now_us.get() < memory.ahead_us + 1000 {
            return;
        }
        memory.ahead_us = world.now_us.get();
        until_ms = until_ms.min(from_ms + 1);
    }
    if from_ms >= until_ms {
        if !memory.lease.falls_short {
            memory.needed_ms = memory.needed_ms.max(from_ms);
            world.signal(server);
        }
        return;
    }
    memory.next_ms = until_ms;
    if until_ms >= memory.mark_ms {
        write_mark(world, server, memory, until_ms + MARK_AHEAD_MS);
    }
    member.has_issued = true;
    world.tell(server, || format!("issues ids of {worker_id} at {from_ms}..{until_ms}"));
    let broken = coordination.judged.borrow_mut().used(worker_id as i32, token, from_ms, until_ms);
    if let Some(broken) = broken {
        world.break_promise(server, broken);
    }
}

fn write_mark(world: &crate::world::World, server: usize, memory: &mut Shared, mark_ms: i64) {
    memory.mark_ms = mark_ms;
    let file = &mut world.servers.borrow_mut()[server];
    let file = file.directory.file(MARK_FILE);
    file.content = Some(mark_ms.to_le_bytes().to_vec());
    file.sync_name();
}

fn setting(member: &Member) -> WorkerSetting {
    WorkerSetting {
        worker_id: member.set.unwrap_or(0),
        is_undecided: member.set.is_none(),
        is_in_use: member.memory.node == Node::Setting,
        has_issued: member.memory.has_issued_by_hand,
    }
}

/// What the postmaster of a server does at its start.
pub fn start_up(process: &Process, coordination: &Rc<Coordination>) {
    if !place::begin(process) {
        return process.change(|server| server.phase = Phase::Stopped);
    }
    let own = Own { process, coordination };
    let (file, here) = (own.read_memory(), own.here());
    let mark_ms = own.read(MARK_FILE).map_or(0, |bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes")));
    own.member(|member| {
        let (has_issued_by_hand, is_in_use) =
            by_hand::at_start(&file, here.as_ref(), member.set, member.pool.is_some());
        let is_in_use = is_in_use && member.set.is_some();
        let node = if is_in_use { Node::Setting } else { Node::None };
        let (first_ms, end_ms) = (i64::MIN, if is_in_use { i64::MAX } else { i64::MIN });
        let needed_ms = NO_REQUEST;
        let (next_ms, mark_ms) = (mark_ms, mark_ms);
        let shared =
            Shared { node, first_ms, end_ms, has_issued_by_hand, needed_ms, next_ms, mark_ms, ..Shared::default() };
        (member.memory, member.must_stop) = (shared, false);
    });
    process.change(|server| server.begin_to_write());
    if own.member(|member| member.memory.node == Node::Setting && member.pool.is_some()) {
        process.world.reach("a worker id by hand beside a pool");
    }
    let coordination = coordination.clone();
    process.world.spawn(process.server, "keeper worker", Box::new(move |process| keep(process, &coordination)));
}

/// The main function of a keeper, which continues the lease in shared memory.
pub fn keep(process: &Process, coordination: &Rc<Coordination>) {
    let mut server = Member::port(process, coordination);
    let own = server.own;
    let configured = |name: &str| ConfiguredPool { name: name.to_owned(), coordinator: c"".to_owned() };
    let (lease, pool) = own.shared(|shared| (shared.lease, shared.pool.clone()));
    let mut keeper = Keeper::new(lease, pool.as_deref().map(configured));
    loop {
        own.step();
        if own.member(|member| member.must_stop) {
            keeper.give_back(&mut server, Interrupt::Never);
            return stop(&own);
        }
        own.member(|member| {
            if member.pool.is_some() && setting(member).yields_to_pool() {
                member.memory.node = Node::None;
            }
        });
        let pool = own.member(|member| member.pool);
        server.pool = pool;
        keeper.follow(&mut server, pool.map(configured));
        match keeper.turn(&mut server) {
            Next::Turn => {}
            Next::Sleep(_) if server.is_interrupted() => {}
            Next::Sleep(pause) => {
                process.wait(pause.unwrap_or(Duration::from_secs(3600)) + Duration::from_millis(1));
            }
        }
    }
}

fn stop(own: &Own) {
    own.step();
    own.restrict(Node::None, i64::MIN, i64::MIN);
    let server = own.process.server;
    own.member(|member| {
        let next_ms = member.memory.next_ms;
        write_mark(own.process.world, server, &mut member.memory, next_ms);
    });
    own.process.change(|server| {
        server.directory.control.state = crate::world::disk::ControlState::ShutDown;
        server.stop(Floor::Unknown);
    });
    own.process.tell(|| "has stopped".to_owned());
}

impl Member {
    fn port<'a>(process: &'a Process<'a>, coordination: &'a Rc<Coordination>) -> Port<'a> {
        Port { own: Own { process, coordination }, failures: 0, pool: None }
    }
}

/// What the keeper reads and changes.
struct Port<'a> {
    own: Own<'a>,
    failures: u32,
    /// As the keeper has read the settings.
    pool: Option<&'static str>,
}

impl Own<'_> {
    fn read_memory(&self) -> MemoryFile {
        match self.read(MEMORY_FILE) {
            Some(bytes) => {
                Memory::decode(&bytes).map_or_else(|| MemoryFile::Unreadable(String::new()), MemoryFile::Valid)
            }
            None => MemoryFile::Missing,
        }
    }

    fn here(&self) -> Option<Place> {
        Some(self.process.server(|server| place::identity(&server.directory)).place)
    }
}

impl<'a> Server for Port<'a> {
    type Error = Error;
    type Coordinator = Link<'a>;

    fn boot_us(&self) -> i64 {
        let now_us = self.own.process.world.now_us.get();
        self.own.process.server(|server| server.boot_us(now_us))
    }

    fn now_us(&self) -> i64 {
        let now_us = self.own.process.world.now_us.get();
        self.own.process.server(|server| server.wall_us(now_us))
    }

    fn random_fraction(&mut self) -> f64 {
        f64::from(self.own.process.world.below(10)) / 10.0
    }

    fn setting(&self) -> WorkerSetting {
        self.own.member(|member| setting(member))
    }

    fn read_memory(&self) -> MemoryFile {
        self.own.read_memory()
    }

    fn here(&self) -> Option<Place> {
        self.own.here()
    }

    fn write_memory(&mut self, worker: LastWorkerId) -> Result<(), Error> {
        self.own.step();
        self.own.process.try_io().map_err(|_| Error::File)?;
        let place = self.own.here().expect("it is known");
        replace_file(self.own.process, MEMORY_FILE, Memory { place, worker }.encode().into_bytes());
        Ok(())
    }

    fn try_write_memory(&mut self, worker: LastWorkerId) {
        let _ = self.write_memory(worker);
    }

    fn take_request(&mut self) -> i64 {
        self.own.shared(|shared| std::mem::replace(&mut shared.needed_ms, NO_REQUEST))
    }

    fn next_ms(&self) -> i64 {
        self.own.shared(|shared| shared.next_ms)
    }

    fn unused_from_ms(&self) -> i64 {
        self.own.shared(|shared| shared.next_ms)
    }

    fn store(&mut self, lease: &ServerLease) {
        self.own.step();
        self.own.shared(|shared| shared.lease = *lease);
    }

    fn publish(&mut self, pool: &str, lease: &ServerLease) {
        self.own.step();
        self.own.shared(|shared| (shared.lease, shared.pool) = (*lease, Some(pool.to_owned())));
    }

    fn issue_leased(&mut self, pool: &str, lease: &ServerLease) {
        let Some(current) = lease.current else { return };
        self.own.step();
        let node = Node::Leased(current.worker_id, current.token);
        self.own.restrict(node, current.rectangle.first_ms(), current.rectangle.end_ms());
        self.own.shared(|shared| {
            shared.has_issued_by_hand = false;
            (shared.lease, shared.pool) = (*lease, Some(pool.to_owned()));
        });
    }

    fn issue_by_setting(&mut self) {
        self.own.step();
        self.own.restrict(Node::Setting, i64::MIN, i64::MAX);
        self.own.shared(|shared| shared.has_issued_by_hand = false);
        self.own.process.world.reach("a server leaves its pool");
    }

    fn issue_nothing(&mut self) {
        self.own.step();
        self.own.restrict(Node::None, i64::MIN, i64::MIN);
    }

    fn extend_to(&mut self, end_ms: i64) {
        self.own.step();
        self.own.shared(|shared| shared.end_ms = end_ms);
    }

    fn clear(&mut self) {
        self.own.step();
        self.own.shared(|shared| (shared.lease, shared.pool) = (ServerLease::default(), None));
    }

    fn failures(&self) -> u32 {
        self.failures
    }

    fn connected_in(&self) -> Duration {
        Duration::ZERO
    }

    fn is_interrupted(&self) -> bool {
        self.own.member(|member| member.must_stop || member.pool != self.pool)
    }

    fn open(&mut self, limit: Duration) -> Result<Link<'a>, Error> {
        Link::open(self.own, self.pool, limit)
    }

    fn answered(&mut self, _coordinator: Link<'a>, _pause: Duration) {
        self.failures = 0;
    }

    fn failed(&mut self, _pool: &str, error: &Error, _is_first: bool, lease: &ServerLease, _pause: Duration) {
        self.store(lease);
        self.own.process.tell(|| format!("Failed: {error:?}"));
        self.failures += 1;
    }

    fn reset(&mut self) {
        self.failures = 0;
    }

    fn once<R>(
        &mut self,
        _coordinator: &CStr,
        limit: Duration,
        _until: Interrupt,
        calls: impl FnOnce(&mut Link<'a>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut link = Link::open(self.own, self.pool, limit)?;
        link.is_of_its_own = true;
        calls(&mut link)
    }

    fn tell(&mut self, pool: &str, event: Event<Error>) {
        let world = self.own.process.world;
        match event {
            Event::Lost(..) => world.reach("a worker id is lost"),
            Event::NotFree(_) => world.reach("the worker id by hand is not free"),
            _ => {}
        }
        self.own.process.tell(|| format!("{event:?} of pool {pool}"));
    }
}

/// No id of the server has this time or a later one.
pub fn next_ms(member: &Member) -> i64 {
    member.memory.next_ms.max(member.memory.mark_ms)
}

/// True if the server may be copied with its memory: it makes ids under a lease of a pool.
pub fn has_lease(member: &Member) -> bool {
    member.pool.is_some() && matches!(member.memory.node, Node::Leased(..))
}
