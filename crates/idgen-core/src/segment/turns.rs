//! Requests in turns: the values of a tag of a fleet in one line, over all servers.
//!
//! A value that was asked for before a call began may be lower than one that another server has drawn before the call.
//! So each request is a turn. A call joins the turn that begins next. That turn asks for what its calls want, and only they
//! draw what it brings. The values stay with the turn until then, however late its calls wake up.

use super::{Draw, ValueRun};

/// How many turns can have calls that have yet to draw. While all of them have, no other one begins.
const KEPT: usize = 8;

/// The turns of one ring. Protected by the lock of the table of rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    /// How many have begun, in all tenancies of the ring.
    begun: u64,
    /// How many values the calls want that have joined the next turn.
    wanted: u64,
    kept: [Turn; KEPT],
}

/// A turn that has begun.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    number: u64,
    /// How many values the calls wanted that have yet to draw, or to find that there are none.
    owed: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Running,
    /// The values that are left, if it has brought any.
    Over(Option<ValueRun>),
}

/// A call's part of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    turn: u64,
    count: u64,
}

impl Turns {
    /// Another tenancy begins, which serves no earlier call.
    pub fn restart(&mut self) {
        *self = Self { begun: self.begun + 1, ..Self::default() };
    }

    /// A call wants so many values. They are asked for after this.
    pub fn join(&mut self, count: u64) -> Ticket {
        self.wanted = self.wanted.saturating_add(count);
        Ticket { turn: self.begun + 1, count }
    }

    /// A call that has joined ends without values. Those that were asked for are a gap.
    pub fn withdraw(&mut self, ticket: Ticket) {
        if ticket.turn == self.begun + 1 {
            self.wanted = self.wanted.saturating_sub(ticket.count);
        } else if let Some(turn) = self.of(ticket) {
            turn.owed = turn.owed.saturating_sub(ticket.count);
        }
    }

    /// Draws what a call has joined for: all of it if `is_block`, otherwise at least one value. `None`: the call waits. Dry if
    /// its turn has failed, or brought too few values: it can join another one. Where a turn could not begin before this,
    /// the caller has to request it.
    pub fn claim(&mut self, ticket: Ticket, is_block: bool) -> Option<Draw> {
        if ticket.turn > self.begun {
            return None;
        }
        let was_full = self.room().is_none();
        let Some(turn) = self.of(ticket) else { return Some(Draw::Dry) };
        let State::Over(left) = &mut turn.state else { return None };
        turn.owed = turn.owed.saturating_sub(ticket.count);
        let least = if is_block { ticket.count } else { 1 };
        let Some(left) = left.as_mut().filter(|left| left.count >= least) else { return Some(Draw::Dry) };
        let run = ValueRun { count: ticket.count.min(left.count), ..*left };
        *left = ValueRun { first: left.first.wrapping_add(run.count as i64 * run.stride), ..*left };
        left.count -= run.count;
        Some(Draw::Drawn { run, request: was_full && turn.owed == 0 })
    }

    /// How many values the next turn has to ask for; 0 if it cannot begin.
    pub fn due(&self) -> u64 {
        if self.room().is_some() { self.wanted } else { 0 }
    }

    /// Begins a turn, if calls have joined it. Returns its number, and how many values to ask for.
    pub fn begin(&mut self) -> Option<(u64, u64)> {
        let wanted = Some(self.wanted).filter(|wanted| *wanted > 0)?;
        let room = self.room()?;
        self.begun += 1;
        self.wanted = 0;
        self.kept[room] = Turn { number: self.begun, owed: wanted, state: State::Running };
        Some((self.begun, wanted))
    }

    /// A turn has brought values. If it has ended before, they are a gap.
    pub fn bring(&mut self, number: u64, run: ValueRun) {
        let is_it = |turn: &&mut Turn| turn.number == number && matches!(turn.state, State::Running);
        if let Some(turn) = self.kept.iter_mut().find(is_it) {
            turn.state = State::Over(Some(run));
        }
    }

    /// A turn that has brought nothing by now brings nothing: it has failed, or its worker is gone.
    pub fn give_up(&mut self) {
        for turn in self.kept.iter_mut().filter(|turn| matches!(turn.state, State::Running)) {
            turn.state = State::Over(None);
        }
    }

    fn of(&mut self, ticket: Ticket) -> Option<&mut Turn> {
        self.kept.iter_mut().find(|turn| turn.owed > 0 && turn.number == ticket.turn)
    }

    fn room(&self) -> Option<usize> {
        self.kept.iter().position(|turn| turn.owed == 0)
    }
}

#[cfg(test)]
mod tests;
