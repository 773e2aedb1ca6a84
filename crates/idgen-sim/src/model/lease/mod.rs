//! The rules of leases: terms, tokens and fences.

pub mod space;

use super::rules::{self, broken};

/// What keeps holders apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    TermIsOver,
    WholeTtl,
    FenceHoldsRow,
    AtMostSlots,
    TokensRise,
    TokensPassTheClock,
    TokenOfRenewal,
    ClockOfRenewal,
    TokenOfRelease,
    TokenOfFence,
    WriteIsFenced,
    GrantIsDurable,
}

impl rules::Rule for Rule {
    const ALL: &'static [Self] = &[
        Self::TermIsOver,
        Self::WholeTtl,
        Self::FenceHoldsRow,
        Self::AtMostSlots,
        Self::TokensRise,
        Self::TokensPassTheClock,
        Self::TokenOfRenewal,
        Self::ClockOfRenewal,
        Self::TokenOfRelease,
        Self::TokenOfFence,
        Self::WriteIsFenced,
        Self::GrantIsDurable,
    ];

    fn promise(self) -> &'static str {
        match self {
            Self::TermIsOver | Self::WholeTtl | Self::AtMostSlots | Self::ClockOfRenewal | Self::GrantIsDurable => "L2",
            Self::TokensRise | Self::TokensPassTheClock => "L3",
            Self::FenceHoldsRow | Self::TokenOfFence | Self::WriteIsFenced => "L4",
            Self::TokenOfRenewal | Self::TokenOfRelease => "L5",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::TermIsOver => "A held slot is granted only once its term is over by this server's clock.",
            Self::WholeTtl => "A term of another clock lasts its whole ttl from the start of this server.",
            Self::FenceHoldsRow => "A term is not replaced while a transaction holds a fence of it.",
            Self::AtMostSlots => {
                "A grant leaves at most `slots` rows that are held; it ends expired terms beyond that."
            }
            Self::TokensRise => "A token is above all that this server has drawn.",
            Self::TokensPassTheClock => "After a start or a promotion, tokens begin past the wall clock.",
            Self::TokenOfRenewal => "A renewal needs the token that the row has.",
            Self::ClockOfRenewal => {
                "A renewal reads the clock once it has locked the row, so not before an earlier one."
            }
            Self::TokenOfRelease => "A release needs the token that the row has.",
            Self::TokenOfFence => "A fence needs the token that the row has.",
            Self::WriteIsFenced => "A guarded write needs a fence in its transaction.",
            Self::GrantIsDurable => "A grant or a renewal is on disk before its holder hears of it.",
        }
    }
}

/// The row of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub token: i64,
    /// Neither released nor revoked.
    pub is_held: bool,
    pub ttl: i64,
    /// By the clock that wrote the row.
    pub ends: i64,
    pub clock: u32,
}

/// The server that makes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub clock: u32,
    pub now: i64,
    /// When it began to write, by its clock.
    pub began: i64,
    /// The wall clock at that time, as a token.
    pub first_token: i64,
}

/// A step, with what its rules need to know. `row` is the row before it.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Begins a term. `drawn` is the highest token so far, and `others` the count of other rows that stay held. All shared
    /// terms count as one, and for another shared term as none.
    Begin {
        row: Option<Term>,
        token: i64,
        server: Server,
        drawn: i64,
        is_fenced: bool,
        others: usize,
        slots: usize,
        lock_delay: i64,
    },
    /// Ends an expired term, so that another one can begin.
    End {
        row: Term,
        server: Server,
        is_fenced: bool,
        lock_delay: i64,
    },
    /// `read` is the time of the clock from which the new end counts.
    Renew {
        row: Option<Term>,
        token: i64,
        clock: u32,
        read: i64,
    },
    Release {
        row: Option<Term>,
        token: i64,
    },
    Fence {
        row: Option<Term>,
        token: i64,
    },
    Write {
        is_fenced: bool,
    },
    /// A holder hears of its grant.
    Told {
        is_durable: bool,
    },
}

impl Step {
    /// The rules that the step breaks.
    pub fn broken(&self) -> Vec<Rule> {
        match *self {
            Step::Begin { row, token, server, drawn, is_fenced, others, slots, lock_delay } => broken(&[
                (Rule::TermIsOver, row.is_none_or(|row| is_over_here(&row, &server, lock_delay))),
                (Rule::WholeTtl, row.is_none_or(|row| is_over_elsewhere(&row, &server, lock_delay))),
                (Rule::FenceHoldsRow, !is_fenced),
                (Rule::AtMostSlots, others < slots),
                (Rule::TokensRise, token > drawn),
                (Rule::TokensPassTheClock, token > server.first_token),
            ]),
            Step::End { row, server, is_fenced, lock_delay } => broken(&[
                (Rule::TermIsOver, is_over_here(&row, &server, lock_delay)),
                (Rule::WholeTtl, is_over_elsewhere(&row, &server, lock_delay)),
                (Rule::FenceHoldsRow, !is_fenced),
            ]),
            Step::Renew { row, token, clock, read } => broken(&[
                (Rule::TokenOfRenewal, is_held_by(row, token)),
                (Rule::ClockOfRenewal, row.is_none_or(|row| row.clock != clock || row.ends - row.ttl <= read)),
            ]),
            Step::Release { row, token } => broken(&[(Rule::TokenOfRelease, is_held_by(row, token))]),
            Step::Fence { row, token } => broken(&[(Rule::TokenOfFence, is_held_by(row, token))]),
            Step::Write { is_fenced } => broken(&[(Rule::WriteIsFenced, is_fenced)]),
            Step::Told { is_durable } => broken(&[(Rule::GrantIsDurable, is_durable)]),
        }
    }
}

fn is_held_by(row: Option<Term>, token: i64) -> bool {
    row.is_some_and(|row| row.is_held && row.token == token)
}

fn is_over_here(row: &Term, server: &Server, lock_delay: i64) -> bool {
    !row.is_held || row.clock != server.clock || row.ends.saturating_add(lock_delay) <= server.now
}

fn is_over_elsewhere(row: &Term, server: &Server, lock_delay: i64) -> bool {
    let ends = server.began.saturating_add(row.ttl).saturating_add(lock_delay);
    !row.is_held || row.clock == server.clock || ends <= server.now
}
