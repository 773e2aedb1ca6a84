//! The table of rings: which tag lives in which.
//!
//! All of this happens under one lock, held exclusively; drawing does not take it.

use super::{Handle, Ring};

/// A tag, over all databases. The creation number is random and of this one creation: a tag that was dropped and made
/// again is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub database: u32,
    pub creation: i64,
}

/// The version of a row that was dropped: no row has a higher one.
pub const DROPPED: i64 = i64::MAX;

/// Who lives in a ring.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    pub key: Key,
    /// Of the row that the ranges come from; every change of the row by hand counts it up.
    pub version: i64,
    pub handle: Handle,
    /// The position at which the tenancy began.
    pub began_at: u64,
    /// When the tenancy began and when its last range came, on a clock that never steps.
    pub began_us: i64,
    pub refilled_us: Option<i64>,
}

/// Where a tag lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub index: usize,
    pub handle: Handle,
    /// The tag was not in the table, or its row has changed: nothing is in the ring.
    pub new: bool,
}

/// The table, in the hands of whoever holds its lock.
pub struct Table<'a> {
    pub rings: &'a [Ring],
    pub tenants: &'a mut [Option<Tenant>],
}

impl<'a> Table<'a> {
    pub fn new(rings: &'a [Ring], tenants: &'a mut [Option<Tenant>]) -> Self {
        Self { rings, tenants }
    }

    pub fn find(&self, key: Key) -> Option<(usize, Tenant)> {
        let at = |(index, tenant): (usize, &Option<Tenant>)| {
            tenant.filter(|tenant| tenant.key == key).map(|tenant| (index, tenant))
        };
        self.tenants.iter().enumerate().find_map(at)
    }

    /// Finds the ring of a tag, or gives it one: a free one, else that of a tag that is `gone`, else the one that was
    /// refilled longest ago. There always is one. A row that has changed since its ranges were made begins anew;
    /// whoever comes with an older look at the row gets the ring of the newer.
    pub fn attach(&mut self, key: Key, version: i64, stride: i64, now_us: i64, gone: &[Key]) -> Place {
        let found = self.find(key);
        if let Some((index, tenant)) = found.filter(|(_, tenant)| tenant.version >= version) {
            return Place { index, handle: tenant.handle, new: false };
        }
        let index = found.map_or_else(|| self.room(gone), |(index, _)| index);
        self.evict(index);
        let handle = self.rings[index].begin(stride);
        let began_at = self.rings[index].position();
        self.tenants[index] = Some(Tenant { key, version, handle, began_at, began_us: now_us, refilled_us: None });
        Place { index, handle, new: true }
    }

    /// The row of a tag has changed, or is [`DROPPED`]: its ring, if it has one, begins again with nothing in it. The tag keeps
    /// the ring, so that neither an older look at the row nor a range on its way from it brings old values back.
    pub fn supersede(&mut self, key: Key, version: i64, stride: i64, now_us: i64) -> Option<Place> {
        self.find(key)?;
        Some(self.attach(key, version, stride, now_us, &[]))
    }

    /// Is there no ring left that nobody lives in?
    pub fn is_full(&self) -> bool {
        self.tenants.iter().all(Option::is_some)
    }

    /// Takes the ring away from whoever lives in it. What is left in it is discarded.
    pub fn evict(&mut self, index: usize) {
        if let Some(tenant) = self.tenants[index].take() {
            self.rings[index].end(tenant.handle);
        }
    }

    /// A ring that is free or can be made so.
    fn room(&self, gone: &[Key]) -> usize {
        let rank = |tenant: &Option<Tenant>| {
            tenant.map(|tenant| (!gone.contains(&tenant.key), tenant.refilled_us.unwrap_or(tenant.began_us)))
        };
        // A free one is `None`, which is less than every tenant.
        let best = self.tenants.iter().enumerate().min_by_key(|(_, tenant)| rank(tenant));
        best.expect("a table has a ring").0
    }
}
