//! Recorded calls of clients, and the checkers that judge them.
//!
//! A history is what clients know: when each call was sent, when its answer arrived, and what the answer was. A checker
//! knows a promise and not how it is kept. It reports a violation only if no order of events inside the calls can explain
//! the answers, so a correct server never fails, however slow the machine is.

pub mod appends;
pub mod holders;
pub mod linear;
pub mod order;
pub mod rectangles;
pub mod settled;
pub mod texts;

use std::collections::BTreeMap;
use std::fmt;

/// Nanoseconds of one monotonic clock, the same for all clients.
pub type Ns = u64;

/// When an operation may still take effect for ever.
pub const NEVER: Ns = Ns::MAX;

/// What a client knows about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<R> {
    Answered(R),
    /// The server has reported an error, so the call had no effect.
    Failed,
    /// The connection was lost: the call may have taken effect, or take effect later.
    Unknown,
}

impl<R> Outcome<R> {
    pub fn answer(self) -> Option<R> {
        match self {
            Outcome::Answered(answer) => Some(answer),
            Outcome::Failed | Outcome::Unknown => None,
        }
    }

    pub fn map<S>(self, f: impl FnOnce(R) -> S) -> Outcome<S> {
        match self {
            Outcome::Answered(answer) => Outcome::Answered(f(answer)),
            Outcome::Failed => Outcome::Failed,
            Outcome::Unknown => Outcome::Unknown,
        }
    }
}

/// One call of a client.
#[derive(Clone, Debug)]
pub struct Call<Op, R> {
    /// A connection. A client that connects again is another session.
    pub session: u32,
    pub op: Op,
    pub sent: Ns,
    /// When the answer arrived. For an unknown outcome: when the call could take effect no more, or [`NEVER`].
    pub returned: Ns,
    pub outcome: Outcome<R>,
}

impl<Name, Op, R> Call<(Name, Op), R> {
    /// The name, and the call of it.
    pub fn split(self) -> (Name, Call<Op, R>) {
        let Call { session, op: (name, op), sent, returned, outcome } = self;
        (name, Call { session, op, sent, returned, outcome })
    }
}

/// What a checker has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How many operations were judged.
    pub operations: usize,
    /// By rule: how often it was broken, and the first case.
    found: BTreeMap<&'static str, (usize, String)>,
}

impl Verdict {
    pub fn of(operations: usize) -> Verdict {
        Verdict { operations, found: BTreeMap::new() }
    }

    /// Formats the first case of each rule only: a control can have a million.
    fn report(&mut self, rule: &'static str, case: impl FnOnce() -> String) {
        self.found.entry(rule).or_insert_with(|| (0, case())).0 += 1;
    }

    pub fn merge(&mut self, other: Verdict) {
        self.operations += other.operations;
        for (rule, (count, case)) in other.found {
            self.found.entry(rule).or_insert((0, case)).0 += count;
        }
    }

    /// How often a rule was broken.
    pub fn count(&self, rule: &str) -> usize {
        self.found.get(rule).map_or(0, |(count, _)| *count)
    }

    pub fn violations(&self) -> usize {
        self.found.values().map(|(count, _)| count).sum()
    }

    /// Panics with the first case of each rule that was broken.
    pub fn assert_clean(&self, what: &str) {
        assert!(self.found.is_empty(), "{what}: {self}");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} operations, {} violations", self.operations, self.violations())?;
        self.found.iter().try_for_each(|(rule, (count, case))| write!(f, "\n  {rule}, {count} times: {case}"))
    }
}
