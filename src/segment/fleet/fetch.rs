//! One request of the supply worker. Asks the coordinator, which commits and confirms what it grants; raises `max_id`
//! here in a transaction of its own; and installs the values. No transaction is open during a wait for the network.
//!
//! A request whose answer does not come, or whose values cannot be recorded, leaves a gap. The next request is for
//! other values.

use super::request::{Caller, Failure, GrantedRange, Origin};
use super::stock::RingStock;
use super::supply_worker::SupplyWorker;
use crate::pg::xact::{self, Durability};
use crate::segment::refill::{self, Grant};
use crate::segment::state::SEGMENTS;
use crate::segment::store::{self, Link, LockedRow, Received};
use idgen_core::segment::tag::{MAX_STEP, TagDefinition};
use std::time::Instant;

impl SupplyWorker {
    /// Reports what this server has received. If the coordinator's tag is another one by now, or was altered, discards the
    /// stock.
    pub fn report(&mut self, creation: i64) -> Result<(), Failure> {
        let Self { contact, name, stocks, read_at, .. } = self;
        let row = &stocks.get(&creation).ok_or(Failure::Gone)?.row;
        let server = row.link.server.ok_or(Failure::Gone)?;
        let (definition, known) = (row.definition, &row.link.source);
        let caller = Caller { tag: &row.tag, server, name, received: definition.max_id };
        let origin = contact.call(|coordinator| coordinator.report(&caller))?;
        if known.as_ref().is_some_and(|known| *known != origin.source) {
            // The row of this stock is an old one after this.
            *read_at = None;
            receive(creation, server, definition.max_id, &origin, definition.step)?;
        }
        Ok(())
    }

    /// Tells the coordinator that a tag was detached.
    pub fn leave(&mut self, creation: i64) -> Result<(), Failure> {
        let Self { contact, name, stocks, read_at, .. } = self;
        let row = &stocks.get(&creation).ok_or(Failure::Gone)?.row;
        let server = row.link.server.ok_or(Failure::Gone)?;
        // Since then, the row may have values of its own.
        let received = row.link.received.ok_or(Failure::Gone)?;
        let caller = Caller { tag: &row.tag, server, name, received };
        contact.call(|coordinator| {
            coordinator.leave_tag(&caller)?;
            coordinator.confirm_segments()
        })?;
        // The row is not listed after this.
        *read_at = None;
        refill::in_transaction(|| store::leave(creation, server)).map_err(Failure::Tag)
    }

    /// Fetches values for a ring.
    pub fn fetch(&mut self, creation: i64, ring: &RingStock) -> Result<(), Failure> {
        let began = Instant::now();
        let (definition, link) = row_of(creation)?;
        let server = link.server.ok_or(Failure::Gone)?;
        let Self { contact, name, stocks, .. } = self;
        let stock = stocks.get_mut(&creation).ok_or(Failure::Gone)?;
        (stock.row.definition, stock.row.link) = (definition, link);
        let turn = begin_turn(ring);
        let count = turn.map_or_else(|| stock.wanted(ring), |(_, wanted)| wanted.min(MAX_STEP as u64));
        if turn.is_some() || count == 0 {
            // A turn brings nothing to the ring, and sessions may have asked since it was read.
            refill::restore_demand();
        }
        if count == 0 {
            return Ok(());
        }
        stock.ask();
        let caller = Caller { tag: &stock.row.tag, server, name, received: definition.max_id };
        let granted = contact.take_values(&caller, count)?;
        let step = (count as i64).clamp(definition.min_step, definition.max_step);
        let GrantedRange { range, origin } = granted;
        let version = receive(creation, server, range.last(), &origin, step)?;
        if refill::was_cancelled() {
            return Err(Failure::Tag(refill::skipped(&range)));
        }
        stock.row.definition.max_id = range.last();
        let low_water = stock.low_water();
        let turn = turn.map(|(number, _)| number);
        refill::install(ring.tenant.key, Grant { range, version, is_attached: true, low_water, turn, began });
        Ok(())
    }
}

/// Begins a turn, if calls have joined it. Returns its number, and how many values they want.
fn begin_turn(ring: &RingStock) -> Option<(u64, u64)> {
    SEGMENTS.exclusive(|segments| {
        let is_same = segments.table.has_tenancy(ring.index, ring.tenant.handle);
        is_same.then(|| segments.turns[ring.index].begin()).flatten()
    })
}

/// The row of a tag as it is now. Nothing is asked for while another transaction holds its lock: the values could not
/// be recorded.
fn row_of(creation: i64) -> Result<(TagDefinition, Link), Failure> {
    let lock = || store::SEGMENT.find().map(|_| store::lock(creation));
    match refill::in_transaction(lock).map_err(Failure::Tag)? {
        Some(LockedRow::Found { definition, link, .. }) if link.is_attached() && link.received.is_none() => {
            Ok((definition, link))
        }
        Some(LockedRow::Busy) => Err(Failure::Tag(refill::BUSY.to_owned())),
        _ => Err(Failure::Gone),
    }
}

/// Records in the row, durably, the last value received and where it comes from. Returns the version of the row.
fn receive(creation: i64, server: i64, last: i64, origin: &Origin, step: i64) -> Result<i64, Failure> {
    let Origin { source, stride, residue } = origin;
    let received = Received { last, source, stride: *stride, residue: *residue, step };
    let record = || {
        xact::require_durability(Durability::Failover);
        store::receive(creation, server, &received)
    };
    refill::in_transaction(record).map_err(Failure::Tag)?.ok_or(Failure::Gone)
}
