//! An attempt to grant a lease: what the caller at the head of the queue does, given the rows.

use super::{Availability, FIRST_SHARED, LeaseDefinition, Now, Term};

/// A lease as an attempt finds it.
#[derive(Debug)]
pub struct Lease {
    /// The defaults if the lease is not defined.
    pub definition: LeaseDefinition,
    /// For a shared term, those of slots are enough.
    pub terms: Vec<Term>,
    pub now: Now,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Take the first of these slots that no other session has locked.
    Take {
        slots: Vec<i32>,
        /// There are no others: if all are locked, wait for the first.
        all: bool,
    },
    /// Take a slot that has no row yet.
    Make { slot: i32 },
    /// Begin a shared term.
    Share,
    /// No slot is free. Decide again at this time, or when something changes. `None` if the time is not known.
    Wait { until_us: Option<i64> },
}

impl Lease {
    /// The slots of holders that a definition with so many slots has no room for. Also of expired terms, which their holders may
    /// renew; not of shared ones, nor of holders that an earlier definition has excluded: both are outside of this one too.
    pub fn excluded_by(&self, slots: i32) -> Vec<i32> {
        let is_excluded = |term: &&Term| self.definition.has(term.slot) && term.slot >= slots && term.depth > 0;
        let mut excluded: Vec<i32> = self.terms.iter().filter(is_excluded).map(|term| term.slot).collect();
        excluded.sort_unstable();
        excluded
    }

    pub fn decide(&self, wants_shared: bool) -> Decision {
        // Terms of the other mode exclude this one.
        let others = self.terms.iter().filter(|term| term.is_shared() != wants_shared);
        if let Some(until_us) = self.all_over_at(others) {
            return Decision::Wait { until_us };
        }
        if wants_shared { Decision::Share } else { self.decide_slot() }
    }

    /// Chooses a slot. Slots without a row go first, then the one that has been free longest, so that a slot is reused as late
    /// as possible.
    fn decide_slot(&self) -> Decision {
        let mut free: Vec<(i64, i32)> = Vec::new();
        let mut taken = 0;
        let mut until_us = None;
        for term in &self.terms {
            match self.availability(term) {
                // A slot that only an earlier definition has is not granted again.
                Availability::Since(since_us) if self.definition.has(term.slot) => free.push((since_us, term.slot)),
                Availability::Since(_) => {}
                Availability::From(from_us) => {
                    taken += 1;
                    until_us = Some(until_us.map_or(from_us, |until_us: i64| until_us.min(from_us)));
                }
                Availability::WithSession => taken += 1,
            }
        }
        // Terms in other slots count too, so that there are never more holders than slots.
        if taken >= self.definition.slots {
            return Decision::Wait { until_us };
        }
        if let Some(slot) = self.first_without_row() {
            return Decision::Make { slot };
        }
        free.sort_unstable();
        let all = free.len() == self.definition.slots as usize;
        Decision::Take { slots: free.into_iter().map(|(_, slot)| slot).collect(), all }
    }

    /// The slots whose terms must end before a term begins in `slot`, in ascending order. The caller locks them.
    ///
    /// The holder of an expired term may renew it until the term is taken over. So expired terms count as holders, and the
    /// grant takes over as many as needed to leave no more holders than slots: first those outside the current range, then
    /// those that expired first. And it ends all terms of the other mode, those that were released too: their holders may have
    /// fenced.
    pub fn ends_before(&self, slot: i32) -> Vec<i32> {
        let is_shared = slot >= FIRST_SHARED;
        let other_mode = self.terms.iter().filter(|term| term.is_shared() != is_shared).map(|term| term.slot);
        let surplus = if is_shared { Vec::new() } else { self.surplus_beside(slot) };
        let mut slots: Vec<i32> = surplus.into_iter().chain(other_mode).collect();
        slots.sort_unstable();
        slots
    }

    /// The slots with expired terms for which there is no room beside a new term in `slot`.
    fn surplus_beside(&self, slot: i32) -> Vec<i32> {
        let others = || self.terms.iter().filter(|term| term.slot != slot && !term.is_shared());
        let holders = others().filter(|term| self.has_holder(term)).count();
        let surplus = (holders + 1).saturating_sub(self.definition.slots as usize);
        let expired = others().filter(|term| term.depth > 0).filter_map(|term| match self.availability(term) {
            Availability::Since(since_us) => Some((self.definition.has(term.slot), since_us, term.slot)),
            Availability::From(_) | Availability::WithSession => None,
        });
        let mut expired: Vec<(bool, i64, i32)> = expired.collect();
        expired.sort_unstable();
        expired.into_iter().take(surplus).map(|(_, _, slot)| slot).collect()
    }

    /// True if the next acquirer may attempt a grant before this one, of a slot that has a row, is committed: it finds that
    /// row locked. But it would not count this grant where a slot outside of the range has a holder, or is in the lock delay
    /// after one. There are more free slots then than may be granted.
    pub fn admits_next(&self) -> bool {
        !self.terms.iter().any(|term| !self.definition.has(term.slot) && self.has_holder(term))
    }

    /// True until an expired term is taken over, and during the lock delay after a holder.
    fn has_holder(&self, term: &Term) -> bool {
        term.depth > 0 || !matches!(self.availability(term), Availability::Since(_))
    }

    fn availability(&self, term: &Term) -> Availability {
        term.availability(self.definition.lock_delay_us, self.now)
    }

    /// When none of these terms counts any more, unless something changes: `None` if that is now, `Some(None)` if the time is
    /// not known.
    fn all_over_at<'a>(&self, terms: impl Iterator<Item = &'a Term>) -> Option<Option<i64>> {
        let ends = terms.filter_map(|term| match self.availability(term) {
            Availability::Since(_) => None,
            Availability::From(from_us) => Some(Some(from_us)),
            Availability::WithSession => Some(None),
        });
        ends.reduce(|one, other| Some(one?.max(other?)))
    }

    fn first_without_row(&self) -> Option<i32> {
        let slots = self.terms.iter().map(|term| term.slot).filter(|slot| self.definition.has(*slot));
        let mut known: Vec<i32> = slots.collect();
        known.sort_unstable();
        let gap = (0..).zip(&known).find(|(slot, known)| slot != *known);
        let first = gap.map_or(known.len() as i32, |(slot, _)| slot);
        self.definition.has(first).then_some(first)
    }
}
