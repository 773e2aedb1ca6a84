//! Leases: which slots of a lease are held until when, and which one a caller may take.
//!
//! A slot has one row for all of its terms, each with a token of its own. Times are microseconds since the machine
//! started, by a clock that never steps. A row may have been written by another clock, before a reboot or a failover.
//! Then only the length of its term is known: the term ends that long after this server began to write.

use std::collections::HashMap;

mod acquiring;
mod attempt;
mod effects;
mod granting;
mod holding;
mod tokens;
mod waiting;

pub use acquiring::{Acquirer, LeaseLock, Patience, Tried, acquire};
pub use attempt::{Decision, Lease};
pub use effects::{Effect, Effects};
pub use granting::{GrantRows, Granted, grant};
pub use holding::{Change, HeldRow, TermRow, extend, fence, release, revoke};
pub use tokens::{TokenSequence, draw};
pub use waiting::{Obstacle, Step, Waiting};

/// The most slots a lease can have.
pub const MAX_SLOTS: i32 = 65_536;

/// The first number for shared terms. Each has a number of its own, above those of slots.
pub const FIRST_SHARED: i32 = MAX_SLOTS;
/// How long the row of an undefined lease is kept after its term: a day.
pub const ABANDONED_AFTER_US: i64 = 86_400_000_000;

/// The clock of leases of a server, as rows name it: the clock of this boot of its machine, for this life of its data. Clones of
/// a machine share its boot. And what is known of a term from before a failover, a restore or a loss of WAL may be older than
/// its last renewal.
pub fn clock_name(boot: &str, life: &str) -> String {
    format!("{boot}/{life}")
}

/// The end of a term that begins or is renewed now.
pub fn end_us(now_us: i64, ttl_us: i64) -> i64 {
    now_us.saturating_add(ttl_us)
}

/// The definition of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDefinition {
    /// They are numbered from 0.
    pub slots: i32,
    pub ttl_us: i64,
    /// How long a slot stays unavailable after its holder vanished: work that the holder started elsewhere may still
    /// take effect.
    pub lock_delay_us: i64,
}

impl LeaseDefinition {
    /// True if the slot may be granted. Other slots have rows from an earlier definition.
    pub fn has(&self, slot: i32) -> bool {
        (0..self.slots).contains(&slot)
    }
}

/// The row of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub slot: i32,
    pub token: i64,
    /// How often acquired and not yet released; 0 if the slot is free.
    pub depth: i32,
    /// The end of the term. For a free slot, the time at which it was freed.
    pub ends_us: i64,
    pub ttl_us: i64,
    /// Freed by force: the holder may not know yet.
    pub revoked: bool,
    /// `ends_us` is by the current clock.
    pub by_this_clock: bool,
    pub session: Session,
}

/// The state of the session that a term is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// The term is not bound to a session.
    None,
    Lives,
    /// The session may have ended before `since_us`, when that was first seen.
    Ended {
        since_us: i64,
    },
    /// The session ended with the server, at a time that its client may not know. The term lasts its full time.
    EndedWithServer,
}

/// The time by this server.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub now_us: i64,
    /// When this server began to write, at its start or promotion. Rows written by another clock are older.
    pub began_us: i64,
}

/// When a slot can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// Now, and since this time.
    Since(i64),
    /// From this time on, if nothing changes.
    From(i64),
    /// When its session ends.
    WithSession,
}

impl Term {
    /// True if its end depends on when this server began to write.
    pub fn counts_from_the_beginning(&self) -> bool {
        !self.by_this_clock || self.session == Session::EndedWithServer
    }

    /// A shared term lets other shared ones be, and excludes all others.
    pub fn is_shared(&self) -> bool {
        self.slot >= FIRST_SHARED
    }

    /// The end of the holder's time, before the lock delay. `None` while the session lives.
    pub fn held_until_us(&self, now: Now) -> Option<i64> {
        let from_the_beginning = now.began_us.saturating_add(self.ttl_us);
        match self.session {
            Session::Lives => None,
            Session::Ended { since_us } => Some(since_us.min(now.now_us)),
            Session::EndedWithServer if self.by_this_clock => Some(self.ends_us.max(from_the_beginning)),
            Session::None if self.by_this_clock => Some(self.ends_us),
            Session::None | Session::EndedWithServer => Some(from_the_beginning),
        }
    }

    pub fn availability(&self, lock_delay_us: i64, now: Now) -> Availability {
        let from_us = if self.depth > 0 {
            match self.held_until_us(now) {
                Some(until_us) => until_us.saturating_add(lock_delay_us),
                None => return Availability::WithSession,
            }
        } else {
            let freed_us = if self.by_this_clock { self.ends_us } else { now.began_us };
            if self.revoked { freed_us.saturating_add(lock_delay_us) } else { freed_us }
        };
        if from_us <= now.now_us { Availability::Since(from_us) } else { Availability::From(from_us) }
    }

    /// True if the term of an undefined lease, or its release, is so long ago that its row can be deleted. A bound term
    /// whose session has ended lasts its ttl after the last renewal: a holder without its session may renew it.
    pub fn is_abandoned(&self, now: Now) -> bool {
        let has_ended = matches!(self.session, Session::Ended { .. });
        let session = if has_ended { Session::None } else { self.session };
        let ended_us = Self { session, ..*self }.held_until_us(now);
        ended_us.is_some_and(|ended_us| ended_us.saturating_add(ABANDONED_AFTER_US) <= now.now_us)
    }

    /// True if the holder still holds the slot. False during the lock delay.
    pub fn is_held(&self, now: Now) -> bool {
        self.depth > 0 && self.held_until_us(now).is_none_or(|until_us| now.now_us < until_us)
    }
}

/// The least time that an ended session is remembered beyond its lock delay, so that a session waiting for the slot
/// finds it.
const KEPT_AFTER_DELAY_US: i64 = 60_000_000;

/// When a session that a lease was bound to was first seen to have ended.
#[derive(Clone, Copy, Debug)]
struct EndedSession {
    /// The key of its lock. Keys are random, and never 0.
    key: i64,
    since_us: i64,
    /// Until then the entry is not replaced.
    needed_until_us: i64,
}

/// When sessions were first seen to have ended, for the lock delay of their slots.
///
/// An entry is kept for the lock delay and as long again, so that a waiting session has time to take the slot. If all
/// entries are needed, an ended session is not recorded, and its lock delay begins when each process sees the end. A lock delay
/// is never shortened.
#[derive(Debug)]
pub struct EndedSessions<const CAPACITY: usize = 256> {
    entries: [EndedSession; CAPACITY],
}

impl<const CAPACITY: usize> EndedSessions<CAPACITY> {
    #[allow(clippy::new_without_default, reason = "made in place, in shared memory")]
    pub fn new() -> Self {
        Self { entries: [EndedSession { key: 0, since_us: 0, needed_until_us: i64::MIN }; CAPACITY] }
    }

    /// Since when the session of a key is known to have ended: since now, if it was not known. Remembers it if its slot
    /// has a lock delay and the caller wants the slot.
    pub fn since_us(&mut self, key: i64, now_us: i64, delay_us: Option<i64>) -> i64 {
        let known = self.entries.iter().find(|ended| ended.key == key).map(|ended| ended.since_us);
        let since_us = known.unwrap_or(now_us);
        let Some(delay_us) = delay_us.filter(|delay_us| *delay_us > 0) else {
            return since_us;
        };
        let mut entries = self.entries.iter_mut();
        let entry = match known {
            Some(_) => entries.find(|ended| ended.key == key),
            None => entries.min_by_key(|ended| ended.needed_until_us).filter(|ended| ended.needed_until_us <= now_us),
        };
        if let Some(entry) = entry {
            let needed_us = delay_us.saturating_add(delay_us.max(KEPT_AFTER_DELAY_US));
            *entry = EndedSession { key, since_us, needed_until_us: since_us.saturating_add(needed_us) };
        }
        since_us
    }
}

/// The same, as one process has seen it. It forgets nothing that its calls go on asking for: a grant may have to wait until the
/// lock delays of more sessions are over than [`EndedSessions`] has entries.
#[derive(Debug, Default)]
pub struct SeenEnded {
    by_key: HashMap<i64, SeenSession>,
    /// How many the last sweep has kept.
    kept: usize,
}

#[derive(Debug)]
struct SeenSession {
    since_us: i64,
    /// Until then it is not forgotten.
    needed_until_us: i64,
}

impl SeenEnded {
    /// As [`EndedSessions::since_us`], whose answer for the same is `shared_us`; without shared memory, that is now.
    pub fn since_us(&mut self, key: i64, now_us: i64, delay_us: Option<i64>, shared_us: i64) -> i64 {
        let since_us = self.by_key.get(&key).map_or(shared_us, |seen| seen.since_us.min(shared_us));
        if let Some(delay_us) = delay_us.filter(|delay_us| *delay_us > 0) {
            let needed_until_us = now_us.saturating_add(delay_us.saturating_add(KEPT_AFTER_DELAY_US));
            self.by_key.insert(key, SeenSession { since_us, needed_until_us });
            if self.by_key.len() > 2 * self.kept {
                self.by_key.retain(|_, seen| seen.needed_until_us > now_us);
                self.kept = self.by_key.len();
            }
        }
        since_us
    }
}

#[cfg(test)]
mod tests;
