//! Choosing among a few slots of a lease without the rows of the others.

use super::{Availability, LeaseDefinition, Now, Term};

/// A slot that can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSlot {
    pub slot: i32,
    /// False for a slot that was never granted.
    pub has_row: bool,
}

/// Those of the candidates that can be granted, in the same order. `terms` are the rows of the candidates.
///
/// All rows of the lease must be in its range. Then there are never more holders than slots, so a free slot can be granted
/// whatever the other rows say, and ends no other term: [`choose`](super::choose) with all rows would grant it, too.
pub fn grantable(candidates: &[i32], terms: &[Term], definition: &LeaseDefinition, now: Now) -> Vec<FreeSlot> {
    let free = |slot: i32| {
        let term = terms.iter().find(|term| term.slot == slot);
        let is_free =
            term.is_none_or(|term| matches!(term.availability(definition.lock_delay_us, now), Availability::Since(_)));
        (is_free && definition.has(slot)).then_some(FreeSlot { slot, has_row: term.is_some() })
    };
    candidates.iter().filter_map(|slot| free(*slot)).collect()
}

/// How many slots are tried for one that was never granted.
const SPREAD: i32 = 16;

/// Slots at even distances over the range, in ascending order: all of a small range. `offset` moves them, so that repeated
/// attempts with different ones try every slot.
pub fn spread(definition: &LeaseDefinition, offset: u32) -> Vec<i32> {
    let slots = i64::from(definition.slots);
    let count = i64::from(SPREAD.min(definition.slots));
    let nth = |n: i64| (n * slots / count + i64::from(offset)) % slots;
    let mut spread: Vec<i32> = (0..count).map(|n| definition.first_slot + nth(n) as i32).collect();
    spread.sort_unstable();
    spread
}
