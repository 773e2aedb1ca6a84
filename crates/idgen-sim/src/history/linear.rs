//! Linearizability of one name: whether there is an order of the calls, each at one moment between sending and answer, in
//! which every answer is true.
//!
//! The search is that of Wing and Gong, with the improvement by Lowe. It reads the events in the order of time, and keeps a
//! set of configurations: a possible state, and the running calls that have taken effect in it. Equal configurations are kept
//! once, which is the improvement. A call is decided when its answer arrives, so memory grows with the calls that run at one
//! time, and not with the history.
//!
//! A session sends one call at a time, and uses a token after it was granted. Three kinds of calls are decided without a
//! search, which keeps the sets small:
//! - Calls that change no other's answer take effect as soon as they can: refusals, stale tokens, and what prolongs a term.
//! - A release or the end of a session takes effect with the first grant that needs its room. A revocation does so there,
//!   with the first answer that needs it, or later: the search tries each.
//! - Grants whose tokens are known are in the order of these.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::holders::{Answer, Call, Op, State, Token};
use super::{NEVER, Ns, Outcome, Verdict};

pub const IMPOSSIBLE: &str = "an answer that no order of the calls explains";

/// What differs between the kinds of names.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Tokens rise from grant to grant. Those of locks are numbers of sessions, and do not.
    pub tokens_rise: bool,
    /// A call is refused only while the name is held. Calls that fail can hold it for a moment, so a refusal next to one of
    /// them is not judged.
    pub refused_if_held: bool,
}

pub const LOCK: Rules = Rules { tokens_rise: false, refused_if_held: true };
/// A lease refuses also while it serves another session, so refusals are not judged. Nor is a revocation that ends nothing.
pub const LEASE: Rules = Rules { tokens_rise: true, refused_if_held: false };

/// A possible state, with the running calls that have taken effect in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Configuration {
    state: State,
    done: BTreeSet<u32>,
}

struct Search<'a> {
    calls: &'a [Call],
    rules: Rules,
    ranks: HashMap<Token, usize>,
    ends: HashMap<u32, Ns>,
    /// Calls that were sent, and whose answer has not arrived. A set in the order of sending.
    running: BTreeSet<u32>,
    configurations: Vec<Configuration>,
    /// Refusals next to a call that fails.
    excused: HashSet<u32>,
    failing: usize,
}

/// Judges the calls of one name.
pub fn judge(calls: &[Call], rules: Rules) -> Verdict {
    let mut search = Search::new(calls, rules);
    let mut verdict = Verdict::of(calls.len());
    for (_, event, index) in events(&search) {
        if event == Event::Sent {
            search.send(index);
        } else if !search.answer(index) {
            verdict.report(IMPOSSIBLE, || search.explain(index));
            search.force(index);
        }
    }
    verdict
}

/// At one moment, calls are sent before others return, and those of unknown outcome can still explain the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Sent,
    Answered,
    Lost,
}

fn events(search: &Search) -> Vec<(Ns, Event, u32)> {
    let mut events = Vec::with_capacity(search.calls.len() * 2);
    for (index, call) in (0..).zip(search.calls) {
        events.push((call.sent, Event::Sent, index));
        let event = if call.outcome == Outcome::Unknown { Event::Lost } else { Event::Answered };
        let returned = search.returned(index);
        if returned < NEVER {
            events.push((returned.max(call.sent), event, index));
        }
    }
    events.sort_unstable();
    events
}

/// When each session is known to have ended.
fn ends(calls: &[Call]) -> HashMap<u32, Ns> {
    calls.iter().filter(|call| call.op == Op::End).map(|call| (call.session, call.returned)).collect()
}

impl<'a> Search<'a> {
    fn new(calls: &'a [Call], rules: Rules) -> Search<'a> {
        let mut tokens: Vec<Token> = calls.iter().filter_map(granted).collect();
        tokens.sort_unstable();
        let ranks = tokens.into_iter().zip(0..).filter(|_| rules.tokens_rise).collect();
        let configurations = vec![Configuration::default()];
        let (running, excused) = (BTreeSet::new(), HashSet::new());
        Search { calls, rules, ranks, ends: ends(calls), running, configurations, excused, failing: 0 }
    }

    fn call(&self, index: u32) -> &'a Call {
        &self.calls[index as usize]
    }

    /// No lost call takes effect once its session is known to have ended.
    fn returned(&self, index: u32) -> Ns {
        let call = self.call(index);
        let end = self.ends.get(&call.session).filter(|_| call.outcome == Outcome::Unknown);
        end.map_or(call.returned, |end| call.returned.min(*end))
    }

    /// The answer, if it is known.
    fn known(&self, index: u32) -> Option<Answer> {
        match (self.call(index).op, self.call(index).outcome) {
            // Its session has ended, or will.
            (Op::End, _) => Some(Answer::Done),
            (_, outcome) => outcome.answer(),
        }
    }

    fn rank(&self, index: u32) -> Option<usize> {
        granted(self.call(index)).and_then(|token| self.ranks.get(&token).copied())
    }

    /// Calls without which all others can be explained as well: those that failed, and lost ones that only prolong a term.
    /// So is a lost call that acquires a lock, because it excuses each refusal that it could explain.
    fn is_void(&self, index: u32) -> bool {
        match (self.call(index).op, self.call(index).outcome) {
            (_, Outcome::Failed) | (Op::Renew { .. } | Op::Fence { .. }, Outcome::Unknown) => true,
            (Op::Acquire { .. }, Outcome::Unknown) => self.rules.refused_if_held,
            (_, Outcome::Answered(answer)) => answer == Answer::Refused && !self.rules.refused_if_held,
            (_, Outcome::Unknown) => false,
        }
    }

    fn is_fuzzy(&self, index: u32) -> bool {
        let call = self.call(index);
        matches!(call.op, Op::Acquire { .. }) && !matches!(call.outcome, Outcome::Answered(_))
    }

    fn send(&mut self, index: u32) {
        if self.is_fuzzy(index) {
            self.failing += 1;
            self.excused.extend(self.running.iter().copied());
        } else if self.failing > 0 {
            self.excused.insert(index);
        }
        if !self.is_void(index) {
            self.running.insert(index);
            let mut configurations = std::mem::take(&mut self.configurations);
            configurations.iter_mut().for_each(|configuration| self.settle(configuration));
            self.keep(configurations);
        }
    }

    /// False if no configuration explains the answer.
    fn answer(&mut self, index: u32) -> bool {
        self.failing -= usize::from(self.is_fuzzy(index));
        let is_excused = self.excused.remove(&index) && self.known(index) == Some(Answer::Refused);
        if !self.running.contains(&index) {
            return true;
        }
        let is_optional = self.known(index).is_none() || is_excused;
        let mut next = Vec::new();
        for configuration in &self.configurations {
            let is_done = configuration.done.contains(&index);
            if is_done || is_optional {
                next.push(configuration.clone());
            }
            // A call whose answer was lost takes effect now or never.
            if !is_done && !is_excused {
                next.extend(self.explain_by(configuration, index));
            }
        }
        if next.is_empty() {
            return false;
        }
        self.running.remove(&index);
        self.keep(next);
        true
    }

    /// All ways in which this call takes effect now, with the running calls that have to do so before it.
    fn explain_by(&self, from: &Configuration, index: u32) -> Vec<Configuration> {
        let mut found = Vec::new();
        let (mut seen, mut open) = (HashSet::from([from.clone()]), vec![from.clone()]);
        while let Some(configuration) = open.pop() {
            if configuration.done.contains(&index) {
                found.push(configuration);
                continue;
            }
            found.extend(self.take_effect(&configuration, index));
            let before = self.running.iter().filter(|other| self.may_help(**other, index));
            let steps = before.filter_map(|other| self.take_effect(&configuration, *other));
            open.extend(steps.filter(|step| seen.insert(step.clone())));
        }
        found
    }

    /// Whether a call can make the other one possible that it precedes.
    fn may_help(&self, other: u32, index: u32) -> bool {
        let is_grant = granted(self.call(other)).is_some() || self.is_fuzzy(other);
        let (one, two) = (self.call(other).op, self.call(index).op);
        let is_revocation = one == Op::Revoke;
        match (two, self.known(index)) {
            (Op::Acquire { .. }, Some(Answer::Granted(_)) | None) => {
                is_revocation || is_grant && self.rules.tokens_rise
            }
            (Op::Acquire { .. }, _) => is_grant,
            (Op::Revoke, _) => is_revocation || is_grant,
            (Op::Renew { token, .. } | Op::Fence { token, .. } | Op::Release { token }, Some(Answer::Stale)) => {
                is_grant || is_revocation || one == Op::Release { token }
            }
            _ => false,
        }
    }

    /// The configuration after this call, if it can take effect there.
    fn take_effect(&self, configuration: &Configuration, index: u32) -> Option<Configuration> {
        if configuration.done.contains(&index) {
            return None;
        }
        let call = self.call(index);
        let mut next = configuration.clone();
        if let Op::Acquire { shared, .. } = call.op {
            // A release of a term that the grant replaces must come before it.
            for other in self.running.iter().copied().filter(|other| !configuration.done.contains(other)) {
                if next.state.makes_room(self.call(other), shared) && self.known(other) != Some(Answer::Stale) {
                    next.state = next.state.remove(self.call(other));
                    next.done.insert(other);
                }
            }
        }
        if call.op == Op::Revoke {
            // A release of a term that the revocation ends must come before it.
            let is_earlier = |other: &u32| match (self.call(*other).op, self.known(*other)) {
                (Op::Release { token }, Some(Answer::Done)) => next.state.has(token),
                _ => false,
            };
            let earlier: Vec<u32> = self.running.iter().copied().filter(is_earlier).collect();
            next.done.extend(earlier);
        }
        next.state = match self.known(index) {
            Some(answer) => next.state.apply(call, answer, self.rank(index))?,
            None if matches!(call.op, Op::Acquire { .. }) => {
                // It may take effect again: to count who has would take all subsets of the calls that a crash has lost.
                next.state = next.state.grant_unknown(call, self.returned(index))?;
                self.settle(&mut next);
                return Some(next);
            }
            None => next.state.remove(call),
        };
        next.done.insert(index);
        self.settle(&mut next);
        Some(next)
    }

    /// Lets the calls take effect that change no other's answer.
    fn settle(&self, configuration: &mut Configuration) {
        for index in self.running.iter().copied() {
            let is_eager = match (self.call(index).op, self.known(index)) {
                (_, None) => false,
                (Op::Renew { .. } | Op::Fence { .. }, _) | (_, Some(Answer::Refused | Answer::Stale)) => true,
                // Of a session that holds nothing.
                (Op::End, _) => configuration.state.remove(self.call(index)) == configuration.state,
                _ => false,
            };
            if !is_eager || configuration.done.contains(&index) {
                continue;
            }
            let answer = self.known(index).expect("only known answers are eager");
            if let Some(state) = configuration.state.apply(self.call(index), answer, None) {
                configuration.state = state;
                configuration.done.insert(index);
            }
        }
    }

    /// Forgets calls that run no more, and those of sessions that never end if they have taken effect everywhere.
    fn keep(&mut self, configurations: Vec<Configuration>) {
        let is_done = |index: &u32| configurations.iter().all(|configuration| configuration.done.contains(index));
        let calls = self.calls;
        self.running.retain(|index| calls[*index as usize].returned < NEVER || !is_done(index));
        let mut seen = HashSet::new();
        for mut configuration in configurations {
            configuration.done.retain(|index| self.running.contains(index));
            seen.insert(configuration);
        }
        self.configurations = seen.into_iter().collect();
    }

    fn force(&mut self, index: u32) {
        let answer = self.known(index).expect("only known answers can be wrong");
        let mut next = self.configurations.clone();
        for configuration in &mut next {
            configuration.state = configuration.state.force(self.call(index), answer, self.rank(index));
            self.settle(configuration);
        }
        self.running.remove(&index);
        self.keep(next);
    }

    fn explain(&self, index: u32) -> String {
        let states: Vec<&State> =
            self.configurations.iter().take(3).map(|configuration| &configuration.state).collect();
        let running: Vec<&Call> = self.running.iter().take(8).map(|index| self.call(*index)).collect();
        format!("{:?}, where the state is {states:?} and these run: {running:?}", self.call(index))
    }
}

fn granted(call: &Call) -> Option<Token> {
    match call.outcome {
        Outcome::Answered(Answer::Granted(token)) => Some(token),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
