//! The table of rings: which tag each belongs to.
//!
//! The table is protected by one lock. Drawing does not take it.

use super::{Ring, RingHandle};
use crate::tenancy::Attachment;

/// A tag in any database. The creation number is random: a tag that was dropped and created again is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagKey {
    pub database: u32,
    pub creation: i64,
}

/// The version of a row that was dropped: no row has a higher one.
pub const DROPPED: i64 = i64::MAX;

/// The tag that a ring belongs to.
#[derive(Clone, Copy, Debug)]
pub struct RingTenant {
    pub key: TagKey,
    /// Version of the row that the ranges come from. A change of max_id, stride, residue or upper_bound increments it, except
    /// by a refill.
    pub version: i64,
    pub handle: RingHandle,
    /// When the tenancy began and when its last range was installed, by a clock that never steps.
    pub began_us: i64,
    pub refilled_us: Option<i64>,
}

/// For the holder of the table's lock: a shared reference under the shared lock, an exclusive one under the exclusive
/// lock.
pub struct RingTable<'a> {
    pub rings: &'a [Ring],
    /// One entry for each ring.
    pub tenants: &'a mut [Option<RingTenant>],
}

impl RingTable<'_> {
    pub fn find(&self, key: TagKey) -> Option<(usize, RingTenant)> {
        let at = |(index, tenant): (usize, &Option<RingTenant>)| {
            tenant.filter(|tenant| tenant.key == key).map(|tenant| (index, tenant))
        };
        self.tenants.iter().enumerate().find_map(at)
    }

    /// Finds the ring of a tag. A tag that has none gets a free ring, or that of a tag in `gone`, or the one that was
    /// refilled longest ago. There always is one. If the row has changed since its ranges were taken, a new tenancy
    /// begins. A caller with an older version of the row gets the ring of the newer one.
    pub fn attach(
        &mut self,
        key: TagKey,
        version: i64,
        stride: i64,
        now_us: i64,
        gone: &[TagKey],
    ) -> Attachment<RingHandle> {
        let found = self.find(key);
        if let Some((index, tenant)) = found.filter(|(_, tenant)| tenant.version >= version) {
            return Attachment { index, handle: tenant.handle, is_new: false };
        }
        let index = found.map_or_else(|| self.room(gone), |(index, _)| index);
        self.evict(index);
        let handle = self.rings[index].begin(stride);
        self.tenants[index] = Some(RingTenant { key, version, handle, began_us: now_us, refilled_us: None });
        Attachment { index, handle, is_new: true }
    }

    /// The row of a tag has changed, or is [`DROPPED`]: empties its ring, if it has one. The tag keeps the ring, so
    /// that no session or refill with an older version of the row brings old values back.
    pub fn supersede(&mut self, key: TagKey, version: i64, stride: i64, now_us: i64) -> Option<Attachment<RingHandle>> {
        self.find(key)?;
        Some(self.attach(key, version, stride, now_us, &[]))
    }

    /// True if this tenancy of a ring has not ended.
    pub fn has_tenancy(&self, index: usize, handle: RingHandle) -> bool {
        self.tenants[index].is_some_and(|tenant| tenant.handle == handle)
    }

    /// True if every ring has a tenant.
    pub fn is_full(&self) -> bool {
        self.tenants.iter().all(Option::is_some)
    }

    /// Ends the tenancy of a ring, if it has a tenant, and discards the values that are left.
    pub fn evict(&mut self, index: usize) {
        if let Some(tenant) = self.tenants[index].take() {
            self.rings[index].end(tenant.handle);
        }
    }

    /// The ring for a tag that has none.
    fn room(&self, gone: &[TagKey]) -> usize {
        let rank = |tenant: &Option<RingTenant>| {
            tenant.map(|tenant| (!gone.contains(&tenant.key), tenant.refilled_us.unwrap_or(tenant.began_us)))
        };
        // A free ring ranks as `None`, before every tenant.
        let best = self.tenants.iter().enumerate().min_by_key(|(_, tenant)| rank(tenant));
        best.expect("a table has a ring").0
    }
}
