//! The table of generators: which id space lives in which.
//!
//! All of this happens under one lock, held exclusively; issuing does not take it.

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
    /// Where the tenancy began: slots from here on were issued in it.
    pub first_slot: u64,
    pub handle: Handle,
}

/// Where a space lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub index: usize,
    pub handle: Handle,
    /// The space was not in the table before.
    pub new: bool,
}

/// No generator is free and none can be taken: each has issued up to the clock or beyond.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// The generator that is kept for the default layout and never taken from it.
pub const KEPT: usize = 0;

/// The table, in the hands of whoever holds its lock.
pub struct Table<'a> {
    pub generators: &'a [Generator],
    pub tenants: &'a mut [Option<Tenant>],
    /// Nothing that has left the table was issued at or after this time (milliseconds since 1970). Every new tenancy
    /// begins at it, so that a space that comes back cannot repeat itself. Never ahead of the clock.
    pub floor_ms: &'a mut i64,
}

impl Table<'_> {
    /// Finds the generator of a space, or gives it one: a free one, else the one that has been still for longest.
    /// `kept` is the space of the default layout.
    pub fn attach(
        &mut self,
        space: IdSpace,
        (layout, node): (Layout, Node),
        kept: Option<IdSpace>,
        now_ms: i64,
    ) -> Result<Place, Full> {
        if let Some(place) = self.find(&space) {
            return Ok(place);
        }
        let index = match kept == Some(space) {
            true => KEPT,
            false => self.vacate(now_ms)?,
        };
        let first_slot = space.first_slot_from(self.start_ms(&space));
        let handle = self.generators[index].begin(first_slot);
        self.tenants[index] = Some(Tenant { space, layout, node, first_slot, handle });
        Ok(Place { index, handle, new: true })
    }

    fn find(&self, space: &IdSpace) -> Option<Place> {
        let at = |(index, tenant): (usize, &Option<Tenant>)| {
            let tenant = tenant.as_ref().filter(|tenant| tenant.space == *space)?;
            Some(Place { index, handle: tenant.handle, new: false })
        };
        self.tenants.iter().enumerate().find_map(at)
    }

    /// Where a new space begins: after all that left the table, and after all that its layout has issued here under
    /// another number, so that ids of one table keep rising when the server's number changes.
    fn start_ms(&self, space: &IdSpace) -> i64 {
        let siblings = self
            .settled()
            .filter(|(index, _)| self.tenants[*index].is_some_and(|tenant| tenant.space.same_layout(space)));
        siblings.map(|(_, settled_ms)| settled_ms).fold(*self.floor_ms, i64::max)
    }

    /// Each tenant's generator with the first instant at which it has issued nothing.
    fn settled(&self) -> impl Iterator<Item = (usize, i64)> {
        let of = |(index, tenant): (usize, &Option<Tenant>)| {
            let tenant = tenant.as_ref()?;
            Some((index, tenant.space.settled_ms(self.generators[index].free_slot(tenant.handle))))
        };
        self.tenants.iter().enumerate().filter_map(of)
    }

    fn vacate(&mut self, now_ms: i64) -> Result<usize, Full> {
        let mut others = self.tenants.iter().enumerate().skip(KEPT + 1);
        if let Some((index, _)) = others.find(|(_, tenant)| tenant.is_none()) {
            return Ok(index);
        }
        loop {
            let stillest = self.settled().filter(|(index, _)| *index != KEPT).min_by_key(|(_, at)| *at);
            // Taking a generator that is ahead of the clock would push the floor, and so every new space, ahead too.
            let (index, _) = stillest.filter(|(_, settled_ms)| *settled_ms <= now_ms).ok_or(Full)?;
            if self.evict(index, now_ms) {
                return Ok(index);
            }
        }
    }

    /// Ends a tenancy. If it drew ids in the meantime, up to the clock, it stays after all, under a new handle.
    fn evict(&mut self, index: usize, now_ms: i64) -> bool {
        let Some(tenant) = self.tenants[index].as_mut() else {
            return true;
        };
        let free = self.generators[index].end(tenant.handle);
        let settled_ms = tenant.space.settled_ms(free);
        if settled_ms > now_ms {
            tenant.handle = self.generators[index].begin(free);
            return false;
        }
        *self.floor_ms = settled_ms.max(*self.floor_ms);
        self.tenants[index] = None;
        true
    }
}

#[cfg(test)]
mod tests;
