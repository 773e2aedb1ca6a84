//! What an attempt does to the rows of a lease: it ends the terms that must end, begins a new one, or finds what is in the way.

use super::{Decision, FIRST_SHARED, Lease, Obstacle};

/// The rows of a lease as an attempt has read them, in a transaction. A row that was locked stays so until the transaction
/// ends.
pub trait GrantRows {
    /// A term that begins when the transaction commits.
    type Term;
    /// What runs after the grant in its transaction must see what the last holder has written. Raises if it may not, after the
    /// end of these terms and of the one in the slot.
    fn refuse_older_snapshot(&mut self, slot: i32, ends: &[i32]);
    /// Undoes the work, with its locks, unless it returns something.
    fn undo_unless_begun<T>(&mut self, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T>;
    /// Frees the slot from now on, if it has a term. `None` if the row has changed since it was read, or others have locked it
    /// in whichever way.
    fn free(&mut self, slot: i32) -> Option<()>;
    /// Deletes the row; `None` as above.
    fn delete(&mut self, slot: i32) -> Option<()>;
    /// Begins a term in a slot that has a row; `None` as above. The token is drawn once the row is locked.
    fn take(&mut self, slot: i32) -> Option<Self::Term>;
    /// Begins a term in a new row. `None` if another transaction has inserted it.
    fn insert(&mut self, slot: i32) -> Option<Self::Term>;
    /// Lets acquirers of slots wait until this transaction has ended: until then, they do not see the shared term that it
    /// begins.
    fn announce_shared_grant(&mut self);
    /// A random number for a shared term.
    fn shared_number(&mut self) -> i32;
    /// True if another transaction has locked the row now.
    fn is_locked(&mut self, slot: i32) -> bool;
}

/// A grant of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<T> {
    pub term: T,
    /// The next acquirer need not wait for the commit.
    pub admits_next: bool,
}

/// Begins a term. `None` if it depends on shared terms that are not committed, and they may not be over.
pub fn grant<R: GrantRows>(
    rows: &mut R,
    lease: &Lease,
    wants_shared: bool,
    are_shared_over: bool,
) -> Option<Result<Granted<R::Term>, Obstacle>> {
    let (granted, needed, has_other_terms) = match lease.decide(wants_shared) {
        // Also a wait: in the lock manager, two transactions that share a lease and both want to write are a deadlock.
        Decision::Make { .. } | Decision::Wait { .. } if !are_shared_over && !wants_shared => return None,
        Decision::Wait { until_us } => return Some(Err(Obstacle::NoSlot { until_us })),
        Decision::Take { slots, all } => {
            let take = |slot: &i32| after_ends(rows, lease, *slot, |rows| rows.take(*slot));
            // The next acquirer finds the row locked.
            let granted = slots.iter().find_map(take).map(|term| Granted { term, admits_next: lease.admits_next() });
            (granted, [lease.ends_before(slots[0]), vec![slots[0]]].concat(), !all)
        }
        Decision::Make { slot } => {
            // Until the transaction ends, others do not see the row, and would insert it.
            let granted = after_ends(rows, lease, slot, |rows| rows.insert(slot));
            let granted = granted.map(|term| Granted { term, admits_next: false });
            (granted, lease.ends_before(slot), lease.definition.slots > 1)
        }
        Decision::Share => {
            let begin = |rows: &mut R| {
                rows.announce_shared_grant();
                // Transactions that begin shared terms at the same time do not see each other's rows.
                let number = rows.shared_number();
                rows.insert(number)
            };
            let granted = after_ends(rows, lease, FIRST_SHARED, begin);
            (granted.map(|term| Granted { term, admits_next: true }), lease.ends_before(FIRST_SHARED), false)
        }
    };
    Some(granted.ok_or_else(|| obstacle(rows, needed, has_other_terms)))
}

/// Begins a term in a slot after the terms have ended that must end before it. If one of them does not end, or no term begins,
/// everything is undone.
fn after_ends<R: GrantRows>(
    rows: &mut R,
    lease: &Lease,
    slot: i32,
    begin: impl FnOnce(&mut R) -> Option<R::Term>,
) -> Option<R::Term> {
    let ends = lease.ends_before(slot);
    rows.refuse_older_snapshot(slot, &ends);
    if ends.is_empty() {
        return begin(rows);
    }
    rows.undo_unless_begun(|rows| {
        // The slots are free without a lock delay. The rows of the other mode go: an acquirer of that mode begins after all of
        // them.
        let end = |ended: &i32| match (*ended >= FIRST_SHARED) == (slot >= FIRST_SHARED) {
            true => rows.free(*ended),
            false => rows.delete(*ended),
        };
        ends.iter().try_for_each(end).and_then(|()| begin(rows))
    })
}

/// Which of these rows are locked now. One that is not has had its term renewed, or was released.
fn obstacle(rows: &mut impl GrantRows, mut slots: Vec<i32>, has_other_terms: bool) -> Obstacle {
    slots.retain(|slot| rows.is_locked(*slot));
    match slots.is_empty() {
        true => Obstacle::Changed,
        false => Obstacle::Locked { slots, has_other_terms },
    }
}
