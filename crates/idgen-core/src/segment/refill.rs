//! A refill: a worker takes values from the row of a tag, commits durably, and then installs them in the ring.
//!
//! A procedure over a port: each call of the port is an effect on the server, and a crash or another process can come between
//! two of them.

use super::fleet::rows::{TagRows, own_allocation};
use super::tag::{NotLocked, TagRow, next_step};
use super::{NewRange, NoValues, RingTenant, TagKey};
use std::time::Duration;

/// What the workers that fill rings do on their server.
pub trait Filling {
    /// By a clock that never steps.
    fn now_us(&mut self) -> i64;

    /// Works in a transaction and commits it. A failure rolls it back.
    fn transaction<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> Result<R, NoValues>;

    /// The commit of the transaction waits for the disk and for synchronous standbys.
    fn require_durability(&mut self);

    /// The wait of the last commit for a synchronous standby may have been canceled.
    fn was_cancelled(&mut self) -> bool;

    /// Locks a row until the transaction ends, if no other transaction has locked it.
    fn lock(&mut self, creation: i64) -> Result<TagRow, NotLocked>;

    /// Installs values in the ring of their row.
    fn install(&mut self, key: TagKey, new: NewRange);
}

/// What the refill worker does for one ring.
pub trait Refilling: Filling {
    type Rows: TagRows;

    /// In the running transaction.
    fn rows(&mut self) -> &mut Self::Rows;

    fn has_room(&mut self) -> bool;

    /// The ring requests values when this many are left of so many.
    fn low_water(&mut self, count: u64) -> u64;

    /// Writes `max_id` and the step of a row that is locked.
    fn raise(&mut self, row: &TagRow);

    /// The row of this version has no more values.
    fn exhaust(&mut self, version: i64);

    /// Ends the ring, whose sessions look the tag up again.
    fn evict(&mut self);
}

enum Taken {
    Range(NewRange),
    Exhausted {
        version: i64,
    },
    /// There is no such row or table, or the row is older than the ring, or its values come from a coordinator.
    Gone,
}

/// Refills a ring for its tenant with at least as many values as are demanded.
pub fn refill(port: &mut impl Refilling, tenant: &RingTenant, demand: u64) -> Result<(), NoValues> {
    // Until the install, draws can only make more room.
    if !port.has_room() {
        return Ok(());
    }
    match port.transaction(|port| take(port, tenant, demand))?? {
        Taken::Range(NewRange { range, .. }) if port.was_cancelled() => return Err(NoValues::Skipped(range)),
        Taken::Range(new) => port.install(tenant.key, new),
        Taken::Exhausted { version } => port.exhaust(version),
        Taken::Gone => port.evict(),
    }
    Ok(())
}

fn take(port: &mut impl Refilling, tenant: &RingTenant, demand: u64) -> Result<Taken, NoValues> {
    let began_us = port.now_us();
    port.require_durability();
    let mut row = match port.lock(tenant.key.creation) {
        Ok(row) => row,
        Err(NotLocked::Busy) => return Err(NoValues::Busy),
        Err(NotLocked::Gone) => return Ok(Taken::Gone),
    };
    // An older row: the trigger of idgen.segment has announced a change that another trigger prevented. An attached one,
    // whatever the ring says: other servers draw from the values above `max_id`. Sessions attach again, by this row.
    if row.version < tenant.version || row.link.is_attached() {
        return Ok(Taken::Gone);
    }
    let allocation = own_allocation(port.rows(), &row)?;
    let step = step(&row, tenant, port.now_us());
    let version = row.version;
    let Some(range) = allocation.next(demand.max(step as u64)) else {
        return Ok(Taken::Exhausted { version });
    };
    (row.definition.max_id, row.definition.step) = (range.last(), step);
    port.raise(&row);
    let low_water = Some(port.low_water(range.count));
    Ok(Taken::Range(NewRange { range, version, is_attached: false, low_water, turn: None, began_us }))
}

/// How many values to take for a ring, by how long the last ones have lasted.
fn step(row: &TagRow, tenant: &RingTenant, now_us: i64) -> i64 {
    let definition = &row.definition;
    match tenant.refilled_us {
        Some(refilled_us) if row.version == tenant.version => {
            let [lifetime, target] =
                [now_us - refilled_us, definition.target_us].map(|us| Duration::from_micros(us.max(0) as u64));
            next_step(definition.step, lifetime, target, definition.min_step..=definition.max_step)
        }
        // No range was used up yet.
        _ => definition.step,
    }
}
