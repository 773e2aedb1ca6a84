//! What the holder of a worker id does at the coordinator: it renews the end of its rectangle, confirms the rectangle, and
//! releases the worker id.

use super::recording::{self, HistoryStore};
use super::{Rectangle, Refusal};
use crate::history::History;

/// The rows that a holder reads and writes, within a transaction.
pub trait HeldRows: HistoryStore {
    /// The worker id of a token. `None` if the token is not current; one of an earlier epoch is not.
    fn held(&mut self, pool: &str, token: i64, lock: Lock) -> Option<Held>;
    /// Compares the row with what was read, and sets the end of the rectangle. False if the row has changed.
    fn extend(&mut self, pool: &str, token: i64, held: &Held, not_after_us: i64) -> bool;
    /// Waits until the synchronous standbys have all that is committed.
    fn wait_for_standbys(&mut self);
    fn release(&mut self, pool: &str, worker_id: i32, used_until_us: i64);
}

/// What stays locked after a row was read, until the transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    Nothing,
    Tables,
    Row,
}

/// A worker id with a current token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub worker_id: i32,
    pub rectangle: Rectangle,
    pub acquired_us: i64,
    pub ttl_us: i64,
    /// As it was read with the row.
    pub history: Option<History>,
    /// The running transaction has granted or renewed it.
    pub is_uncommitted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The end of the rectangle.
    Until(i64),
    /// All tokens have ended. The end that the caller was last told stays valid. The next call raises that the token is not
    /// current: an error here would undo the end.
    Ended { has_lost_grants: bool },
}

/// Extends the end of a rectangle that is `last_us`, the end that the caller was last told. Of two processes with one token,
/// the second one is refused. If the history turns out to be interrupted, all tokens end. So they do for a holder from before
/// the start of this server that was told a later end than the recorded one: this database was set back.
pub fn renew(
    rows: &mut impl HeldRows,
    pool: &str,
    token: i64,
    last_us: i64,
    reached_us: Option<i64>,
) -> Result<Renewal, Refusal> {
    loop {
        let held = rows.held(pool, token, Lock::Tables).ok_or(Refusal::Stale { token })?;
        if is_interrupted(rows, &held)? {
            recording::for_grant(rows, 0)?;
            return Ok(Renewal::Ended { has_lost_grants: false });
        }
        let knows_later_end = last_us > held.rectangle.not_after_us;
        if knows_later_end && recording::note_lost_grants(rows, held.history.as_ref(), held.acquired_us) {
            return Ok(Renewal::Ended { has_lost_grants: true });
        }
        held.require_end(last_us)?;
        // The end that the history allows.
        let history = match &held.history {
            Some(history) if recording::is_sufficient(rows, history, held.ttl_us)? => history.clone(),
            _ => {
                rows.held(pool, token, Lock::Row).ok_or(Refusal::Stale { token })?;
                recording::for_grant(rows, held.ttl_us)?
            }
        };
        let bounds = recording::bounds(rows, &history, held.ttl_us);
        let reached_us = reached_us.unwrap_or(bounds.now_us);
        let not_after_us = held.rectangle.renewed(reached_us, bounds.ttl_us, &bounds).not_after_us;
        if rows.extend(pool, token, &held, not_after_us) {
            return Ok(Renewal::Until(not_after_us));
        }
        // It was renewed, moved or ended just now.
    }
}

/// Waits until the synchronous standbys have the rectangle of a token, and returns its end.
pub fn confirm(rows: &mut impl HeldRows, pool: &str, token: i64) -> Result<i64, Refusal> {
    // Hold no table lock while waiting: a queued ALTER TABLE would block renewals.
    let held = rows.held(pool, token, Lock::Nothing).ok_or(Refusal::Stale { token })?;
    if is_interrupted(rows, &held)? {
        return Err(Refusal::Stale { token });
    }
    if held.is_uncommitted {
        return Err(Refusal::Uncommitted { worker_id: held.worker_id });
    }
    // The rectangle that was read is committed, and so flushed: its commits are durable.
    rows.wait_for_standbys();
    Ok(held.rectangle.not_after_us)
}

/// Releases a worker id. `last_us` is the last time in the caller's ids: the next holder begins after it; `None`: after the
/// end of the rectangle. `last_not_after_us` is the end that the caller was last told; `None` compares nothing: another
/// process with the token may have used later times.
pub fn release(
    rows: &mut impl HeldRows,
    pool: &str,
    token: i64,
    last_us: Option<i64>,
    last_not_after_us: Option<i64>,
) -> Result<(), Refusal> {
    // Until the transaction ends, so no renewal is running.
    let held = rows.held(pool, token, Lock::Row).ok_or(Refusal::Stale { token })?;
    last_not_after_us.map_or(Ok(()), |end_us| held.require_end(end_us))?;
    rows.release(pool, held.worker_id, held.rectangle.used_until_us(last_us));
    Ok(())
}

impl Held {
    /// Refuses unless the rectangle ends where the caller was last told: another process has the token and renewed it.
    fn require_end(&self, last_us: i64) -> Result<(), Refusal> {
        let (worker_id, not_after_us) = (self.worker_id, self.rectangle.not_after_us);
        if not_after_us == last_us {
            Ok(())
        } else {
            Err(Refusal::RenewedByAnother { worker_id, last_us, not_after_us })
        }
    }
}

fn is_interrupted(rows: &impl HeldRows, held: &Held) -> Result<bool, Refusal> {
    held.history.as_ref().map_or(Ok(false), |history| recording::is_own(rows, history).map(|is_own| !is_own))
}
