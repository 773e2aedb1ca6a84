//! The holders of one name, which is a named lock, a slot of a lease, or a lease with shared terms. [`State::apply`] takes an
//! answer, changes the holders, and refuses an answer that cannot be true.

use super::{NEVER, Ns};

/// A token of a lease. For a lock, the number of its session.
pub type Token = i64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A term lasts at least this long from the moment at which its call was sent, or [`NEVER`] ends by itself.
    Acquire {
        shared: bool,
        ttl: Ns,
    },
    Renew {
        token: Token,
        ttl: Ns,
    },
    /// A fence whose transaction has sent its commit at this time. Until then the term is not taken over.
    Fence {
        token: Token,
        until: Ns,
    },
    Release {
        token: Token,
    },
    /// An operator ends the terms.
    Revoke,
    /// The session ends, and with it all that is bound to it.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted(Token),
    Refused,
    Done,
    /// The token is not, or no more, that of the term.
    Stale,
}

pub type Call = super::Call<Op, Answer>;

/// A term that was neither released nor taken over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term {
    pub token: Token,
    pub session: u32,
    pub shared: bool,
    /// The term cannot end by time before this. The server counts from a moment after the call was sent, so this bound holds
    /// although the two clocks differ.
    pub until: Ns,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    /// In the order of their tokens, so that equal states are equal.
    terms: Vec<Term>,
    /// How many grants there were whose token is known.
    grants: usize,
}

impl State {
    /// The state after an answer of this call, or `None` if the call cannot have this answer now. `rank` is that of the
    /// granted token among those of the name: tokens rise from grant to grant.
    pub fn apply(&self, call: &Call, answer: Answer, rank: Option<usize>) -> Option<State> {
        let held = |token| self.has(token);
        match (call.op, answer) {
            (Op::Acquire { shared, ttl }, Answer::Granted(token)) => {
                let is_next = rank.is_none_or(|rank| rank == self.grants);
                let until = call.sent.saturating_add(ttl);
                let term = Term { token, session: call.session, shared, until };
                (is_next && self.conflicts(shared).all(|other| other.until <= call.returned)).then(|| self.grant(term))
            }
            (Op::Acquire { .. }, _) => (!self.terms.is_empty()).then(|| self.clone()),
            (Op::Renew { token, .. } | Op::Fence { token, .. } | Op::Release { token }, Answer::Stale) => {
                (!held(token)).then(|| self.clone())
            }
            (Op::Renew { token, ttl }, _) => held(token).then(|| self.keep(token, call.sent.saturating_add(ttl))),
            (Op::Fence { token, until }, _) => held(token).then(|| self.keep(token, until)),
            (Op::Release { token }, _) => held(token).then(|| self.without(|term| term.token == token)),
            // The row of a session that has ended still has a term, so there need be none here.
            (Op::Revoke, _) => Some(self.remove(call)),
            (Op::End, _) => Some(self.without(|term| term.session == call.session && term.until == NEVER)),
        }
    }

    /// What the answer says is taken as true, to go on after a violation.
    pub fn force(&self, call: &Call, answer: Answer, rank: Option<usize>) -> State {
        match (call.op, answer) {
            (Op::Acquire { shared, .. }, Answer::Granted(_)) => {
                let mut free = self.without(|term| !(shared && term.shared));
                free.grants = rank.unwrap_or_default();
                free.apply(call, answer, rank).expect("the name is free")
            }
            _ => self.clone(),
        }
    }

    /// A grant whose answer was lost. Its term may be over at any time, and all such terms are alike: otherwise the states
    /// would double with each of them.
    pub fn grant_unknown(&self, call: &Call, returned: Ns) -> Option<State> {
        let Op::Acquire { shared, .. } = call.op else { return None };
        self.conflicts(shared).all(|other| other.until <= returned).then(|| {
            let mut next = self.grant(Term { token: Token::MIN, session: 0, shared, until: 0 });
            next.terms.dedup();
            State { grants: self.grants, ..next }
        })
    }

    /// Whether this call removes a term that is in the way of a grant.
    pub fn makes_room(&self, call: &Call, shared: bool) -> bool {
        self.conflicts(shared).any(|term| match call.op {
            Op::Release { token } => token == term.token,
            Op::End => term.session == call.session && term.until == NEVER,
            _ => false,
        })
    }

    pub fn remove(&self, call: &Call) -> State {
        match call.op {
            Op::Release { token } => self.without(|term| term.token == token),
            Op::Revoke => self.without(|_| true),
            _ => self.without(|term| term.session == call.session && term.until == NEVER),
        }
    }

    pub fn has(&self, token: Token) -> bool {
        self.terms.iter().any(|term| term.token == token)
    }

    fn conflicts(&self, shared: bool) -> impl Iterator<Item = &Term> {
        self.terms.iter().filter(move |term| !(shared && term.shared))
    }

    fn grant(&self, term: Term) -> State {
        let mut next = self.without(|other| !(term.shared && other.shared));
        next.terms.push(term);
        next.terms.sort_unstable();
        next.grants += 1;
        next
    }

    fn keep(&self, token: Token, until: Ns) -> State {
        let mut next = self.clone();
        next.terms.iter_mut().filter(|term| term.token == token).for_each(|term| term.until = term.until.max(until));
        next
    }

    fn without(&self, gone: impl Fn(&Term) -> bool) -> State {
        State { terms: self.terms.iter().filter(|term| !gone(term)).cloned().collect(), grants: self.grants }
    }
}
