//! What holders of worker ids were granted and have used. The judge knows what has happened, and nothing of how it was decided.

use crate::world::disk::Entry;
use idgen_core::worker::Rectangle;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a transaction of the coordinator has done, once it commits.
#[derive(Clone, Debug)]
pub enum Note {
    /// By a coordinator with this clock, whose rectangles end at most `longest_us` ahead of the earliest start.
    Granted {
        worker_id: i32,
        token: i64,
        rectangle: Rectangle,
        clock_us: i64,
        longest_us: i64,
    },
    Extended {
        token: i64,
        not_after_us: i64,
        clock_us: i64,
        longest_us: i64,
    },
    /// Its holder, or an operator who knows that it has stopped, says that later times were not used.
    Released {
        token: i64,
        used_until_us: i64,
    },
    /// The coordinator has found that grants may be lost.
    Interrupted {
        clock_us: i64,
    },
    /// A coordinator without a history has begun one. Grants of earlier coordinators may be lost. It leaves no trace of a
    /// snapshot that was put back before.
    Begun {
        since_us: i64,
    },
    /// All rows are gone.
    Dropped,
}

/// The rectangle of a token.
#[derive(Clone, Debug)]
struct Term {
    worker_id: i32,
    start_us: i64,
    end_us: i64,
    confirmed_us: i64,
    /// Of the commit that has chosen its end.
    clock_us: i64,
    longest_us: i64,
    /// Of the commit that has chosen its start.
    longest_at_start_us: i64,
    /// The last commit that has granted this end.
    entry: Rc<Entry>,
    /// The present coordinator does not have it.
    is_lost: bool,
    /// The commit that has dropped its row.
    dropped: Option<Rc<Entry>>,
    /// The documents allow that it is repeated.
    is_excused: bool,
    /// It is lost with all commits that have granted: nothing tells how long rectangles were.
    is_of_first: bool,
    /// Granted by a coordinator that cannot know yet that it was set back.
    is_unaware: bool,
    /// Until this time, a copy of a running memory may use it too.
    copied_until_us: Option<i64>,
}

/// Times of a worker id that were used.
#[derive(Clone, Copy, Debug)]
struct Use {
    from_ms: i64,
    until_ms: i64,
    /// `None`: by hand.
    token: Option<i64>,
}

#[derive(Default)]
pub struct Judge {
    terms: BTreeMap<i64, Term>,
    uses: BTreeMap<i32, Vec<Use>>,
    /// Commits that have noted an interruption.
    interruptions: Vec<Rc<Entry>>,
    /// Commits that were the first to grant longer rectangles, and how long they were.
    longest: Vec<(Rc<Entry>, i64)>,
    /// The coordinator was set back in a way that only a holder can show.
    pub is_unaware: bool,
    /// Grants may have been lost or copied, or a coordinator's clock has gone back.
    may_be_interrupted: bool,
}

impl Judge {
    /// Returns the promise that is broken, here and below.
    pub fn committed(&mut self, entry: &Rc<Entry>, notes: Vec<Note>, is_unaware: bool) -> Option<String> {
        notes.into_iter().filter_map(|note| self.commit(entry, note, is_unaware)).last()
    }

    fn commit(&mut self, entry: &Rc<Entry>, note: Note, is_unaware: bool) -> Option<String> {
        match note {
            Note::Granted { worker_id, token, rectangle, clock_us, longest_us } => {
                self.note_longest(entry, longest_us);
                let term = Term {
                    worker_id,
                    start_us: rectangle.not_before_us,
                    end_us: rectangle.not_after_us,
                    confirmed_us: i64::MIN,
                    clock_us,
                    longest_us,
                    longest_at_start_us: longest_us,
                    entry: entry.clone(),
                    is_lost: false,
                    dropped: None,
                    is_excused: false,
                    is_of_first: false,
                    is_unaware,
                    copied_until_us: None,
                };
                self.terms.insert(token, term);
                self.overlap(token)
            }
            Note::Extended { token, not_after_us, clock_us, longest_us } => {
                self.note_longest(entry, longest_us);
                let term = self.terms.get_mut(&token)?;
                // An earlier end: the commit that had chosen the later one is lost.
                if not_after_us >= term.end_us {
                    term.entry = entry.clone();
                }
                if not_after_us > term.end_us {
                    (term.end_us, term.clock_us, term.longest_us) = (not_after_us, clock_us, longest_us);
                }
                term.is_unaware |= is_unaware;
                self.overlap(token)
            }
            Note::Released { token, used_until_us } => {
                let term = self.terms.get_mut(&token)?;
                term.end_us = term.end_us.min(used_until_us);
                None
            }
            Note::Interrupted { clock_us } => {
                self.is_unaware = false;
                self.interrupt(entry, clock_us);
                (!self.may_be_interrupted).then(|| "W1: all leases end although no grant was lost".to_owned())
            }
            Note::Begun { since_us } => {
                self.interrupt(entry, since_us);
                None
            }
            Note::Dropped => {
                for term in self.terms.values_mut() {
                    term.is_lost = true;
                    term.dropped.get_or_insert_with(|| entry.clone());
                }
                None
            }
        }
    }

    fn interrupt(&mut self, entry: &Rc<Entry>, clock_us: i64) {
        self.interruptions.push(entry.clone());
        // A coordinator whose clock is behind that of the one before.
        for term in self.terms.values_mut().filter(|term| term.is_lost) {
            let is_behind = clock_us < term.clock_us && clock_us + term.longest_us < term.end_us;
            term.is_excused |= is_behind;
        }
    }

    pub fn allow_interruptions(&mut self) {
        self.may_be_interrupted = true;
    }

    fn note_longest(&mut self, entry: &Rc<Entry>, longest_us: i64) {
        if self.longest.last().is_none_or(|(_, known_us)| *known_us < longest_us) {
            self.longest.push((entry.clone(), longest_us));
        }
    }

    fn overlap(&self, token: i64) -> Option<String> {
        let own = &self.terms[&token];
        let (_, other) = self.terms.iter().find(|(of, other)| {
            let (from_us, until_us) = (own.start_us.max(other.start_us), own.end_us.min(other.end_us));
            **of != token && own.worker_id == other.worker_id && from_us < until_us && !allows(own, other, from_us)
        })?;
        Some(format!(
            "W1: a rectangle of worker id {} is {}..{}, and another one {}..{}",
            own.worker_id, own.start_us, own.end_us, other.start_us, other.end_us
        ))
    }

    pub fn confirmed(&mut self, token: i64, end_us: i64) {
        if let Some(term) = self.terms.get_mut(&token) {
            term.confirmed_us = term.confirmed_us.max(end_us);
        }
    }

    /// The coordinator goes on with these commits. `is_noticed`: it can know of that.
    pub fn set_back(&mut self, kept: &[Rc<Entry>], is_noticed: bool) {
        self.allow_interruptions();
        let has = |entry: &Rc<Entry>| kept.iter().any(|kept| Rc::ptr_eq(kept, entry));
        let (interruptions, longest) = (self.interruptions.len(), self.longest.len());
        self.interruptions.retain(&has);
        self.longest.retain(|(entry, _)| has(entry));
        let has_lost_interruption = self.interruptions.len() < interruptions;
        let has_lost_longest = self.longest.len() < longest;
        let known_us = self.longest.last().map_or(0, |(_, longest_us)| *longest_us);
        for term in self.terms.values_mut() {
            term.dropped = term.dropped.take().filter(&has);
            term.is_lost = !has(&term.entry) || term.dropped.is_some();
            if has(&term.entry) {
                continue;
            }
            // One copy of a memory has renewed, and the other one can do it again.
            let renewed_us = term.copied_until_us.filter(|_| !is_noticed).map(|until_us| until_us.max(term.end_us));
            term.copied_until_us = renewed_us.or(term.copied_until_us);
            let is_ahead = term.end_us > term.clock_us + term.longest_us;
            term.is_excused |= has_lost_interruption && is_ahead;
            term.is_of_first |= has_lost_longest && known_us == 0;
            term.is_excused |= has_lost_longest && known_us > 0 && term.length_us() > known_us;
        }
        self.is_unaware = !is_noticed && self.terms.values().any(|term| term.is_lost);
    }

    /// The memory that has this token was copied while it ran. Both were told this end.
    pub fn copied(&mut self, token: i64, told_us: i64) {
        if let Some(term) = self.terms.get_mut(&token) {
            term.copied_until_us = Some(told_us.max(term.copied_until_us.unwrap_or(i64::MIN)));
        }
    }

    /// A server uses times of a worker id.
    pub fn used(&mut self, worker_id: i32, token: Option<i64>, from_ms: i64, until_ms: i64) -> Option<String> {
        let uses = self.uses.entry(worker_id).or_default();
        let repeated = uses.iter().find(|other| {
            let first_ms = other.from_ms.max(from_ms);
            let is_allowed = match (token, other.token) {
                (Some(own), Some(other)) => allows(&self.terms[&own], &self.terms[&other], first_ms * 1000),
                _ => false,
            };
            first_ms < other.until_ms.min(until_ms) && !is_allowed
        });
        let broken = repeated
            .map(|other| format!("W1: worker id {worker_id} is used again at {} ms", other.from_ms.max(from_ms)));
        uses.push(Use { from_ms, until_ms, token });
        broken.or_else(|| {
            let term = self.terms.get(&token?)?;
            let is_inside = from_ms * 1000 >= term.start_us && until_ms * 1000 <= term.confirmed_us;
            (!is_inside).then(|| {
                let (start_us, end_us) = (term.start_us, term.confirmed_us);
                format!("W1: ids at {from_ms}..{until_ms} ms are not within {start_us}..{end_us}, which is confirmed")
            })
        })
    }

    /// The latest end of a rectangle.
    pub fn latest_us(&self) -> i64 {
        self.terms.values().map(|term| term.end_us).max().unwrap_or(0)
    }

    /// The end of the ids under a token.
    pub fn used_until_us(&self, token: i64) -> Option<i64> {
        let of_token = |used: &&Use| used.token == Some(token);
        self.uses.values().flatten().filter(of_token).map(|used| used.until_ms * 1000).max()
    }
}

impl Term {
    /// How long rectangles were for it. A later start follows from longer ones, too.
    fn length_us(&self) -> i64 {
        self.longest_us.max(self.end_us - self.clock_us)
    }
}

/// True if the documents allow that two terms have this time.
fn allows(one: &Term, other: &Term, at_us: i64) -> bool {
    let is_copied = |term: &Term| term.copied_until_us.is_some_and(|until_us| at_us < until_us);
    let is_excused = |lost: &Term| lost.is_lost && lost.is_excused;
    let is_longer =
        |lost: &Term, other: &Term| lost.is_lost && lost.is_of_first && lost.length_us() > other.longest_at_start_us;
    let is_unnoticed = |lost: &Term, other: &Term| lost.is_lost && other.is_unaware;
    is_copied(one)
        || is_copied(other)
        || is_excused(one)
        || is_excused(other)
        || is_longer(one, other)
        || is_longer(other, one)
        || is_unnoticed(one, other)
        || is_unnoticed(other, one)
}
