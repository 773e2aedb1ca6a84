//! The shared state of segments: the rings, what belongs to each ring, and the end of a refill, which installs values.

use crate::pg::latch::ConditionVariable;
use crate::pg::system_clock;
use crate::settings;
use crate::shmem::{Block, FixedText, Locked, Part};
use idgen_core::segment::chains::{self, Chains, TagMap};
use idgen_core::segment::refillers::Refillers;
use idgen_core::segment::settled::Settling;
use idgen_core::segment::turns::Turns;
use idgen_core::segment::{NewRange, Ring, RingHandle, RingSnapshot, RingTable, RingTenant, TagKey};
use idgen_core::tenancy::Attachment;
use pgrx::pg_sys;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64};

/// Draws take no lock.
pub static RINGS: Part<&'static [Ring]> =
    Part::new(c"idgen segment rings", |block| block.array(settings::max_segments(), Ring::new));

/// One for each ring.
pub static RING_STATES: Part<&'static [RingState]> =
    Part::new(c"idgen segment slots", |block| block.array(settings::max_segments(), RingState::default));

/// The tag of each ring, and the workers that serve them.
pub static SEGMENTS: Locked<Segments> = Locked::new(c"idgen segments", 40, |block| {
    let count = settings::max_segments();
    // SAFETY: fixed before PostgreSQL asks for the size of shared memory. Each of these workers is one of them.
    let worker_count = unsafe { pg_sys::max_worker_processes } as usize;
    Segments {
        table: RingTable {
            rings: RINGS.get().map_or(&[][..], |rings| rings),
            tenants: block.array(count, || None),
            chains: chains(block, count),
            hand: 0,
            displaced: 0,
            rests: tag_map(block, RESTS),
        },
        errors: block.array(count, LastError::default),
        turns: block.array(count, Turns::default),
        settling: tag_map(block, READ),
        refillers: Refillers(block.array(worker_count, || None)),
        link_changes: 0,
    }
});

/// How many tags without a ring keep what they had left.
const RESTS: usize = 131_072;

/// How many tags have consumers of settled values.
const READ: usize = 1024;

fn chains(block: &mut Block, places: usize) -> Chains<'static> {
    Chains { heads: block.array(Chains::heads_of(places), || chains::END), nexts: block.array(places, || chains::END) }
}

fn tag_map<T: Copy>(block: &mut Block, places: usize) -> TagMap<'static, T> {
    TagMap { places: block.array(places, || None), chains: chains(block, places), count: 0, hand: 0 }
}

/// State protected by the segments lock.
pub struct Segments {
    pub table: RingTable<'static>,
    /// One for each ring.
    pub errors: &'static mut [LastError],
    /// The requests for values in one line, for each ring.
    pub turns: &'static mut [Turns],
    /// What readings of settled values have found.
    pub settling: TagMap<'static, Settling>,
    pub refillers: Refillers<'static>,
    /// Commits that have attached or detached tags, in all databases.
    pub link_changes: u64,
}

/// Why a ring gets no values; clear after a refill that succeeded.
#[derive(Clone, Copy, Default)]
pub struct LastError {
    pub text: FixedText<200>,
    /// When it got none first and last, in milliseconds since 1970.
    pub since_ms: i64,
    pub last_ms: i64,
}

impl LastError {
    pub fn set(&mut self, reason: &str) {
        self.last_ms = system_clock::wall_ms();
        if self.text.is_clear() {
            self.since_ms = self.last_ms;
        }
        self.text.set(reason);
    }
}

impl Segments {
    /// Begins a tenancy in a ring, without demand, errors or counts of an earlier one.
    pub fn begin(&mut self, index: usize) {
        ring_state(index).begin(ring(index).position());
        self.errors[index].text.clear();
        self.turns[index].restart();
    }
}

/// A row, as its ring follows it.
#[derive(Clone, Copy)]
pub struct RingRow {
    pub key: TagKey,
    pub version: i64,
    pub stride: i64,
    /// Its values come from a coordinator. Attaching and detaching it changes the version.
    pub is_attached: bool,
}

#[derive(Clone, Copy)]
pub struct SharedRing {
    pub ring: &'static Ring,
    pub handle: RingHandle,
    pub index: usize,
}

/// The rings that `is_wanted` selects under the segments lock, by their index and tenant, each with its error.
pub fn rings(mut is_wanted: impl FnMut(&Segments, usize, &RingTenant) -> bool) -> Vec<(RingSnapshot, LastError)> {
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(settings::max_segments());
    SEGMENTS.exclusive(|segments| {
        let tenants = segments.table.tenants.iter().enumerate().filter_map(|(index, tenant)| Some((index, (*tenant)?)));
        let wanted = tenants.filter(|(index, tenant)| is_wanted(segments, *index, tenant));
        found.extend(wanted.map(|(index, tenant)| {
            let (remaining, has_room) = (ring(index).remaining(tenant.handle), ring(index).has_room());
            let (position, turn_due) = (ring(index).position(), segments.turns[index].due());
            let demand = ring_state(index).demand.load(Relaxed);
            let ring = RingSnapshot { index, tenant, remaining, has_room, position, demand, turn_due };
            (ring, segments.errors[index])
        }));
    });
    found
}

/// Installs values in the ring of their row, once the transaction has committed.
pub fn install(key: TagKey, new: NewRange) {
    let NewRange { range, version, is_attached, began_us, .. } = new;
    let index = attach_ring(RingRow { key, version, stride: range.stride, is_attached }).index;
    SEGMENTS.exclusive(|Segments { table, turns, errors, .. }| {
        if table.install(index, key, &new, &mut turns[index], system_clock::boot_us()) {
            errors[index].text.clear();
        }
    });
    let state = ring_state(index);
    state.refill_us.store((system_clock::boot_us() - began_us).max(0) as u64, Relaxed);
    state.exhausted.store(false, Relaxed);
    state.dry_since_ms.store(0, Relaxed);
    // Release: see `RingState::refills`.
    state.refills.fetch_add(1, Release);
}

/// The row of this version has no more values. Only sessions that attached at this version or a lower one have nothing left to
/// draw; those that attached at a higher one have yet to request values.
pub fn exhaust(index: usize, key: TagKey, version: i64) {
    SEGMENTS.exclusive(|segments| {
        let is_concerned = |tenant: &RingTenant| tenant.key == key && tenant.version <= version;
        if segments.table.tenants[index].as_ref().is_some_and(is_concerned) {
            ring_state(index).exhausted.store(true, Relaxed);
        }
    });
}

/// Ends the ring of a tag that is gone. Sessions that draw from it look the tag up again.
pub fn evict(index: usize, tenant: RingTenant) {
    in_tenancy(index, tenant.handle, |segments| segments.table.end(index));
}

/// Finds the ring of a row of this version, or begins its tenancy in one.
pub fn attach_ring(row: RingRow) -> SharedRing {
    let RingRow { key, version, stride, is_attached } = row;
    // The supply worker reads for itself how many values are left.
    let low_water = |count| (!is_attached).then(|| settings::segment_low_water(count));
    SEGMENTS.exclusive(|segments| {
        let Attachment { index, handle, is_new } = segments.table.attach(key, version, stride, low_water);
        if is_new {
            segments.begin(index);
        }
        // Also in a tenancy that the trigger began: it does not know. A newer row may not be attached as this one is.
        if segments.table.tenants[index].is_some_and(|tenant| tenant.version == version) {
            ring_state(index).is_attached.store(is_attached, Relaxed);
        }
        SharedRing { ring: ring(index), handle, index }
    })
}

/// Works under the segments lock, unless the ring has become another tag's.
pub fn in_tenancy<R>(index: usize, handle: RingHandle, work: impl FnOnce(&mut Segments) -> R) -> Option<R> {
    SEGMENTS.exclusive(|segments| segments.table.has_tenancy(index, handle).then(|| work(segments)))
}

/// Ends the rings of a database that is dropped: a database made from a template can have its OID and the creation numbers
/// of its rows.
pub fn end_rings_of(database: u32) {
    SEGMENTS.exclusive(|segments| {
        segments.table.forget(database);
        segments.settling.forget(database);
    });
}

pub fn ring(index: usize) -> &'static Ring {
    &RINGS.require()[index]
}

pub fn ring_state(index: usize) -> &'static RingState {
    &RING_STATES.require()[index]
}

/// The demand for a ring, and its counters. In cache lines of its own, as the ring.
#[repr(align(128))]
#[derive(Default)]
pub struct RingState {
    /// How many values are wanted beyond those in the ring; 0 if no refill is wanted. The worker that serves the ring
    /// resets it.
    pub demand: AtomicU64,
    /// The supply worker serves the ring, not the refill worker. Says who is asked; the row says who may answer.
    pub is_attached: AtomicBool,
    /// Values drawn per second, as the supply worker has measured it: the bits of an f64.
    pub rate: AtomicU64,
    /// A `CoordinatorState`.
    pub coordinator: AtomicU8,
    /// The row has no more values up to its upper bound.
    pub exhausted: AtomicBool,
    /// Since when sessions have found no value, in milliseconds since 1970; 0 if one has been drawn since. It tells what
    /// an error does not: a session can be cancelled before it has waited long enough to keep one.
    pub dry_since_ms: AtomicI64,
    pub refills: AtomicU64,
    /// Time that the last refill took, from reading the row to installing the values.
    pub refill_us: AtomicU64,
    pub waits: AtomicU64,
    pub wait_us: AtomicU64,
    /// The ring's position when the counters were reset.
    pub reset_at: AtomicU64,
    /// Processes that found the ring dry sleep here.
    pub refilled: ConditionVariable,
}

/// What the last request for an attached segment has met.
#[derive(Clone, Copy)]
pub enum CoordinatorState {
    /// There was no request yet.
    Unknown,
    Answering,
    /// It answers with an error of this segment, or waits for reports of other servers.
    Refusing,
    /// It does not answer.
    Failing,
}

/// By the numbers of the states.
pub const COORDINATOR_STATES: [&str; 4] = ["unknown", "answering", "refusing", "failing"];

impl RingState {
    fn begin(&self, position: u64) {
        for word in [&self.demand, &self.rate, &self.refill_us] {
            word.store(0, Relaxed);
        }
        self.coordinator.store(CoordinatorState::Unknown as u8, Relaxed);
        self.exhausted.store(false, Relaxed);
        self.dry_since_ms.store(0, Relaxed);
        self.reset(position);
    }

    pub fn refills(&self) -> u64 {
        // Acquire: a draw after this finds what these refills have brought.
        self.refills.load(Acquire)
    }

    pub fn reset(&self, position: u64) {
        for counter in [&self.refills, &self.waits, &self.wait_us] {
            counter.store(0, Relaxed);
        }
        self.reset_at.store(position, Relaxed);
    }
}
