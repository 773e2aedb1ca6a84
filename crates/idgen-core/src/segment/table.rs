//! The table of rings: which tag each belongs to. One lock protects it, which draws do not take.

use super::chains::{Chains, TagMap};
use super::turns::Turns;
use super::{NewRange, Ring, RingHandle, ValueRun};
use crate::tenancy::Attachment;

/// A tag in any database. The creation number is random: a tag that was dropped and created again is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagKey {
    pub database: u32,
    pub creation: i64,
}

impl TagKey {
    pub fn hash(self) -> u64 {
        // A database that was made from a template has the creation numbers of that.
        (self.creation as u64 ^ u64::from(self.database)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
    }
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
    /// When its last range was installed, by a clock that never steps.
    pub refilled_us: Option<i64>,
    /// The position of the ring when a tag was looking for room last. The ring has not been used since if it is still there.
    seen: u64,
}

/// For the holder of the table's lock: a shared reference under the shared lock, an exclusive one under the exclusive
/// lock.
pub struct RingTable<'a> {
    pub rings: &'a [Ring],
    /// One entry for each ring.
    pub tenants: &'a mut [Option<RingTenant>],
    /// The tenants by the hash of their keys.
    pub chains: Chains<'a>,
    /// The ring that is looked at next for room.
    pub hand: usize,
    /// How often a tag has lost its ring to another one.
    pub displaced: u64,
    /// What tags have left that have lost their rings to others: a tag that returns goes on there. So one with a single range
    /// loses no values, although there are more tags than rings. Of several ranges, as a fleet has, only the largest is kept.
    pub rests: TagMap<'a, Rest>,
}

/// Values of a tag that has no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The version of the row that they come from.
    version: i64,
    run: ValueRun,
}

impl RingTable<'_> {
    pub fn find(&self, key: TagKey) -> Option<(usize, RingTenant)> {
        let tenant_at = |index: usize| self.tenants[index].filter(|tenant| tenant.key == key);
        let index = self.chains.find(key.hash(), |index| tenant_at(index).is_some())?;
        tenant_at(index).map(|tenant| (index, tenant))
    }

    /// Finds the ring of a tag. A tag that has none gets a free ring, or that of a tag that was dropped or has not drawn for
    /// a while, and goes on with what it had left. There always is one. If the row has changed since its ranges were taken,
    /// a new tenancy begins. A caller with an older version of the row gets the ring of the newer one. `low_water` says
    /// how many of the values that are left request a refill.
    pub fn attach(
        &mut self,
        key: TagKey,
        version: i64,
        stride: i64,
        low_water: impl Fn(u64) -> Option<u64>,
    ) -> Attachment<RingHandle> {
        let found = self.find(key);
        if let Some((index, tenant)) = found.filter(|(_, tenant)| tenant.version >= version) {
            return Attachment { index, handle: tenant.handle, is_new: false };
        }
        let rest = self.rests.take(key).filter(|rest| rest.version == version);
        let index = match found {
            Some((index, _)) => index,
            None => self.room(),
        };
        self.end(index);
        let ring = &self.rings[index];
        let handle = ring.begin(stride);
        // As if it had been used: a call is about to draw.
        let seen = ring.position().wrapping_sub(1);
        self.tenants[index] = Some(RingTenant { key, version, handle, refilled_us: None, seen });
        self.chains.insert(key.hash(), index);
        if let Some(Rest { run: ValueRun { first, count, .. }, .. }) = rest {
            ring.install(handle, first, count, low_water(count));
        }
        Attachment { index, handle, is_new: true }
    }

    /// The row of a tag has changed, or is [`DROPPED`]: empties its ring, if it has one, and discards what it had left. The tag
    /// keeps the ring, so that no session or refill with an older version of the row brings old values back.
    pub fn supersede(&mut self, key: TagKey, version: i64, stride: i64) -> Option<Attachment<RingHandle>> {
        self.rests.take(key);
        self.find(key)?;
        Some(self.attach(key, version, stride, |_| None))
    }

    /// Installs values in the ring of their row, or in a turn. If the row has changed since, the values are skipped: the change
    /// applies from the next value on. False then.
    pub fn install(&mut self, index: usize, key: TagKey, new: &NewRange, turns: &mut Turns, now_us: i64) -> bool {
        let is_same = |tenant: &&mut RingTenant| tenant.key == key && tenant.version == new.version;
        let Some(tenant) = self.tenants[index].as_mut().filter(is_same) else { return false };
        let (ring, range) = (&self.rings[index], new.range);
        match new.turn {
            Some(turn) => {
                ring.pass(range.count);
                turns.bring(turn, range);
            }
            None => ring.install(tenant.handle, range.first, range.count, new.low_water),
        }
        tenant.refilled_us = Some(now_us);
        true
    }

    /// True if this tenancy of a ring has not ended.
    pub fn has_tenancy(&self, index: usize, handle: RingHandle) -> bool {
        self.tenants[index].is_some_and(|tenant| tenant.handle == handle)
    }

    /// Ends all tenancies of a database.
    pub fn forget(&mut self, database: u32) {
        for index in 0..self.tenants.len() {
            if self.tenants[index].is_some_and(|tenant| tenant.key.database == database) {
                self.end(index);
            }
        }
        self.rests.forget(database);
    }

    /// A ring for a tag that has none. What its tenant has left is kept.
    fn room(&mut self) -> usize {
        // In the second round, only draws of this very moment have used a ring since it was seen.
        let seen = (0..2 * self.tenants.len()).find_map(|_| {
            let index = self.advance();
            let Some(tenant) = &mut self.tenants[index] else { return Some(index) };
            let position = self.rings[index].position();
            let is_used = std::mem::replace(&mut tenant.seen, position) != position;
            (!is_used || tenant.version == DROPPED).then_some(index)
        });
        let index = seen.unwrap_or_else(|| self.advance());
        let is_displaced = self.tenants[index].is_some_and(|tenant| tenant.version != DROPPED);
        self.displaced += u64::from(is_displaced);
        if let Some((key, rest)) = self.end(index) {
            self.rests.insert(key, rest);
        }
        index
    }

    fn advance(&mut self) -> usize {
        let index = self.hand;
        self.hand = (index + 1) % self.tenants.len();
        index
    }

    /// Ends the tenancy of a ring, if it has a tenant, whose values are lost unless the caller keeps what this returns.
    pub fn end(&mut self, index: usize) -> Option<(TagKey, Rest)> {
        let RingTenant { key, version, handle, .. } = self.tenants[index].take()?;
        self.chains.remove(key.hash(), index);
        let run = self.rings[index].end(handle)?;
        Some((key, Rest { version, run }))
    }
}
