//! The table of generators: which id space each belongs to.
//!
//! The table is protected by one lock. Issuing does not take it.

use super::{Generator, GeneratorHandle, NEVER, Progress};
use crate::layout::{Layout, Node};
use crate::snowflake::IdSpace;
use crate::tenancy::Attachment;

/// The id space that a generator belongs to.
#[derive(Clone, Copy, Debug)]
pub struct GeneratorTenant {
    pub space: IdSpace,
    /// The layout and the node as they were first written, for the views.
    pub layout: Layout,
    pub node: Node,
    /// The first slot of the tenancy, or the one that it has skipped to: slots from here on were issued in it.
    pub first_slot: u64,
    /// The last slot that was issued before the skip.
    pub issued_before: Option<u64>,
    pub handle: GeneratorHandle,
    /// The greatest id that was found to be settled.
    settled: i64,
}

impl GeneratorTenant {
    /// The last slot that was issued in the tenancy, given the first free slot.
    pub fn last_issued(&self, free: u64) -> Option<u64> {
        if free > self.first_slot { Some(free - 1) } else { self.issued_before }
    }
}

/// The generator that is reserved for the default layout.
pub(super) const RESERVED: usize = 0;

/// Layouts share floors by a hash; more floors only make sharing rarer.
pub const FLOORS: usize = 1024;

/// Where the spaces of some layouts begin that are not in the table. A new tenancy begins at its floor, so a space that
/// returns repeats no id. A space that left ahead of the clock pushes ahead only spaces that share its floor, and no further
/// than it was itself.
pub struct Floor {
    /// They issued nothing at or after this time (milliseconds since 1970), but for `last`.
    ms: i64,
    /// The space that left last, and its first free slot. If it is the next one that returns, it goes on within its tick.
    last: Option<(IdSpace, u64)>,
    /// When any of them last opened a tick ahead of the limit: otherwise spaces that take turns would each open one at once.
    opened_us: i64,
}

impl Floor {
    #[allow(clippy::new_without_default, reason = "it is made in place, in shared memory")]
    pub const fn new() -> Self {
        Self { ms: i64::MIN, last: None, opened_us: NEVER }
    }

    /// No space of this floor issued anything at or after this time.
    fn unused_from_ms(&self) -> i64 {
        self.last.map_or(self.ms, |(space, free)| space.unused_from_ms(free).max(self.ms))
    }

    fn leave(&mut self, space: IdSpace, Progress { free, opened_us }: Progress) {
        self.ms = self.unused_from_ms_without(&space);
        self.last = Some((space, free));
        self.opened_us = opened_us.max(self.opened_us);
    }

    /// The floor of a space, but for where it left itself.
    fn unused_from_ms_without(&self, space: &IdSpace) -> i64 {
        if self.free_slot_of(space).is_some() { self.ms } else { self.unused_from_ms() }
    }

    /// Lets the last space that has left begin in a later tick when it comes back, unless it is this one.
    fn end_tick_of_others(&mut self, space: &IdSpace) {
        if self.free_slot_of(space).is_none() {
            (self.ms, self.last) = (self.unused_from_ms(), None);
        }
    }

    fn free_slot_of(&self, space: &IdSpace) -> Option<u64> {
        self.last.filter(|(last, _)| last == space).map(|(_, free)| free)
    }
}

/// For the holder of the table's lock: a shared reference under the shared lock, an exclusive one under the exclusive
/// lock.
pub struct GeneratorTable<'a> {
    pub generators: &'a [Generator],
    pub tenants: &'a mut [Option<GeneratorTenant>],
    /// Entries from here on have no tenant. Before it only the reserved one can be without.
    occupied: usize,
    /// By hash of the layout.
    floors: &'a mut [Floor],
}

impl<'a> GeneratorTable<'a> {
    /// Raise a floor before the first attachment. `tenants` has one entry for each generator.
    pub fn new(
        generators: &'a [Generator],
        tenants: &'a mut [Option<GeneratorTenant>],
        floors: &'a mut [Floor],
    ) -> Self {
        Self { generators, tenants, occupied: 0, floors }
    }

    /// Finds the generator of a space. A space that has none gets a free generator, or the one that has been idle
    /// longest. There always is one, so the table is never full. `default` is the space of the default layout.
    pub fn attach(
        &mut self,
        space: IdSpace,
        (layout, node): (Layout, Node),
        default: Option<IdSpace>,
    ) -> Attachment<GeneratorHandle> {
        if let Some(attachment) = self.find(&space) {
            return attachment;
        }
        let index = if default == Some(space) { RESERVED } else { self.free_or_most_idle() };
        self.evict(index);
        self.occupied = self.occupied.max(index + 1);
        let from = self.start_of(&space);
        let (first_slot, handle) = (from.free, self.generators[index].begin(from));
        self.tenants[index] =
            Some(GeneratorTenant { space, layout, node, first_slot, issued_before: None, handle, settled: -1 });
        Attachment { index, handle, is_new: true }
    }

    /// Makes ids begin at this time or later, for tenants and for spaces that attach later.
    pub fn raise_floor(&mut self, floor_ms: i64) {
        for floor in self.floors.iter_mut() {
            floor.ms = floor_ms.max(floor.ms);
        }
        let tenants = self.generators.iter().zip(&mut self.tenants[..self.occupied]);
        for (generator, tenant) in tenants.filter_map(|(generator, tenant)| Some((generator, tenant.as_mut()?))) {
            let first_slot = tenant.space.first_slot_from(floor_ms);
            if let Some(free) = generator.skip_to(tenant.handle, first_slot) {
                tenant.issued_before = tenant.last_issued(free);
                tenant.first_slot = first_slot;
            }
        }
    }

    /// Ends every tenancy and makes ids begin at this time or later, because the worker id or its lease has changed. A
    /// backend that remembers a tenancy issues nothing by it, even if the new lease ends later.
    pub fn restart_at(&mut self, floor_ms: i64) {
        (0..self.occupied).for_each(|index| self.evict(index));
        self.occupied = 0;
        self.raise_floor(floor_ms);
    }

    /// The latest floor that was raised for all spaces.
    pub fn floor_ms(&self) -> i64 {
        self.floors.iter().map(|floor| floor.ms).fold(i64::MAX, i64::min)
    }

    /// Every tenant with the index of its generator and its first free slot.
    pub fn in_use(&self) -> impl Iterator<Item = (usize, &GeneratorTenant, u64)> {
        self.occupied().map(|(index, tenant)| (index, tenant, self.generators[index].free_slot(tenant.handle)))
    }

    fn occupied(&self) -> impl Iterator<Item = (usize, &GeneratorTenant)> {
        let tenants = self.tenants[..self.occupied].iter().enumerate();
        tenants.filter_map(|(index, tenant)| Some((index, tenant.as_ref()?)))
    }

    /// The time of the latest id of any tenant, or the floor if that is later.
    pub fn reached_ms(&self) -> i64 {
        let last_ms = |(_, tenant, free): (usize, &GeneratorTenant, u64)| {
            tenant.last_issued(free).map(|last| tenant.space.time_ms(last))
        };
        self.in_use().filter_map(last_ms).fold(self.floor_ms(), i64::max)
    }

    /// The latest time that the next id of any space can have, in the table or not: how far ahead ids still are.
    pub fn next_ms(&self) -> i64 {
        let next = self.in_use().map(|(_, tenant, free)| tenant.space.time_ms(free));
        next.chain(self.floors.iter().map(Floor::unused_from_ms)).fold(i64::MIN, i64::max)
    }

    /// No id of any space, in the table or not, was issued with this time or a later one.
    pub fn unused_from_ms(&self) -> i64 {
        let tenants = self.unused_by_tenant().map(|(_, unused_ms)| unused_ms);
        tenants.chain(self.floors.iter().map(Floor::unused_from_ms)).fold(i64::MIN, i64::max)
    }

    /// The first free slot of a space, in the table or not.
    pub fn free_slot(&self, space: &IdSpace) -> u64 {
        match self.find(space) {
            Some(Attachment { index, handle, .. }) => self.generators[index].free_slot(handle),
            None => self.start_of(space).free,
        }
    }

    /// The first free slot of a space, as of now. What is later issued in its layout begins there, or later, also under another
    /// worker id that comes back.
    pub fn begin_to_settle(&mut self, space: &IdSpace) -> u64 {
        if self.find(space).is_none() {
            self.floors[floor_of(space)].end_tick_of_others(space);
        }
        self.free_slot(space)
    }

    /// Remembers that this id is settled, and returns the greatest one that is: what is settled stays so, and bounds in
    /// milliseconds would let the answer fall by a part of one. A generator that changes its tenant forgets it.
    pub fn settle(&mut self, space: &IdSpace, id: i64) -> i64 {
        let tenant = self.tenants[..self.occupied].iter_mut().flatten().find(|tenant| tenant.space == *space);
        tenant.map_or(id, |tenant| {
            tenant.settled = tenant.settled.max(id);
            tenant.settled
        })
    }

    fn find(&self, space: &IdSpace) -> Option<Attachment<GeneratorHandle>> {
        let (index, tenant) = self.occupied().find(|(_, tenant)| tenant.space == *space)?;
        Some(Attachment { index, handle: tenant.handle, is_new: false })
    }

    /// The start of a new space: where it left, after its floor, and after the end of all ids of its layout that this
    /// server issued under another worker id. So the ids in a user's table keep rising when the worker id changes.
    fn start_of(&self, space: &IdSpace) -> Progress {
        let floor = &self.floors[floor_of(space)];
        let is_sibling = |index: usize| self.tenants[index].is_some_and(|other| other.space.shares_layout_with(space));
        let siblings = self.unused_by_tenant().filter(|(index, _)| is_sibling(*index));
        let start_ms = siblings.map(|(_, unused_ms)| unused_ms).fold(floor.unused_from_ms_without(space), i64::max);
        let free = space.first_slot_from(start_ms).max(floor.free_slot_of(space).unwrap_or(0));
        Progress { free, opened_us: floor.opened_us }
    }

    /// For each generator with a tenant, the time from which on it has issued nothing.
    fn unused_by_tenant(&self) -> impl Iterator<Item = (usize, i64)> {
        self.in_use().map(|(index, tenant, free)| (index, tenant.space.unused_from_ms(free)))
    }

    /// Never the reserved one.
    fn free_or_most_idle(&self) -> usize {
        let free = self.occupied.max(RESERVED + 1);
        if free < self.tenants.len() {
            return free;
        }
        let others = self.unused_by_tenant().filter(|(index, _)| *index != RESERVED);
        let most_idle = others.min_by_key(|(_, unused_ms)| *unused_ms);
        most_idle.expect("a table has a generator that is not reserved, and none is free").0
    }

    /// Ends the tenancy of a generator, if it has a tenant. The floor then covers every id that the tenant has issued.
    fn evict(&mut self, index: usize) {
        if let Some(tenant) = self.tenants[index].take() {
            let progress = self.generators[index].end(tenant.handle);
            self.floors[floor_of(&tenant.space)].leave(tenant.space, progress);
        }
    }
}

/// The floor of a space. Independent of the worker id: the space of a new worker id begins after that of the old one.
fn floor_of(space: &IdSpace) -> usize {
    (space.layout_hash() % FLOORS as u64) as usize
}
