//! What holders of leases were granted and have done. The judge knows what has happened, and nothing of how it was decided.

use crate::world::disk::Entry;
use idgen_core::lease::{FIRST_SHARED, LeaseDefinition};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What has happened. Times are true ones. What a transaction has done, it has done with its commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// The call was sent at `since`, and when `sent` events had happened.
    Granted {
        name: usize,
        slot: i32,
        token: i64,
        ttl_us: i64,
        since: Sent,
        bound: Option<u64>,
    },
    Extended {
        token: i64,
        ttl_us: i64,
        deepens: bool,
        since: Sent,
        is_bound: bool,
    },
    /// Released, but less often than acquired.
    Shallower {
        token: i64,
    },
    Released {
        token: i64,
    },
    /// The row was locked at this time.
    Revoked {
        token: i64,
        locked_us: i64,
    },
    Fenced {
        token: i64,
        since: Sent,
    },
    Defined {
        name: usize,
        definition: LeaseDefinition,
    },
    /// The session of a process has ended.
    Ended {
        process: u64,
    },
    /// The server begins to write: by another clock than the rows have, or after a start that has ended all sessions.
    Began {
        is_other_clock: bool,
        is_started: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    pub at_us: i64,
    pub events: usize,
}

struct Event {
    /// `None`: no WAL has it.
    entry: Option<Rc<Entry>>,
    at_us: i64,
    note: Note,
    /// The client knows of it; and synchronous standbys had it before.
    is_told: bool,
    is_synchronous: bool,
}

#[derive(Clone, Debug)]
struct Term {
    name: usize,
    slot: i32,
    ttl_us: i64,
    /// The holder has it until then at least, as it was told for this ttl, and at most.
    until_us: i64,
    until_ttl_us: i64,
    at_most_us: i64,
    /// The server has begun to write by another clock since: each time that it begins, the time counts from there.
    is_carried: bool,
    /// It had expired when another one began, for which there may have been no slot beside all that could be renewed.
    may_have_ended: bool,
    bound: Option<u64>,
    /// The events that have granted it, have ended it, and have begun a term that excludes it.
    granted: usize,
    ended: Option<(usize, bool)>,
    replaced: Option<usize>,
}

impl Term {
    fn is_shared(&self) -> bool {
        self.slot >= FIRST_SHARED
    }

    fn is_over(&self) -> bool {
        self.ended.is_some() || self.replaced.is_some()
    }

    fn is_held(&self, now_us: i64) -> bool {
        !self.is_over() && now_us < self.until_us
    }
}

#[derive(Default)]
pub struct Judge {
    events: Vec<Event>,
    terms: BTreeMap<i64, Term>,
    definitions: BTreeMap<usize, LeaseDefinition>,
    /// How many may hold a lease: after its slots were lowered, those who did.
    may_hold: BTreeMap<usize, usize>,
    /// Tokens that other servers have drawn, and this one does not know; and its earliest clock since.
    lost: Vec<(usize, i64)>,
    earliest_us: i64,
}

const ONE: LeaseDefinition = LeaseDefinition { slots: 1, ttl_us: 0, lock_delay_us: 0 };

impl Judge {
    pub fn sent(&self, at_us: i64) -> Sent {
        Sent { at_us, events: self.events.len() }
    }

    /// Returns the promise that is broken, here and below.
    pub fn happened(&mut self, entry: Option<&Rc<Entry>>, at_us: i64, note: Note) -> Option<String> {
        let broken = self.apply(at_us, &note, self.events.len());
        self.events.push(Event { entry: entry.cloned(), at_us, note, is_told: false, is_synchronous: false });
        broken
    }

    /// The client has been told of this.
    pub fn told(&mut self, notes: &[Note], is_synchronous: bool) {
        for event in self.events.iter_mut().rev().take(50).filter(|event| notes.contains(&event.note)) {
            (event.is_told, event.is_synchronous) = (true, is_synchronous);
        }
    }

    pub fn read_wall_clock(&mut self, wall_us: i64) {
        self.earliest_us = self.earliest_us.min(wall_us);
    }

    fn definition(&self, name: usize) -> LeaseDefinition {
        self.definitions.get(&name).copied().unwrap_or(ONE)
    }

    fn apply(&mut self, at_us: i64, note: &Note, event: usize) -> Option<String> {
        match *note {
            Note::Granted { name, slot, token, ttl_us, since, bound } => {
                let [until_us, at_most_us] = [since.at_us, at_us].map(|us| bound.map_or(us + ttl_us, |_| i64::MAX));
                let (granted, ended, replaced) = (event, None, None);
                let (is_carried, may_have_ended) = (false, false);
                let until_ttl_us = ttl_us;
                let term = Term {
                    name,
                    slot,
                    ttl_us,
                    until_us,
                    until_ttl_us,
                    at_most_us,
                    is_carried,
                    may_have_ended,
                    bound,
                    granted,
                    ended,
                    replaced,
                };
                let broken = self.exceeds_tokens(name, token, since).or_else(|| self.excludes(&term, at_us));
                for (_, other) in self.terms.iter_mut().filter(|(_, other)| other.name == name) {
                    if other.slot == slot || other.is_shared() != term.is_shared() {
                        other.replaced.get_or_insert(event);
                    }
                }
                let slots = self.definition(name).slots as usize;
                self.may_hold.insert(name, slots);
                self.terms.insert(token, term);
                // Also those that rest, and those that were released while the call ran.
                let counts = |term: &&Term| {
                    let is_released = term.ended.is_some_and(|(at, is_revoked)| !is_revoked && at < since.events);
                    term.name == name && term.replaced.is_none() && !is_released
                };
                if self.terms.values().filter(counts).count() > slots {
                    let is_expired = |term: &&mut Term| term.name == name && at_us >= term.until_us;
                    self.terms.values_mut().filter(is_expired).for_each(|term| term.may_have_ended = true);
                }
                broken.or_else(|| self.too_many(name, at_us))
            }
            Note::Extended { token, ttl_us, deepens, since, is_bound } => {
                let term = self.terms.get_mut(&token)?;
                if term.is_over() {
                    return Some(format!("L5: the stale token {token} has been renewed"));
                }
                let keeps = term.bound.is_none() && (deepens || ttl_us >= term.until_ttl_us);
                (term.ttl_us, term.is_carried, term.may_have_ended) = (ttl_us, false, false);
                if !is_bound {
                    if !keeps || since.at_us + ttl_us > term.until_us {
                        (term.until_us, term.until_ttl_us) = (since.at_us + ttl_us, ttl_us);
                    }
                    term.at_most_us = if deepens { term.at_most_us.max(at_us + ttl_us) } else { at_us + ttl_us };
                    term.bound = None;
                }
                let name = term.name;
                self.too_many(name, at_us)
            }
            Note::Released { token } | Note::Revoked { token, .. } => {
                let term = self.terms.get_mut(&token)?;
                if term.is_over() {
                    return Some(format!("L5: the stale token {token} has been released"));
                }
                term.ended = Some((event, matches!(note, Note::Revoked { .. })));
                let ended_us = if let Note::Revoked { locked_us, .. } = *note { locked_us } else { at_us };
                (term.until_us, term.at_most_us, term.is_carried) = (ended_us, ended_us, false);
                None
            }
            Note::Shallower { token } => {
                let is_over = self.terms.get(&token)?.is_over();
                is_over.then(|| format!("L5: the stale token {token} has been released once more"))
            }
            Note::Fenced { token, since } => {
                let term = self.terms.get(&token)?;
                let is_stale = term.replaced.is_some() || term.ended.is_some_and(|(ended, _)| ended < since.events);
                is_stale.then(|| format!("L4: a transaction has committed that was fenced by the stale token {token}"))
            }
            Note::Defined { name, definition } => {
                self.definitions.insert(name, definition);
                let may_hold = self.can_hold(name).max(definition.slots as usize);
                self.may_hold.insert(name, may_hold);
                None
            }
            Note::Ended { process } => {
                for term in self.terms.values_mut().filter(|term| term.bound == Some(process) && !term.is_over()) {
                    term.until_us = term.until_us.min(at_us);
                }
                None
            }
            // A start ends all sessions. A term that was bound to one then has its whole ttl from the start on.
            Note::Began { is_other_clock, is_started } => {
                for term in self.terms.values_mut().filter(|term| term.replaced.is_none()) {
                    term.is_carried |= is_other_clock;
                    let whole_us = if term.ended.is_some() { at_us } else { at_us + term.ttl_us };
                    let is_unbound = term.bound.is_some() && (is_started || is_other_clock);
                    if is_unbound && term.ended.is_none() && !term.may_have_ended {
                        term.until_us = whole_us;
                    } else if is_other_clock && !term.may_have_ended {
                        term.until_us = term.until_us.max(whole_us);
                    }
                    if term.is_carried {
                        term.at_most_us = term.at_most_us.max(whole_us);
                    }
                }
                None
            }
        }
    }

    /// How many could renew a term of a slot.
    fn can_hold(&self, name: usize) -> usize {
        self.terms.values().filter(|term| term.name == name && !term.is_over() && !term.is_shared()).count()
    }

    fn exceeds_tokens(&self, name: usize, token: i64, since: Sent) -> Option<String> {
        let is_above =
            |(other, term): &(&i64, &Term)| term.name == name && **other >= token && term.granted < since.events;
        if let Some((other, _)) = self.terms.iter().find(is_above) {
            return Some(format!("L3: token {token} is granted after {other}"));
        }
        // A server can pass tokens that it does not know by its clock only.
        let is_above = |(of, other): &&(usize, i64)| *of == name && *other >= token && *other <= self.earliest_us;
        let (_, other) = self.lost.iter().find(is_above)?;
        Some(format!("L3: token {token} is granted after {other}, which another server has granted"))
    }

    /// A new term excludes others of its slot, and those of the other mode.
    fn excludes(&self, new: &Term, at_us: i64) -> Option<String> {
        let delay_us = self.definition(new.name).lock_delay_us;
        let is_excluded = |other: &&Term| {
            other.name == new.name
                && other.replaced.is_none()
                && (other.slot == new.slot || other.is_shared() != new.is_shared())
        };
        self.terms.values().filter(is_excluded).find_map(|other| {
            let is_released = other.ended.is_some_and(|(_, is_revoked)| !is_revoked);
            let left_us = other.until_us.saturating_sub(at_us);
            if other.is_held(at_us) {
                Some(format!(
                    "L2: slot {} is granted under a term in {}, {left_us} us before its end",
                    new.slot, other.slot
                ))
            } else if !is_released && !other.may_have_ended && left_us.saturating_add(delay_us) > 0 {
                Some(format!("L2: slot {} is granted within the lock delay after a term in {}", new.slot, other.slot))
            } else {
                None
            }
        })
    }

    fn too_many(&self, name: usize, at_us: i64) -> Option<String> {
        let is_held = |term: &&Term| term.name == name && !term.is_shared() && term.is_held(at_us);
        let (held, may_hold) = (self.terms.values().filter(is_held).count(), *self.may_hold.get(&name).unwrap_or(&1));
        (held > may_hold).then(|| format!("L2: {held} hold a lease that {may_hold} may hold"))
    }

    /// The latest time at which a lease becomes free, if nothing happens until then.
    pub fn free_at_us(&self, name: usize) -> i64 {
        let ends = self.terms.values().filter(|term| term.name == name && term.replaced.is_none());
        ends.map(|term| term.at_most_us).max().unwrap_or(0).saturating_add(self.definition(name).lock_delay_us)
    }

    /// How many hold a lease now, with shared terms or without.
    pub fn held(&self, name: usize, at_us: i64) -> usize {
        self.terms.values().filter(|term| term.name == name && term.is_held(at_us)).count()
    }

    pub fn is_any_held(&self, at_us: i64) -> bool {
        self.terms.values().any(|term| term.is_held(at_us))
    }

    /// The server, or the one that takes its place, goes on with these commits. What a client was told must be among them after
    /// a crash; if standbys had it, after a failover too.
    pub fn set_back(&mut self, kept: &[Rc<Entry>], is_crash: bool, is_synchronous: bool) -> Option<String> {
        let kept: BTreeSet<*const Entry> = kept.iter().map(Rc::as_ptr).collect();
        let events = std::mem::take(&mut self.events);
        let (kept, lost): (Vec<Event>, Vec<Event>) = events
            .into_iter()
            .partition(|event| event.entry.as_ref().is_none_or(|entry| kept.contains(&Rc::as_ptr(entry))));
        let is_durable = |event: &&Event| {
            let is_kept = is_crash || is_synchronous && event.is_synchronous;
            is_kept
                && event.is_told
                && !matches!(event.note, Note::Released { .. } | Note::Shallower { .. } | Note::Fenced { .. })
        };
        let broken = lost.iter().find(is_durable).map(|event| format!("L2: {:?} is lost", event.note));
        if !is_crash {
            self.earliest_us = i64::MAX;
            self.lost.extend(lost.iter().filter_map(|event| match event.note {
                Note::Granted { name, token, .. } => Some((name, token)),
                _ => None,
            }));
        }
        (self.terms, self.definitions, self.may_hold) = Default::default();
        for (index, event) in kept.iter().enumerate() {
            self.apply(event.at_us, &event.note, index);
        }
        self.events = kept;
        // The standbys that are left need not have what the one before had.
        if !is_crash {
            self.events.iter_mut().for_each(|event| event.is_synchronous = false);
        }
        broken
    }
}
