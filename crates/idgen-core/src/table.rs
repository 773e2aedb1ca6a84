//! The table of generators: which id space lives in which.
//!
//! All of this happens under one lock, held exclusively; issuing does not take it.

use crate::clock::{EffectiveClock, Reading};
use crate::generator::{Generator, Handle};
use crate::layout::{Layout, Node};
use crate::snowflake::IdSpace;

/// Who lives in a generator.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    pub space: IdSpace,
    /// The layout and the number as they were first written, to show them.
    pub layout: Layout,
    pub node: Node,
    /// Where the tenancy began, or has skipped to: slots from here on were issued in it.
    pub first_slot: u64,
    /// The last slot that was issued before the skip.
    pub issued_before: Option<u64>,
    pub handle: Handle,
}

impl Tenant {
    /// The last slot that was issued in the tenancy, when `free` is the first that is free.
    pub fn last_issued(&self, free: u64) -> Option<u64> {
        if free > self.first_slot { Some(free - 1) } else { self.issued_before }
    }
}

/// Where a space lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub index: usize,
    pub handle: Handle,
    /// The space was not in the table before.
    pub new: bool,
}

/// The generator that is kept for the default layout and never taken from it.
pub const KEPT: usize = 0;

/// How many floors there are. Spaces share them by a hash; more of them only make it rarer that two do.
pub const FLOORS: usize = 1024;

/// The table, in the hands of whoever holds its lock.
pub struct Table<'a> {
    pub generators: &'a [Generator],
    pub tenants: &'a mut [Option<Tenant>],
    /// For each space, by its hash: what left the table issued nothing at or after this time (milliseconds since 1970).
    /// A new tenancy begins at its floor, so a space that comes back cannot repeat itself. The ids of one that was taken
    /// ahead of the clock push only those ahead that share its floor, and by no more than it was itself.
    floors_ms: [i64; FLOORS],
}

impl<'a> Table<'a> {
    /// Nothing was issued by what is not in the table: the file says what was, once it is read.
    pub fn new(generators: &'a [Generator], tenants: &'a mut [Option<Tenant>]) -> Self {
        Self { generators, tenants, floors_ms: [i64::MIN; FLOORS] }
    }

    /// Finds the generator of a space, or gives it one: a free one, else the one that has been still for longest. There
    /// always is one, so nobody can fill the table. `kept` is the space of the default layout.
    pub fn attach(&mut self, space: IdSpace, (layout, node): (Layout, Node), kept: Option<IdSpace>) -> Place {
        if let Some(place) = self.find(&space) {
            return place;
        }
        let index = if kept == Some(space) { KEPT } else { self.stillest() };
        self.evict(index);
        let first_slot = space.first_slot_from(self.start_ms(&space));
        let handle = self.generators[index].begin(first_slot);
        self.tenants[index] = Some(Tenant { space, layout, node, first_slot, issued_before: None, handle });
        Place { index, handle, new: true }
    }

    /// Makes everything begin at this time or later: what is in the table goes on from it, what comes begins at it. The
    /// effective clock begins there too, so that no id waits for the wall clock to get there. The clocks were read before
    /// the lock was taken.
    pub fn raise_floor(&mut self, floor_ms: i64, effective: &EffectiveClock, reading: Reading) {
        for floor in self.floors_ms.iter_mut() {
            *floor = floor_ms.max(*floor);
        }
        for (generator, tenant) in self.generators.iter().zip(self.tenants.iter_mut()) {
            let Some(tenant) = tenant else {
                continue;
            };
            let first_slot = tenant.space.first_slot_from(floor_ms);
            if let Some(free) = generator.skip_to(tenant.handle, first_slot) {
                tenant.issued_before = tenant.last_issued(free);
                tenant.first_slot = first_slot;
            }
        }
        effective.raise(floor_ms, reading);
    }

    /// Lowers the effective clock to where the next ids are. Under the same lock as `raise_floor`: a floor that was raised
    /// in between would be forgotten, and ids would wait until the wall clock gets there.
    pub fn settle(&self, effective: &EffectiveClock, reading: Reading) {
        effective.settle(self.next_ms(), reading);
    }

    /// Ends every tenancy, and makes what comes begin at this time or later: the server's number is another, or its lease
    /// is. Whoever still remembers a tenancy issues nothing by it, however far the new number may go.
    pub fn begin_anew(&mut self, floor_ms: i64, effective: &EffectiveClock, reading: Reading) {
        (0..self.tenants.len()).for_each(|index| self.evict(index));
        self.raise_floor(floor_ms, effective, reading);
    }

    /// The time at which everything begins: the last floor that was raised for all.
    pub fn floor_ms(&self) -> i64 {
        self.floors_ms.iter().copied().fold(i64::MAX, i64::min)
    }

    /// The time that ids have come to: that of the latest id of any layout in the table, or where ids begin.
    pub fn reached_ms(&self) -> i64 {
        let of = |(generator, tenant): (&Generator, &Option<Tenant>)| {
            let tenant = tenant.as_ref()?;
            Some(tenant.space.time_ms(tenant.last_issued(generator.free_slot(tenant.handle))?))
        };
        self.generators.iter().zip(self.tenants.iter()).filter_map(of).fold(self.floor_ms(), i64::max)
    }

    /// The time of the latest id that is next in any layout, in the table or to come: how far ahead ids still are.
    pub fn next_ms(&self) -> i64 {
        let of = |(generator, tenant): (&Generator, &Option<Tenant>)| {
            let tenant = tenant.as_ref()?;
            Some(tenant.space.time_ms(generator.free_slot(tenant.handle)))
        };
        let next = self.generators.iter().zip(self.tenants.iter()).filter_map(of);
        next.chain(self.floors_ms.iter().copied()).fold(i64::MIN, i64::max)
    }

    /// The time at which, and after which, nothing has been issued by anything that is or was in the table.
    pub fn settled_ms(&self) -> i64 {
        self.settled().map(|(_, settled_ms)| settled_ms).chain(self.floors_ms.iter().copied()).fold(i64::MIN, i64::max)
    }

    fn find(&self, space: &IdSpace) -> Option<Place> {
        let at = |(index, tenant): (usize, &Option<Tenant>)| {
            let tenant = tenant.as_ref().filter(|tenant| tenant.space == *space)?;
            Some(Place { index, handle: tenant.handle, new: false })
        };
        self.tenants.iter().enumerate().find_map(at)
    }

    /// Where a new space begins: at its floor, and after all that its layout has issued here under another number, so
    /// that ids of one table keep rising when the server's number changes.
    fn start_ms(&self, space: &IdSpace) -> i64 {
        let is_sibling = |index: usize| self.tenants[index].is_some_and(|tenant| tenant.space.same_layout(space));
        let siblings = self.settled().filter(|(index, _)| is_sibling(*index));
        siblings.map(|(_, settled_ms)| settled_ms).fold(self.floors_ms[floor_of(space)], i64::max)
    }

    /// Each tenant's generator with the first instant at which it has issued nothing.
    fn settled(&self) -> impl Iterator<Item = (usize, i64)> {
        let of = |(index, tenant): (usize, &Option<Tenant>)| {
            let tenant = tenant.as_ref()?;
            Some((index, tenant.space.settled_ms(self.generators[index].free_slot(tenant.handle))))
        };
        self.tenants.iter().enumerate().filter_map(of)
    }

    /// A generator that is free, or the one that has been still for longest; never the kept one.
    fn stillest(&self) -> usize {
        let mut others = self.tenants.iter().enumerate().skip(KEPT + 1);
        if let Some((index, _)) = others.find(|(_, tenant)| tenant.is_none()) {
            return index;
        }
        let others = self.settled().filter(|(index, _)| *index != KEPT);
        let stillest = others.min_by_key(|(_, settled_ms)| *settled_ms);
        stillest.expect("a table has a generator beside the kept one, and none is free").0
    }

    /// Ends the tenancy of a generator, if it has a tenant. What that issued, up to this very moment, is under its
    /// floor from now on.
    fn evict(&mut self, index: usize) {
        if let Some(tenant) = self.tenants[index].take() {
            let free = self.generators[index].end(tenant.handle);
            let floor = &mut self.floors_ms[floor_of(&tenant.space)];
            *floor = tenant.space.settled_ms(free).max(*floor);
        }
    }
}

/// Which floor is a space's. The server's number is left out, so that a new number finds what the old one has left.
fn floor_of(space: &IdSpace) -> usize {
    (space.layout_hash() % FLOORS as u64) as usize
}

#[cfg(test)]
mod tests;
