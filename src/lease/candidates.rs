//! Acquiring one of a few slots that the caller takes for free, without reading the rows of all others.

use super::attempt::{AcquireRequest, Attempt, Outcome, begun, corrected};
use super::queue::Queue;
use super::store::LeaseState;
use super::store::slots::{self, Defined};
use crate::pg::{session, xact};
use idgen_core::lease::candidates::{FreeSlot, grantable, spread};
use std::collections::HashSet;

/// Slots that are probably free, the best first.
#[derive(Default)]
pub struct Candidates {
    pub slots: Vec<i32>,
    /// As of `SlotPreference::ended`, among these slots.
    pub ended: HashSet<i32>,
    /// Grant one of them only if it has no row.
    pub only_unused: bool,
}

/// Slots that have no row, or may have none.
pub struct Unused {
    /// The slot above all that have rows.
    pub above: Option<i32>,
    /// Slots all over the range. A request for a certain slot may have left out the slots below it.
    pub spread: Vec<i32>,
}

/// Attempts to grant a candidate of the caller, batch after batch. `None` if all rows must be read: the caller knows no
/// candidates, none of them is free, or an earlier definition has left rows outside of the range.
pub fn attempt(request: &AcquireRequest, queue: &Queue) -> Option<Outcome> {
    let preference = request.preference?;
    // As for a read of all rows, hold no table lock afterwards.
    let (Defined { definition, definer }, range) =
        xact::rolled_back(|| slots::defined(request.name).zip(Some(slots::range(request.name))))?;
    if range.is_some_and(|(lowest, highest)| !definition.has(lowest) || !definition.has(highest)) {
        return None;
    }
    let above = range.map_or(definition.first_slot, |(_, highest)| highest + 1);
    let unused = Unused {
        above: Some(above).filter(|slot| definition.has(*slot)),
        spread: spread(&definition, session::random_i64() as u32),
    };
    let mut batches = preference.candidates(unused);
    loop {
        let batch = xact::rolled_back(|| {
            let Candidates { slots, ended, only_unused } = batches.next()?;
            let terms = slots::terms(request.name, &slots, definition.lock_delay_us);
            let terms = terms.into_iter().map(|term| corrected(term, &ended)).collect();
            Some((slots, ended, only_unused, LeaseState { definition, definer: Some(definer), terms }))
        });
        let (slots, ended, only_unused, lease) = batch?;
        let now = lease.now();
        let mut free = grantable(&slots, &lease.terms, &definition, now);
        free.retain(|free| !(only_unused && free.has_row));
        let attempt = Attempt { ttl_us: request.ttl_us.unwrap_or(definition.ttl_us), request, lease, ended, now };
        if let Some(outcome) = free.into_iter().find_map(|free| attempt.grant(free, queue)) {
            return Some(outcome);
        }
    }
}

impl Attempt<'_> {
    /// `None` if the slot's row is locked, or the slot is no longer free.
    fn grant(&self, free: FreeSlot, queue: &Queue) -> Option<Outcome> {
        if !free.has_row {
            return Some(self.insert(free.slot));
        }
        let granted = xact::in_subtransaction(|| self.take(free.slot)).unwrap_or_else(|cause| cause.rethrow())?;
        // The next acquirer finds the row locked.
        queue.leave();
        Some(begun(self.request, granted, self.lease.definition.lock_delay_us))
    }
}
