//! The shared memory of a server with tags: rings, the demand for them, and the workers that serve them.

use super::super::World;
use super::Backend;
use idgen_core::segment::chains::{Chains, END, TagMap};
use idgen_core::segment::refillers::Refiller;
use idgen_core::segment::turns::Turns;
use idgen_core::segment::{NewRange, Rest, Ring, RingHandle, RingSnapshot, RingTable, RingTenant, TagKey};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Tags without a ring that keep what they had left.
const RESTS: usize = 1;
/// Workers at a time, of all kinds.
const WORKERS: usize = 2;

pub struct Memory {
    pub rings: Box<[Ring]>,
    /// The demand for each ring.
    pub states: Box<[State]>,
    table: RefCell<Table>,
    pub turns: RefCell<Box<[Turns]>>,
    pub refillers: RefCell<[Option<Refiller>; WORKERS]>,
    /// Commits that have attached or detached tags.
    pub link_changes: Cell<u64>,
    /// Commits that processes have been told of.
    pub announced: Cell<u64>,
    /// Tags whose rows are locked.
    pub locks: RefCell<BTreeSet<usize>>,
}

#[derive(Default)]
pub struct State {
    pub demand: Cell<u64>,
    pub is_attached: Cell<bool>,
    pub exhausted: Cell<bool>,
    pub refills: Cell<u64>,
    /// The last refill has failed.
    pub is_failing: Cell<bool>,
}

/// What a table of rings refers to.
struct Table {
    tenants: Vec<Option<RingTenant>>,
    chains: [Vec<u32>; 2],
    hand: usize,
    rests: Vec<Option<(TagKey, Rest)>>,
    chains_of_rests: [Vec<u32>; 2],
    rest_count: usize,
    rest_hand: usize,
}

/// A row, as its ring follows it.
#[derive(Clone, Copy, Debug)]
pub struct RingRow {
    pub key: TagKey,
    pub version: i64,
    pub stride: i64,
    pub is_attached: bool,
}

fn chains(places: usize) -> [Vec<u32>; 2] {
    [vec![END; Chains::heads_of(places)], vec![END; places]]
}

impl Memory {
    pub fn new(rings: usize) -> Self {
        let table = Table {
            tenants: vec![None; rings],
            chains: chains(rings),
            hand: 0,
            rests: vec![None; RESTS],
            chains_of_rests: chains(RESTS),
            rest_count: 0,
            rest_hand: 0,
        };
        Self {
            rings: (0..rings).map(|_| Ring::new()).collect(),
            states: (0..rings).map(|_| State::default()).collect(),
            table: RefCell::new(table),
            turns: RefCell::new((0..rings).map(|_| Turns::default()).collect()),
            refillers: RefCell::default(),
            link_changes: Cell::new(0),
            announced: Cell::new(0),
            locks: RefCell::default(),
        }
    }

    /// Works under the lock of the table.
    pub fn table<R>(&self, work: impl FnOnce(&mut RingTable) -> R) -> R {
        let mut owner = self.table.borrow_mut();
        let Table { tenants, chains: [heads, nexts], hand, rests, chains_of_rests, rest_count, rest_hand } =
            &mut *owner;
        let [rest_heads, rest_nexts] = chains_of_rests;
        let chains_of_rests = Chains { heads: rest_heads, nexts: rest_nexts };
        let rests = TagMap { places: rests, chains: chains_of_rests, count: *rest_count, hand: *rest_hand };
        let (chains, displaced) = (Chains { heads, nexts }, 0);
        let mut table = RingTable { rings: &self.rings, tenants, chains, hand: *hand, displaced, rests };
        let result = work(&mut table);
        let RingTable { hand: next_hand, rests: TagMap { count, hand: next_rest_hand, .. }, .. } = table;
        (*hand, *rest_count, *rest_hand) = (next_hand, count, next_rest_hand);
        result
    }

    /// Works under the lock of the table, unless the ring has become another tag's.
    pub fn in_tenancy<R>(&self, index: usize, handle: RingHandle, work: impl FnOnce(&State) -> R) -> Option<R> {
        self.table(|table| table.has_tenancy(index, handle)).then(|| work(&self.states[index]))
    }

    /// The rings that are attached or are not, as they are now.
    pub fn snapshots(&self, is_attached: bool) -> Vec<RingSnapshot> {
        let tenants: Vec<_> = self.table(|table| table.tenants.to_vec());
        let tenants = tenants.into_iter().enumerate().filter_map(|(index, tenant)| Some((index, tenant?)));
        let served = tenants.filter(|(index, _)| self.states[*index].is_attached.get() == is_attached);
        let snapshot = |(index, tenant): (usize, RingTenant)| RingSnapshot {
            index,
            tenant,
            remaining: self.rings[index].remaining(tenant.handle),
            has_room: self.rings[index].has_room(),
            position: self.rings[index].position(),
            demand: self.states[index].demand.get(),
            turn_due: self.turns.borrow()[index].due(),
        };
        served.map(snapshot).collect()
    }

    /// A tenancy begins in a ring, without demand of an earlier one.
    pub fn begin(&self, index: usize) {
        let State { demand, exhausted, refills, is_failing, .. } = &self.states[index];
        demand.set(0);
        exhausted.set(false);
        refills.set(0);
        is_failing.set(false);
        self.turns.borrow_mut()[index].restart();
    }
}

impl Backend<'_> {
    /// Finds the ring of a row of this version, or begins its tenancy in one.
    pub fn attach_ring(&self, row: RingRow) -> (usize, RingHandle) {
        self.process.step();
        let part = self.shared.low_water_part.get();
        let low_water = |count: u64| (!row.is_attached).then(|| count / part);
        let memory = &self.memory;
        let (attachment, is_it) = memory.table(|table| {
            let attachment = table.attach(row.key, row.version, row.stride, low_water);
            let is_it = table.tenants[attachment.index].is_some_and(|tenant| tenant.version == row.version);
            (attachment, is_it)
        });
        if attachment.is_new {
            memory.begin(attachment.index);
        }
        if is_it {
            memory.states[attachment.index].is_attached.set(row.is_attached);
        }
        (attachment.index, attachment.handle)
    }

    /// Installs values in the ring of their row, once the transaction has committed.
    pub fn install(&self, key: TagKey, new: &NewRange) {
        let NewRange { range, version, is_attached, .. } = *new;
        let (index, _) = self.attach_ring(RingRow { key, version, stride: range.stride, is_attached });
        self.process.step();
        let (memory, now_us) = (&self.memory, self.now_us());
        let mut turns = memory.turns.borrow_mut();
        let is_installed = memory.table(|table| table.install(index, key, new, &mut turns[index], now_us));
        let state = &memory.states[index];
        if is_installed {
            state.is_failing.set(false);
        }
        state.exhausted.set(false);
        state.refills.set(state.refills.get() + 1);
        self.process.tell(|| format!("installs {} to {}: {is_installed}", range.first, range.last()));
    }

    pub fn signal(&self) {
        let world: &World = self.world();
        world.signal(self.server());
    }
}
