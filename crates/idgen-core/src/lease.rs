//! Leases: who holds which slot of a name until when, and who may take one.
//!
//! A slot's row outlives its holders: a term follows a term in it, each under a token of its own. Times are microseconds of
//! a clock that never steps, counted since the machine started. A row that was written by another clock, before a reboot or
//! a failover, says how long its term was to last and not when it ends: it ends that long after this server began to write.

/// The most slots a name can have: as many as the widest worker id of a preset has numbers.
pub const MAX_SLOTS: i32 = 65_536;

/// What is laid down for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    pub first_slot: i32,
    pub slots: i32,
    pub ttl_us: i64,
    /// How long a slot rests whose holder has vanished: what he has begun elsewhere may still have its effect.
    pub lock_delay_us: i64,
}

impl Definition {
    /// True if the slot is in the range that may be granted. Others have rows from an earlier definition.
    pub fn has(&self, slot: i32) -> bool {
        (self.first_slot..self.first_slot.saturating_add(self.slots)).contains(&slot)
    }
}

/// What the row of a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub slot: i32,
    pub token: i64,
    /// How often acquired and not yet released; 0 is free.
    pub depth: i32,
    /// The end of the term; of a free slot, when it was freed.
    pub ends_us: i64,
    pub ttl_us: i64,
    /// Freed by force: the holder may not know yet.
    pub revoked: bool,
    /// `ends_us` is by the clock that runs now.
    pub by_this_clock: bool,
    pub session: Session,
}

/// What has become of the session that a term is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// The term is bound to none.
    None,
    Lives,
    /// Since when that is known; it may have ended before.
    Ended {
        since_us: i64,
    },
    /// It ended with the server, which cannot say when its client noticed: the term lasts its time.
    EndedWithServer,
}

/// The time by this server.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub now_us: i64,
    /// When this server began to write, at its start or its promotion. All that another clock has written is older.
    pub began_us: i64,
}

/// When a slot can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// Now; and has been since then.
    Since(i64),
    /// From then on, if nothing changes.
    From(i64),
    /// When its session ends.
    WithSession,
}

impl Term {
    /// The same term of a holder that is known to have ended, by something other than the clock of leases. A term by
    /// this clock keeps its end: its holder may renew it up to then.
    pub fn of_ended_holder(self) -> Self {
        if self.by_this_clock { self } else { Self { ttl_us: 0, ..self } }
    }

    /// When the term is over: now the time of its holder ends, not yet the rest after it.
    /// `None` as long as the session lives.
    pub fn is_over_at_us(&self, now: Now) -> Option<i64> {
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
            match self.is_over_at_us(now) {
                Some(over_us) => over_us.saturating_add(lock_delay_us),
                None => return Availability::WithSession,
            }
        } else {
            let freed_us = if self.by_this_clock { self.ends_us } else { now.began_us };
            if self.revoked { freed_us.saturating_add(lock_delay_us) } else { freed_us }
        };
        if from_us <= now.now_us { Availability::Since(from_us) } else { Availability::From(from_us) }
    }

    /// Does its holder still hold it? Not while it rests after him.
    pub fn is_held(&self, now: Now) -> bool {
        self.depth > 0 && self.is_over_at_us(now).is_none_or(|over_us| now.now_us < over_us)
    }
}

/// What whoever is at the head of the queue has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Take one of these, the first that nobody has locked.
    Take {
        slots: Vec<i32>,
        /// There are no others: if all are locked, wait for the first.
        all: bool,
    },
    /// Take a slot that nobody has had yet.
    Make { slot: i32 },
    /// Nothing is free. Look again then, or when something happens.
    Wait { until_us: Option<i64> },
}

/// What to do for a slot, given the rows that are there. The first of the `preferred` slots that is free is granted, even
/// if it has no row yet. Otherwise slots without a row go first, then the one that has been free for longest: a worker id,
/// and what others know of it, comes back as late as possible.
pub fn choose(terms: &[Term], definition: &Definition, preferred: &[i32], now: Now) -> Choice {
    let delay_us = definition.lock_delay_us;
    let mut free: Vec<(i64, i32)> = Vec::new();
    let mut taken = 0;
    let mut until_us = None;
    for term in terms {
        match term.availability(delay_us, now) {
            // A slot outside the range, of an earlier definition, is not granted again.
            Availability::Since(since_us) if definition.has(term.slot) => free.push((since_us, term.slot)),
            Availability::Since(_) => {}
            Availability::From(from_us) => {
                taken += 1;
                until_us = Some(until_us.map_or(from_us, |until_us: i64| until_us.min(from_us)));
            }
            Availability::WithSession => taken += 1,
        }
    }
    // Those outside the range count: there are never more holders than slots.
    if taken >= definition.slots {
        return Choice::Wait { until_us };
    }
    let has_row = |slot| terms.iter().any(|term| term.slot == slot);
    let is_free = |slot| free.iter().any(|(_, known)| *known == slot);
    let can_be_made = |slot| definition.has(slot) && !has_row(slot);
    let first_choice = preferred.iter().copied().find(|slot| is_free(*slot) || can_be_made(*slot));
    let to_make = match first_choice {
        Some(slot) => Some(slot).filter(|slot| !has_row(*slot)),
        None => first_without_row(terms, definition),
    };
    if let Some(slot) = to_make {
        return Choice::Make { slot };
    }
    free.sort_unstable_by_key(|(since_us, slot)| (first_choice != Some(*slot), *since_us, *slot));
    let all = free.len() == definition.slots as usize;
    Choice::Take { slots: free.into_iter().map(|(_, slot)| slot).collect(), all }
}

/// The slots whose expired terms have to end before `slot` is granted, in ascending order.
///
/// The holder of an expired term may renew it until somebody takes it over. So expired terms count as holders as well, and
/// the grant takes over as many as it needs to leave no more holders than slots: first those in slots that are outside the
/// range by now, then those that expired first.
pub fn to_end_before(terms: &[Term], definition: &Definition, slot: i32, now: Now) -> Vec<i32> {
    let since = |term: &Term| match term.availability(definition.lock_delay_us, now) {
        Availability::Since(since_us) => Some(since_us),
        Availability::From(_) | Availability::WithSession => None,
    };
    let others = || terms.iter().filter(|term| term.slot != slot);
    let holders = others().filter(|term| term.depth > 0 || since(term).is_none()).count();
    let surplus = (holders + 1).saturating_sub(definition.slots as usize);
    if surplus == 0 {
        return Vec::new();
    }
    let expired = others().filter(|term| term.depth > 0).filter_map(|term| Some((since(term)?, term.slot)));
    let mut expired: Vec<(bool, i64, i32)> =
        expired.map(|(since_us, slot)| (definition.has(slot), since_us, slot)).collect();
    expired.sort_unstable();
    let mut slots: Vec<i32> = expired.into_iter().take(surplus).map(|(_, _, slot)| slot).collect();
    slots.sort_unstable();
    slots
}

/// True if a slot outside the range has a holder, or rests after one. Then the free slots of the range are more than may be
/// granted, and two grants must not happen at the same time.
pub fn has_holders_outside(terms: &[Term], definition: &Definition, now: Now) -> bool {
    let is_free = |term: &Term| {
        term.depth == 0 && matches!(term.availability(definition.lock_delay_us, now), Availability::Since(_))
    };
    terms.iter().any(|term| !definition.has(term.slot) && !is_free(term))
}

fn first_without_row(terms: &[Term], definition: &Definition) -> Option<i32> {
    let mut known: Vec<i32> = terms.iter().map(|term| term.slot).filter(|slot| definition.has(*slot)).collect();
    known.sort_unstable();
    let first = (definition.first_slot..).zip(&known).find(|(slot, known)| slot != *known).map(|(slot, _)| slot);
    let first = first.unwrap_or(definition.first_slot + known.len() as i32);
    definition.has(first).then_some(first)
}

/// How long at least an end is remembered after its slot has rested, so that a session that waits for the slot finds it.
const REST_IS_KNOWN_US: i64 = 60_000_000;

/// When a session was first seen to have ended that a lease was bound to.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The key of its lock. Keys are random, and none is 0.
    key: i64,
    since_us: i64,
    /// Until then it keeps its place.
    needed_until_us: i64,
}

/// When sessions were first seen to have ended, for slots that rest after them.
///
/// An end keeps its place until the slot has rested, and as long again. Without a free place a new end is not remembered, and
/// its rest begins when a look finds one. So no rest is shortened, and none that has a place begins again before a session
/// that wants the slot has had the time to take it.
#[derive(Debug)]
pub struct Ends<const PLACES: usize = 256> {
    entries: [End; PLACES],
}

impl<const PLACES: usize> Ends<PLACES> {
    #[allow(clippy::new_without_default, reason = "made in place, in shared memory")]
    pub fn new() -> Self {
        Self { entries: [End { key: 0, since_us: 0, needed_until_us: i64::MIN }; PLACES] }
    }

    /// Since when the session of a key is known to have ended: from now on, if it was not known. Remembers it if the slot
    /// rests after it, and somebody wants the slot.
    pub fn since_us(&mut self, key: i64, now_us: i64, rest_us: Option<i64>) -> i64 {
        let known = self.entries.iter().find(|end| end.key == key).map(|end| end.since_us);
        let since_us = known.unwrap_or(now_us);
        let Some(rest_us) = rest_us.filter(|rest_us| *rest_us > 0) else {
            return since_us;
        };
        let place = match known {
            Some(_) => self.entries.iter_mut().find(|end| end.key == key),
            None => self
                .entries
                .iter_mut()
                .min_by_key(|end| end.needed_until_us)
                .filter(|end| end.needed_until_us <= now_us),
        };
        if let Some(place) = place {
            let needed_us = rest_us.saturating_add(rest_us.max(REST_IS_KNOWN_US));
            *place = End { key, since_us, needed_until_us: since_us.saturating_add(needed_us) };
        }
        since_us
    }
}

#[cfg(test)]
mod tests;
