//! What a transaction has done with leases: which terms it has locked, and by which leases it has fenced.
//!
//! Each answer is a look-up, however much the transaction has done. An effect that changes no answer is not recorded. An
//! equal one came earlier, so it lasts at least as long: savepoints undo the latest effects first.

use std::collections::HashMap;

/// The effects of a transaction, without those that a savepoint has undone.
#[derive(Debug, Default)]
pub struct Effects {
    terms: HashMap<i64, TermEffects>,
    /// How many terms of a lease the transaction has fenced by and not released.
    fences: HashMap<String, FenceCounts>,
}

/// Never both 0.
#[derive(Debug, Default)]
struct FenceCounts {
    exclusive: usize,
    shared: usize,
}

impl FenceCounts {
    fn of(&mut self, fence: &Fence) -> &mut usize {
        if fence.is_shared { &mut self.shared } else { &mut self.exclusive }
    }
}

/// A lease that a transaction has fenced by, with the mode of the term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub name: String,
    pub is_shared: bool,
}

/// The effects on the term of a token.
#[derive(Debug, Default)]
struct TermEffects {
    is_locked: bool,
    is_released: bool,
    /// The leases that it fences by: one, or more if the term was moved to another lease.
    fences: Vec<Fence>,
}

/// An effect that was recorded, as needed to undo it.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// The row of the term is locked against take-overs.
    Fenced { fence: Fence, token: i64 },
    /// The row is locked otherwise: the term has begun or was extended.
    Locked { token: i64 },
    /// The token no longer fences by these leases. A term that is bound to the session gives up its lock when this commits.
    Released { token: i64, fences: Vec<Fence>, is_first: bool },
    /// The session has acquired the lock of a new term. A rollback removes the term, and must release the lock. It is no answer.
    Bound { token: i64 },
}

impl Effects {
    pub fn fence(&mut self, name: &str, token: i64, is_shared: bool) -> Option<Effect> {
        let term = self.terms.entry(token).or_default();
        if term.fences.iter().any(|fence| fence.name == name) {
            return None;
        }
        let fence = Fence { name: name.to_owned(), is_shared };
        term.fences.push(fence.clone());
        self.count_fence(&fence);
        Some(Effect::Fenced { fence, token })
    }

    fn count_fence(&mut self, fence: &Fence) {
        *self.fences.entry(fence.name.clone()).or_default().of(fence) += 1;
    }

    pub fn lock(&mut self, token: i64) -> Option<Effect> {
        let term = self.terms.entry(token).or_default();
        let is_first = !std::mem::replace(&mut term.is_locked, true);
        is_first.then_some(Effect::Locked { token })
    }

    pub fn release(&mut self, token: i64) -> Option<Effect> {
        let term = self.terms.entry(token).or_default();
        let is_first = !std::mem::replace(&mut term.is_released, true);
        let fences = std::mem::take(&mut term.fences);
        fences.iter().for_each(|fence| self.forget_fence(fence));
        (is_first || !fences.is_empty()).then_some(Effect::Released { token, fences, is_first })
    }

    /// Undoes the last effect that was recorded and not undone.
    pub fn undo(&mut self, effect: &Effect) {
        let token = match effect {
            Effect::Fenced { token, .. }
            | Effect::Locked { token }
            | Effect::Released { token, .. }
            | Effect::Bound { token } => *token,
        };
        let term = self.terms.entry(token).or_default();
        match effect {
            Effect::Fenced { fence, .. } => {
                term.fences.retain(|fenced| fenced != fence);
                self.forget_fence(fence);
            }
            Effect::Locked { .. } => term.is_locked = false,
            Effect::Bound { .. } => {}
            Effect::Released { fences, is_first, .. } => {
                term.is_released = !is_first;
                term.fences.clone_from(fences);
                fences.iter().for_each(|fence| self.count_fence(fence));
            }
        }
        if self.terms.get(&token).is_some_and(TermEffects::is_none) {
            self.terms.remove(&token);
        }
    }

    fn forget_fence(&mut self, fence: &Fence) {
        if let Some(counts) = self.fences.get_mut(&fence.name) {
            *counts.of(fence) -= 1;
            if counts.exclusive + counts.shared == 0 {
                self.fences.remove(&fence.name);
            }
        }
    }

    /// True if the transaction holds a lock on the row of this token's term, so that a take-over waits for its end.
    pub fn has_locked(&self, token: i64) -> bool {
        self.terms.contains_key(&token)
    }

    /// True if the transaction has fenced by a term of the lease, an exclusive one unless shared ones are accepted, and has
    /// not released the token since.
    pub fn has_fenced(&self, name: &str, accepts_shared: bool) -> bool {
        self.fences.get(name).is_some_and(|counts| accepts_shared || counts.exclusive > 0)
    }
}

impl TermEffects {
    fn is_none(&self) -> bool {
        !self.is_locked && !self.is_released && self.fences.is_empty()
    }
}
