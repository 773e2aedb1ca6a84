//! How a call acquires leases: it waits in a queue, then at its head for a slot, and begins a term of each lease, or none.

use super::{Granted, Obstacle, Step, Waiting};

/// A call that acquires a term of each of several leases, which it counts in the order of their keys. It runs in a transaction,
/// and its time is limited.
pub trait Acquirer {
    /// A term that begins when the transaction commits.
    type Term;
    fn leases(&self) -> usize;
    /// Waits for a lock, or not at all, as the patience says. False if it is not acquired.
    fn lock(&mut self, at: usize, lock: LeaseLock, patience: Patience) -> bool;
    fn unlock(&mut self, at: usize, lock: LeaseLock);
    /// The head of the queue may be waiting for this transaction, so the call acquires no lock, and waits for nobody.
    fn bypasses(&self, at: usize) -> bool;
    /// Reads the definition: whether the lease has one, or `None` if the time has passed.
    fn is_defined(&mut self, at: usize, patience: Patience) -> Option<bool>;
    fn wants_shared(&self) -> bool;
    /// Reads the rows and grants, as `grant` does. The outer `None`: the time has passed.
    fn grant(&mut self, at: usize, are_shared_over: bool, patience: Patience) -> Option<Tried<Self::Term>>;
    /// The clock of leases.
    fn now_us(&self) -> i64;
    /// How often something has changed, for a sleep.
    fn changes(&self, at: usize) -> u64;
    /// Sleeps until something changes, the time comes, or that of the call has passed. Returns at once if something has
    /// changed since. False if the time of the call has passed.
    fn sleep(&mut self, at: usize, changes: u64, until_us: Option<i64>) -> bool;
    /// Takes precedence over fences in these slots, and gives it up in others. False if the time has passed.
    fn precede(&mut self, at: usize, slots: &[i32]) -> bool;
    /// Waits for transactions that have locked these rows.
    fn wait_for_rows(&mut self, at: usize, slots: &[i32]);
    /// Undoes the work, with its locks, unless it returns something.
    fn undo_unless_granted<T>(&mut self, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T>;
}

/// What `grant` returns.
pub type Tried<T> = Option<Result<Granted<T>, Obstacle>>;

/// A lock of a lease. The end of the transaction releases it, if nothing has before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseLock {
    /// Of the head of the queue.
    Queue,
    /// Keeps changes of the definition out, and is shared with other acquirers.
    Definition,
    /// Transactions that have begun shared terms share it. Nobody else holds it for longer than it takes to wait for them.
    SharedGrants,
}

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until its time has passed.
    OfTheCall,
    None,
}

/// What has become of an attempt.
enum Outcome<T> {
    Granted(Vec<Granted<T>>),
    NotGranted(Obstacle),
    TimedOut,
    /// The call has to wait for the lease of this index, in its queue.
    Elsewhere(usize),
}

/// Acquires a term of each lease, or none if the time of the call passes.
///
/// A call waits in one queue only, and without a lock on a row: the others can acquire what it does not get yet, and no two
/// calls wait for each other. It can be overtaken, because it keeps no place in a queue that it has left.
pub fn acquire<A: Acquirer>(call: &mut A) -> Option<Vec<A::Term>> {
    let mut at = 0;
    let granted = loop {
        if !enter(call, at, Patience::OfTheCall) {
            return None;
        }
        match wait_at_head(call, at) {
            Outcome::Granted(granted) => break granted,
            outcome => {
                leave(call, at);
                let Outcome::Elsewhere(other) = outcome else { return None };
                at = other;
            }
        }
    };
    // Only here, where nothing is undone any more. And a lock is released by the owner of where it was acquired.
    let admitting = granted.iter().enumerate().filter(|(_, granted)| granted.admits_next);
    admitting.for_each(|(at, _)| leave(call, at));
    Some(granted.into_iter().map(|granted| granted.term).collect())
}

/// Becomes the head of the queue of a lease, unless the call bypasses it. False if it does not.
fn enter(call: &mut impl Acquirer, at: usize, patience: Patience) -> bool {
    call.bypasses(at) || call.lock(at, LeaseLock::Queue, patience)
}

fn leave(call: &mut impl Acquirer, at: usize) {
    if !call.bypasses(at) {
        call.unlock(at, LeaseLock::Queue);
    }
}

/// Attempts the grants whenever a slot of the lease may have become free at the head of whose queue the call is.
fn wait_at_head<A: Acquirer>(call: &mut A, at: usize) -> Outcome<A::Term> {
    let mut waiting = Waiting::default();
    let outcome = loop {
        let changes = call.changes(at);
        let obstacle = match attempt_all(call, at) {
            Outcome::NotGranted(obstacle) => obstacle,
            outcome => break outcome,
        };
        let until_us = match waiting.after(obstacle, call.now_us()) {
            Step::Attempt => Some(0),
            Step::Sleep { until_us } => {
                call.precede(at, &[]);
                until_us
            }
            Step::Precede { slots, then_sleep } => match call.precede(at, &slots) {
                true if then_sleep => None,
                precedes => {
                    if precedes {
                        call.wait_for_rows(at, &slots);
                    }
                    Some(0)
                }
            },
        };
        if !call.sleep(at, changes, until_us) {
            break Outcome::TimedOut;
        }
    };
    call.precede(at, &[]);
    outcome
}

/// Attempts all grants, at the head of the queue of one lease.
fn attempt_all<A: Acquirer>(call: &mut A, at: usize) -> Outcome<A::Term> {
    if call.leases() == 1 {
        return attempt(call, at, Patience::OfTheCall);
    }
    // Waits with nothing else locked, until this one could be granted.
    let mut outcome = Outcome::TimedOut;
    call.undo_unless_granted(|call| {
        outcome = attempt(call, at, Patience::OfTheCall);
        None::<()>
    });
    if !matches!(outcome, Outcome::Granted(_)) {
        return outcome;
    }
    outcome = Outcome::NotGranted(Obstacle::Changed);
    let granted = call.undo_unless_granted(|call| {
        let mut granted = Vec::new();
        for index in 0..call.leases() {
            let is_head = index == at || enter(call, index, Patience::None);
            match is_head.then(|| attempt(call, index, Patience::None)) {
                Some(Outcome::Granted(one)) => granted.extend(one),
                _ if index == at => return None,
                _ => {
                    outcome = Outcome::Elsewhere(index);
                    return None;
                }
            }
        }
        Some(granted)
    });
    granted.map_or(outcome, Outcome::Granted)
}

/// Attempts a grant at the head of the queue. Waits for a transaction that changes the definition.
fn attempt<A: Acquirer>(call: &mut A, at: usize, patience: Patience) -> Outcome<A::Term> {
    // Not until the transaction ends: a change of the definition finds the row of a grant, and waits for its transaction.
    let bypasses = call.bypasses(at);
    if !bypasses && !call.lock(at, LeaseLock::Definition, patience) {
        return Outcome::TimedOut;
    }
    let outcome = attempt_within_definition(call, at, patience);
    if !bypasses {
        call.unlock(at, LeaseLock::Definition);
    }
    match outcome {
        Some(Ok(granted)) => Outcome::Granted(vec![granted]),
        Some(Err(obstacle)) => Outcome::NotGranted(obstacle),
        None => Outcome::TimedOut,
    }
}

/// `None` if the time has passed.
fn attempt_within_definition<A: Acquirer>(
    call: &mut A,
    at: usize,
    patience: Patience,
) -> Option<Result<Granted<A::Term>, Obstacle>> {
    let is_defined = call.is_defined(at, patience)?;
    let wants_shared = call.wants_shared();
    // Shared terms that are not committed do not matter for another one, nor for a slot that has a row: such a term begins only
    // when its transaction has deleted the row, which is locked then. A lease that is defined has one from its first grant on.
    if (wants_shared || is_defined)
        && let Some(tried) = call.grant(at, false, patience)?
    {
        return Some(tried);
    }
    if !call.bypasses(at) {
        if !call.lock(at, LeaseLock::SharedGrants, patience) {
            return None;
        }
        call.unlock(at, LeaseLock::SharedGrants);
    }
    call.grant(at, true, patience)?
}
