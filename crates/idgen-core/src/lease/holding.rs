//! Procedures on one term. By its token, a holder extends it, releases it or fences. A definer revokes it.

use super::end_us;

/// The row of a slot or of a shared term, as far as these procedures look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRow {
    pub token: i64,
    pub depth: i32,
    pub ttl_us: i64,
}

/// New values of a row. The others stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The term ends then, by the current clock.
    Extend { depth: i32, ttl_us: i64, ends_us: i64 },
    /// It was released, but less often than acquired.
    Release { depth: i32 },
    /// The term has ended, and is bound to no session.
    Free { since_us: i64, revoked: bool },
}

/// The row of a token, or of the slot that a definer names, in a transaction, which keeps the locks of the row until it ends.
pub trait TermRow {
    /// What the caller learns of the row.
    type Found;
    /// The clock of leases.
    fn now_us(&self) -> i64;
    /// Changes the row, beside transactions that have fenced. Waits for others that have changed it, and then asks for the
    /// change again.
    fn update(&self, change: impl Fn(&HeldRow) -> Option<Change>) -> Option<Self::Found>;
    /// Deletes the row if its term is over and it need not stay, unless another transaction has locked it, for a fence too. Else
    /// as `update`.
    fn delete_or_update(
        &self,
        is_over: impl Fn(&HeldRow) -> bool,
        change: impl Fn(&HeldRow) -> Option<Change>,
    ) -> Option<Self::Found>;
    /// The commit waits for the disk and for synchronous standbys.
    fn survive_failover(&self);
    /// The slot, even if the term has ended.
    fn slot(&self) -> Option<i32>;
    /// True if the transaction has locked the row already.
    fn has_locked(&self) -> bool;
    /// Waits until no take-over has precedence in the slot.
    fn yield_to_take_over(&self, slot: i32);
    /// Shares the row if it is wanted: nobody takes the term over, or deletes the row, until the transaction ends. Waits for
    /// those who are about to. Returns the slot.
    fn share(&self, is_wanted: impl Fn(&HeldRow) -> bool) -> Option<i32>;
}

/// Extends a term to its ttl from now on, or to the ttl given, and acquires it `times` more. `None` if the token has no term. A
/// term that is acquired once more never ends earlier than before, whatever the clock.
pub fn extend<R: TermRow>(row: &R, token: i64, ttl_us: Option<i64>, times: i32) -> Option<R::Found> {
    // Reads the clock once the row is locked: after a wait for another renewal, the end must not move back.
    let extended = |held: &HeldRow| held.is_current(token).then(|| held.extended(row.now_us(), ttl_us, times));
    let found = row.update(extended)?;
    // A failed call requires nothing.
    row.survive_failover();
    Some(found)
}

/// Releases a term once. `None` if the token has no term. The token stays in the row until the next grant, which waits for
/// transactions that have fenced by it. A row that need not stay is deleted unless a transaction has fenced, so that such rows
/// do not accumulate.
pub fn release<R: TermRow>(row: &R, token: i64) -> Option<R::Found> {
    let is_last = |held: &HeldRow| held.is_current(token) && held.depth == 1;
    row.delete_or_update(is_last, |held| held.is_current(token).then(|| held.released(row.now_us())))
}

/// Keeps others from taking the lease over until the transaction ends, after waiting for a take-over that is under way.
/// Returns the slot; `None` if the token has no term.
pub fn fence(row: &impl TermRow, token: i64) -> Option<i32> {
    // A take-over waits for a transaction that has locked the row, which must not wait for it.
    if !row.has_locked() {
        row.yield_to_take_over(row.slot()?);
    }
    row.share(|held| held.is_current(token))
}

/// Revokes the term in a slot, and begins the lock delay when the row is locked. `None` if it has no term. As a renewal, it
/// waits for no fence, and for no grant that has not committed.
pub fn revoke<R: TermRow>(row: &R) -> Option<R::Found> {
    let revoked = |held: &HeldRow| (held.depth > 0).then(|| Change::Free { since_us: row.now_us(), revoked: true });
    let found = row.update(revoked)?;
    // A crash must not restore the term.
    row.survive_failover();
    Some(found)
}

impl HeldRow {
    /// True if the row has the term of this token.
    pub fn is_current(&self, token: i64) -> bool {
        self.token == token && self.depth > 0
    }

    fn extended(&self, now_us: i64, ttl_us: Option<i64>, times: i32) -> Change {
        let mut ttl_us = ttl_us.unwrap_or(self.ttl_us);
        if times > 0 {
            // Its present end is no further away than its ttl; by another clock, that counts from the start of the server.
            ttl_us = ttl_us.max(self.ttl_us);
        }
        Change::Extend { depth: self.depth + times, ttl_us, ends_us: end_us(now_us, ttl_us) }
    }

    fn released(&self, now_us: i64) -> Change {
        match self.depth {
            1 => Change::Free { since_us: now_us, revoked: false },
            depth => Change::Release { depth: depth - 1 },
        }
    }
}
