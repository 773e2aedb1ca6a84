//! Two servers, a coordinator and its standby, which is promoted once. A range is one value.

use super::{Rule, Step, Tag};
use crate::model::explore::{self, Goal, Size};
use crate::model::rules::Rules;

pub struct Space {
    rules: Rules<Rule>,
    last_value: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standby {
    Synchronous,
    /// Lags, and both servers are known to it.
    Asynchronous,
}

/// The rows of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rows {
    max_id: i64,
    /// The history under which it grants.
    history: u8,
    /// The highest value that each server has reported, and under which history.
    reports: [Option<(i64, u8)>; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    /// On disk: the highest value that it has received.
    received: i64,
    answer: Option<i64>,
    answer_is_confirmed: bool,
    /// The last request for values was not confirmed.
    is_unconfirmed: bool,
    stock: Option<i64>,
    /// The last range that was put into the stock.
    installed: Option<i64>,
    /// Ranges that it has lost, since its start, while the standby was away.
    lost: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    standby: Standby,
    standby_rows: Rows,
    is_away: bool,
    has_failed: bool,
    /// The history of the server that is the coordinator.
    current: u8,
    rows: Rows,
    servers: [Server; 2],
    /// A bit for each value that was drawn.
    drawn: u32,
    has_drawn_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Ask { server: usize },
    Report { server: usize },
    Confirm { server: usize },
    LoseAnswer { server: usize },
    Install { server: usize, is_recorded: bool },
    Draw { server: usize },
    Restart { server: usize, keeps_stock: bool },
    Replicate,
    StandbyLeaves,
    StandbyReturns,
    Failover { is_named: bool },
}

impl State {
    fn begin(standby: Standby) -> Self {
        let report = Some((0, 0)).filter(|_| standby == Standby::Asynchronous);
        let rows = Rows { max_id: 0, history: 0, reports: [report; 2] };
        Self {
            standby,
            standby_rows: rows,
            is_away: false,
            has_failed: false,
            current: 0,
            rows,
            servers: [Server::default(); 2],
            drawn: 0,
            has_drawn_twice: false,
        }
    }

    /// True if a commit has reached all standbys that have to have it.
    fn answers(&self) -> bool {
        !self.is_away
    }

    fn tag(&self) -> Tag {
        let reports = || self.rows.reports.iter().flatten();
        let unreported = reports().filter(|(_, history)| *history != self.current).count();
        let is_own = self.rows.history == self.current;
        let reported = reports().map(|(max_id, _)| *max_id).max().unwrap_or(0);
        Tag { max_id: self.rows.max_id, unreported: if is_own { 0 } else { unreported }, reported }
    }

    /// Records what a server has received.
    fn report(&mut self, server: usize) {
        let received = self.servers[server].received;
        let before = self.rows.reports[server].map_or(0, |(max_id, _)| max_id);
        self.rows.reports[server] = Some((before.max(received), self.current));
    }
}

impl Space {
    fn take(&self, state: &State, action: Action) -> Option<(Option<Step>, State)> {
        let mut next = state.clone();
        let step = match action {
            Action::Ask { server } => {
                let known = &mut next.servers[server];
                let ask = Step::Ask { was_confirmed: !known.is_unconfirmed || state.answers() };
                if !self.rules.allow(&ask.broken()) {
                    return None;
                }
                (known.is_unconfirmed, known.answer_is_confirmed) = (true, false);
                next.report(server);
                let tag = next.tag();
                let grant = |first| Step::Grant { tag, first };
                let first = (1..=self.last_value).find(|first| self.rules.allow(&grant(*first).broken()))?;
                next.servers[server].answer = Some(first);
                next.rows.max_id = tag.max_id.max(first);
                next.rows.history = state.current;
                Some(grant(first))
            }
            Action::Report { server } => {
                next.report(server);
                Some(Step::Report { has_answer: state.servers[server].answer.is_some() })
            }
            Action::Confirm { server } => {
                if !state.answers() {
                    // The values of a request that is not confirmed are lost.
                    next.servers[server].answer = None;
                    next.servers[server].lost += 1;
                } else {
                    if state.standby == Standby::Synchronous && !state.has_failed {
                        next.standby_rows = state.rows;
                    }
                    (next.servers[server].answer_is_confirmed, next.servers[server].is_unconfirmed) = (true, false);
                }
                None
            }
            Action::LoseAnswer { server } => {
                next.servers[server].answer = None;
                None
            }
            Action::Install { server, is_recorded } => {
                let known = &mut next.servers[server];
                let last = known.answer.take()?;
                if is_recorded {
                    known.received = known.received.max(last);
                }
                (known.stock, known.installed) = (Some(last), Some(last));
                Some(Step::Install { last, is_confirmed: known.answer_is_confirmed, received: known.received })
            }
            Action::Draw { server } => {
                let value = next.servers[server].stock.take()?;
                next.has_drawn_twice = state.drawn & 1 << value != 0;
                next.drawn |= 1 << value;
                None
            }
            Action::Restart { server, keeps_stock } => {
                let known = &mut next.servers[server];
                known.stock = known.installed.filter(|_| keeps_stock);
                // It does not know of its last request: not a retry.
                (known.answer, known.is_unconfirmed, known.lost) = (None, false, 0);
                Some(Step::Start { keeps_stock })
            }
            Action::Replicate => {
                next.standby_rows = state.rows;
                None
            }
            Action::StandbyLeaves => {
                next.is_away = true;
                None
            }
            Action::StandbyReturns => {
                next.is_away = false;
                next.servers.iter_mut().for_each(|server| server.lost = 0);
                None
            }
            Action::Failover { is_named } => {
                (next.rows, next.has_failed, next.current) = (state.standby_rows, true, u8::from(is_named));
                next.servers
                    .iter_mut()
                    .filter(|server| !server.answer_is_confirmed)
                    .for_each(|server| server.answer = None);
                Some(Step::Failover { is_named })
            }
        };
        Some((step, next))
    }
}

impl explore::Space for Space {
    type Rule = Rule;
    type State = State;
    type Action = Action;

    fn with(rules: Rules<Rule>, size: Size) -> Self {
        Self { rules, last_value: if size == Size::Small { 4 } else { 5 } }
    }

    fn begin(&self) -> Vec<State> {
        vec![State::begin(Standby::Synchronous), State::begin(Standby::Asynchronous)]
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for (server, known) in state.servers.iter().enumerate() {
            match known.answer {
                None if known.stock.is_none() => actions.push(Action::Ask { server }),
                None => {}
                Some(_) => {
                    actions.extend([true, false].map(|is_recorded| Action::Install { server, is_recorded }));
                    actions.push(Action::LoseAnswer { server });
                    if !known.answer_is_confirmed {
                        actions.push(Action::Confirm { server });
                    }
                }
            }
            if known.stock.is_some() {
                actions.push(Action::Draw { server });
            }
            if state.rows.reports[server].is_some() {
                actions.push(Action::Report { server });
            }
            actions.extend([true, false].map(|keeps_stock| Action::Restart { server, keeps_stock }));
        }
        if !state.has_failed {
            actions.extend([true, false].map(|is_named| Action::Failover { is_named }));
            match state.standby {
                Standby::Asynchronous => actions.push(Action::Replicate),
                Standby::Synchronous if state.is_away => actions.push(Action::StandbyReturns),
                Standby::Synchronous => actions.push(Action::StandbyLeaves),
            }
        }
        actions
    }

    fn next(&self, state: &State, action: Action) -> Option<State> {
        let (step, next) = self.take(state, action)?;
        step.is_none_or(|step| self.rules.allow(&step.broken())).then(|| next.in_normal_form())
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        if state.has_drawn_twice {
            return Some("G4: one value is drawn twice");
        }
        let wastes = state.servers.iter().any(|server| server.lost > 1);
        wastes.then_some("G3: retries lose more than one range")
    }

    fn goals(&self) -> Vec<Goal<State>> {
        vec![
            ("both servers have drawn after a failover", |state| {
                state.has_failed
                    && state.servers.iter().all(|server| server.installed.is_some() && server.stock.is_none())
            }),
            ("a promoted coordinator lacks a range that is in a stock", |state| {
                let above = |server: &Server| server.stock.is_some_and(|value| value > state.rows.max_id);
                state.has_failed && state.servers.iter().any(above)
            }),
            ("a report is missing", |state| state.tag().unreported > 0),
            ("a range is lost while the standby is away", |state| state.servers.iter().any(|server| server.lost > 0)),
        ]
    }

    fn begin_text(&self, state: &State) -> String {
        let standby = match state.standby {
            Standby::Synchronous => "a synchronous standby",
            Standby::Asynchronous => "an asynchronous standby that knows both servers",
        };
        format!("servers A and B, a coordinator and {standby}; a range is one value")
    }

    fn step_text(&self, before: &State, action: Action, after: &State) -> String {
        let name = |server: usize| ["A", "B"][server];
        let value = |value: Option<i64>| value.expect("it has one");
        match action {
            Action::Ask { server } => {
                format!("{} asks; the coordinator grants {}", name(server), value(after.servers[server].answer))
            }
            Action::Report { server } => {
                format!("{} reports that it has received up to {}", name(server), before.servers[server].received)
            }
            Action::Confirm { server } if before.answers() => format!("{}'s range is confirmed", name(server)),
            Action::Confirm { server } => format!("{}'s range is not confirmed, and lost", name(server)),
            Action::LoseAnswer { server } => format!("the answer to {} is lost", name(server)),
            Action::Install { server, is_recorded } => {
                let record = if is_recorded { "records and installs" } else { "installs" };
                format!("{} {record} {}", name(server), value(before.servers[server].answer))
            }
            Action::Draw { server } => format!("{} draws {}", name(server), value(before.servers[server].stock)),
            Action::Restart { server, keeps_stock: true } => format!("{} restarts, with its stock", name(server)),
            Action::Restart { server, .. } => format!("{} restarts", name(server)),
            Action::Replicate => "the standby has all rows".into(),
            Action::StandbyLeaves => "the standby is away".into(),
            Action::StandbyReturns => "the standby is back".into(),
            Action::Failover { is_named: true } => "the standby is promoted, under another history".into(),
            Action::Failover { .. } => "the standby is promoted, under the same history".into(),
        }
    }
}

impl State {
    /// Forgets what no later step can tell apart.
    fn in_normal_form(mut self) -> Self {
        if self.has_failed {
            (self.standby_rows, self.is_away) = (self.rows, false);
        }
        for server in self.servers.iter_mut().filter(|server| server.answer.is_none()) {
            server.answer_is_confirmed = false;
        }
        self
    }
}
