//! Two clients of a lease with one slot, a server, and one fault: a crash, or the promotion of a standby.
//!
//! A client that makes no step is paused. The lease has rows of two slots: one is from an earlier definition. Real time is
//! the wall clock; the second machine's clock of leases is ahead of the first one's.

use super::{Rule, Server, Step, Term};
use crate::model::explore::{self, Goal, Size};
use crate::model::rules::Rules;

const TTL: i64 = 2;
/// Tokens that a tick has room for.
const TOKENS: i64 = 2;
/// How far the clock of the second machine is ahead.
const AHEAD: i64 = 2;

pub struct Space {
    rules: Rules<Rule>,
    last_tick: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The same server goes on with what is on disk.
    Crash,
    /// A standby goes on with what it has received.
    Failover,
}

/// The rows of the slots, and the sequence of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Rows {
    terms: [Option<Term>; 2],
    drawn: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// 0: none.
    token: i64,
    slot: usize,
    /// The end that it was told, in real time.
    until: i64,
    /// Its open transaction holds a fence.
    is_fenced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    fault: Fault,
    has_failed: bool,
    now: i64,
    server: Server,
    rows: Rows,
    /// On disk, or at the standby.
    copy: Rows,
    clients: [Client; 2],
    /// When the server has read the clock for a renewal of client A that waits for the row.
    read: Option<i64>,
    /// The highest token that a client was told.
    highest: i64,
    has_repeated_token: bool,
    has_written_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Acquire {
        client: usize,
        slot: usize,
        is_durable: bool,
    },
    /// The server reads the clock for a renewal that then waits.
    Read,
    Renew {
        client: usize,
        is_durable: bool,
        has_waited: bool,
    },
    Release {
        client: usize,
    },
    Revoke {
        slot: usize,
    },
    Fence {
        client: usize,
    },
    Write {
        client: usize,
    },
    Copy,
    Fail,
}

impl State {
    fn begin(fault: Fault) -> Self {
        let rows = Rows { terms: [None; 2], drawn: 0 };
        let server = Server { clock: 0, now: 0, began: 0, first_token: 0 };
        let clients = [Client::default(); 2];
        let (has_failed, has_repeated_token, has_written_late) = (false, false, false);
        Self {
            fault,
            has_failed,
            now: 0,
            server,
            rows,
            copy: rows,
            clients,
            read: None,
            highest: 0,
            has_repeated_token,
            has_written_late,
        }
    }

    fn is_fenced(&self, slot: usize) -> bool {
        let token = self.rows.terms[slot].map(|row| row.token);
        self.clients.iter().any(|client| client.is_fenced && client.slot == slot && Some(client.token) == token)
    }

    /// True if the client believes that it holds the lease, and the server has said so.
    fn believes(&self, client: &Client) -> bool {
        client.token > 0 && client.until > self.now
    }

    fn is_stale(&self, client: &Client) -> bool {
        client.token > 0 && self.rows.terms[client.slot].is_some_and(|row| row.token > client.token)
    }

    fn commit(&mut self, is_durable: bool) {
        if self.fault == Fault::Crash && is_durable {
            self.copy = self.rows;
        }
    }
}

impl Space {
    /// One kind of fault is enough: what has waited is lost with either.
    fn may_wait(&self, state: &State) -> bool {
        state.fault == Fault::Failover && !state.has_failed
    }

    /// The steps of an action, with what their rules need to know, and the state after it.
    fn take(&self, state: &State, action: Action) -> Option<(Vec<Step>, State)> {
        let mut next = state.clone();
        let steps = match action {
            Action::Tick => {
                (next.now, next.server.now) = (state.now + 1, state.server.now + 1);
                Vec::new()
            }
            Action::Acquire { client, slot, is_durable } => return self.acquire(state, client, slot, is_durable),
            Action::Read => {
                next.read = Some(state.server.now);
                Vec::new()
            }
            Action::Renew { client, is_durable, has_waited } => {
                let Client { token, slot, until, .. } = state.clients[client];
                let row = state.rows.terms[slot]?;
                let Server { now, clock, .. } = state.server;
                let read = if has_waited { next.read.take()? } else { now };
                next.rows.terms[slot] = Some(Term { ends: read + TTL, clock, ..row });
                next.clients[client].until = until.max(state.now - (now - read) + TTL);
                next.commit(is_durable);
                vec![Step::Renew { row: Some(row), token, clock, read }, Step::Told { is_durable }]
            }
            Action::Release { client } => {
                let Client { token, slot, .. } = state.clients[client];
                let row = state.rows.terms[slot]?;
                next.rows.terms[slot] = Some(Term { is_held: false, ..row });
                next.clients[client] = Client::default();
                next.read = next.read.filter(|_| client != 0);
                vec![Step::Release { row: Some(row), token }]
            }
            Action::Revoke { slot } => {
                let row = state.rows.terms[slot].filter(|row| row.is_held)?;
                next.rows.terms[slot] = Some(Term { is_held: false, ..row });
                next.commit(true);
                next.clients.iter_mut().filter(|client| client.token == row.token).for_each(|client| client.until = 0);
                Vec::new()
            }
            Action::Fence { client } => {
                let Client { token, slot, .. } = state.clients[client];
                next.clients[client].is_fenced = true;
                vec![Step::Fence { row: state.rows.terms[slot], token }]
            }
            Action::Write { client } => {
                let Client { token, slot, is_fenced, .. } = state.clients[client];
                next.clients[client].is_fenced = false;
                next.has_written_late = state.rows.terms[slot].is_none_or(|row| row.token != token);
                vec![Step::Write { is_fenced }]
            }
            Action::Copy => {
                next.copy = state.rows;
                Vec::new()
            }
            Action::Fail => {
                next.fail();
                Vec::new()
            }
        };
        Some((steps, next))
    }

    fn acquire(&self, state: &State, client: usize, slot: usize, is_durable: bool) -> Option<(Vec<Step>, State)> {
        let (mut next, server) = (state.clone(), state.server);
        let mut steps = Vec::new();
        // Ends the term in the other slot, if it is over.
        let other = 1 - slot;
        if let Some(row) = state.rows.terms[other].filter(|row| row.is_held) {
            let end = Step::End { row, server, is_fenced: state.is_fenced(other), lock_delay: 0 };
            if self.rules.allow(&end.broken()) {
                next.rows.terms[other] = Some(Term { is_held: false, ..row });
                steps.push(end);
            }
        }
        let others = next.rows.terms[other].filter(|row| row.is_held).map_or(0, |_| 1);
        let (row, drawn) = (state.rows.terms[slot], state.rows.drawn);
        let is_fenced = state.is_fenced(slot);
        let begin = |token| Step::Begin { row, token, server, drawn, is_fenced, others, slots: 1, lock_delay: 0 };
        // No server draws more tokens than its clock has room for.
        let mut tokens = 1..=TOKENS * (state.now + 1);
        let token = tokens.find(|token| self.rules.allow(&begin(*token).broken()))?;
        steps.extend([begin(token), Step::Told { is_durable }]);
        let term = Term { token, is_held: true, ttl: TTL, ends: server.now + TTL, clock: server.clock };
        next.rows.terms[slot] = Some(term);
        next.rows.drawn = drawn.max(token);
        next.clients[client] = Client { token, slot, until: state.now + TTL, is_fenced: false };
        next.read = next.read.filter(|_| client != 0);
        next.has_repeated_token |= token <= state.highest;
        next.highest = state.highest.max(token);
        next.commit(is_durable);
        Some((steps, next))
    }
}

impl State {
    /// Forgets what no later step can tell apart.
    fn in_normal_form(mut self) -> Self {
        if self.has_failed {
            self.copy = Rows::default();
        }
        for client in &mut self.clients {
            client.until = if client.until > self.now { client.until } else { 0 };
        }
        self
    }

    /// Open transactions end. The promotion of a standby takes a tick.
    fn fail(&mut self) {
        self.has_failed = true;
        self.rows = self.copy;
        self.read = None;
        self.clients.iter_mut().for_each(|client| client.is_fenced = false);
        if self.fault == Fault::Failover {
            self.now += 1;
            let now = self.now + AHEAD;
            self.server = Server { clock: 1, now, began: now, first_token: TOKENS * self.now };
            // The promises are for what the standby had received.
            let terms = self.rows.terms;
            for client in &mut self.clients {
                if terms[client.slot].is_none_or(|row| row.token != client.token) {
                    client.until = 0;
                }
            }
        }
    }
}

impl explore::Space for Space {
    type Rule = Rule;
    type State = State;
    type Action = Action;

    fn with(rules: Rules<Rule>, size: Size) -> Self {
        Self { rules, last_tick: if size == Size::Small { 3 } else { 4 } }
    }

    fn begin(&self) -> Vec<State> {
        vec![State::begin(Fault::Crash), State::begin(Fault::Failover)]
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        if state.now < self.last_tick {
            actions.push(Action::Tick);
            if !state.has_failed {
                actions.push(Action::Fail);
            }
        }
        if !state.has_failed && state.copy != state.rows {
            actions.push(Action::Copy);
        }
        for (client, known) in state.clients.iter().enumerate() {
            let durable = if state.fault == Fault::Crash { &[true, false][..] } else { &[true] };
            if !known.is_fenced && !state.believes(known) {
                let slots = (0..2).flat_map(|slot| durable.iter().map(move |is_durable| (slot, *is_durable)));
                actions.extend(slots.map(|(slot, is_durable)| Action::Acquire { client, slot, is_durable }));
            }
            if known.token > 0 && !known.is_fenced {
                let renew = |is_durable: &bool| Action::Renew { client, is_durable: *is_durable, has_waited: false };
                actions.extend(durable.iter().map(renew));
                actions.extend([Action::Release { client }, Action::Fence { client }]);
            }
            if known.token > 0 {
                actions.push(Action::Write { client });
            }
        }
        if state.read.is_some() {
            actions.push(Action::Renew { client: 0, is_durable: true, has_waited: true });
        } else if state.clients[0].token > 0 && !state.clients[0].is_fenced && self.may_wait(state) {
            actions.push(Action::Read);
        }
        actions.extend((0..2).map(|slot| Action::Revoke { slot }));
        actions
    }

    fn next(&self, state: &State, action: Action) -> Option<State> {
        let (steps, next) = self.take(state, action)?;
        steps.iter().all(|step| self.rules.allow(&step.broken())).then(|| next.in_normal_form())
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        if state.clients.iter().all(|client| state.believes(client)) {
            return Some("L2: two clients hold the one slot");
        }
        if state.has_repeated_token {
            return Some("L3: a token is not above an earlier one");
        }
        state.has_written_late.then_some("L4: a write has committed under a token that was not current")
    }

    fn goals(&self) -> Vec<Goal<State>> {
        fn any(state: &State, is: impl Fn(&Client) -> bool) -> bool {
            state.clients.iter().any(is)
        }
        vec![
            ("a term is taken over", |state| any(state, |client| state.is_stale(client))),
            ("a stale holder tries to write", |state| {
                let refused = |client: &Client| {
                    let fence = Step::Fence { row: state.rows.terms[client.slot], token: client.token };
                    state.is_stale(client) && fence.broken() == [Rule::TokenOfFence]
                };
                any(state, refused)
            }),
            ("a fence outlives its term", |state| any(state, |client| client.is_fenced && !state.believes(client))),
            ("a promoted standby lacks a grant", |state| {
                state.fault == Fault::Failover && state.has_failed && state.highest > state.rows.drawn
            }),
        ]
    }

    fn begin_text(&self, _: &State) -> String {
        format!("a lease with one slot; a ttl is {TTL} ticks; clients A and B")
    }

    fn step_text(&self, before: &State, action: Action, after: &State) -> String {
        let name = |client: usize| ["A", "B"][client];
        let text = match action {
            Action::Tick => "time passes".into(),
            Action::Acquire { client, slot, is_durable } => {
                let commit = if is_durable { "" } else { ", not on disk" };
                format!("{} acquires slot {slot}: token {}{commit}", name(client), after.clients[client].token)
            }
            Action::Read => "a renewal of A reads the clock, and waits".into(),
            Action::Renew { client, is_durable, has_waited } => {
                let commit = if is_durable { "" } else { ", not on disk" };
                let waited = if has_waited { "the waiting renewal: " } else { "" };
                format!("{waited}{} renews with token {}{commit}", name(client), before.clients[client].token)
            }
            Action::Release { client } => format!("{} releases token {}", name(client), before.clients[client].token),
            Action::Revoke { slot } => format!("an operator revokes slot {slot}"),
            Action::Fence { client } => {
                format!("{} begins a transaction and fences with token {}", name(client), before.clients[client].token)
            }
            Action::Write { client } => {
                format!("{} writes and commits under token {}", name(client), before.clients[client].token)
            }
            Action::Copy if before.fault == Fault::Crash => "the disk has all rows".into(),
            Action::Copy => "the standby has all rows".into(),
            Action::Fail if before.fault == Fault::Crash => "the server crashes and starts again".into(),
            Action::Fail => "the standby is promoted, with what it has received".into(),
        };
        format!("{text} (now {})", after.now)
    }
}
