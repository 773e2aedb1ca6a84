//! Explores a space to its end, breadth first, so that the first counterexample is a shortest one.
//!
//! Not by stateright 0.31: of the counterexamples that it finds close to each other it keeps the last, which is not always
//! a shortest one, and its web server cannot be left out.

use super::rules::{Rule, Rules};
use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How far a space goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Small,
    /// For a soak.
    Large,
}

/// A name, and whether a state is the one.
pub type Goal<State> = (&'static str, fn(&State) -> bool);

/// The states of a room that its rules in force allow.
pub trait Space {
    type Rule: Rule;
    type State: Clone + Debug + Hash;
    type Action: Copy + Debug;

    fn with(rules: Rules<Self::Rule>, size: Size) -> Self;
    fn begin(&self) -> Vec<Self::State>;
    /// What could be done, whether the rules allow it or not.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;
    /// The state after an action; `None` if a rule in force forbids it, or it is not possible.
    fn next(&self, state: &Self::State, action: Self::Action) -> Option<Self::State>;
    /// The promise that a state breaks.
    fn broken(&self, state: &Self::State) -> Option<&'static str>;
    /// States that an exploration must reach, so that it shows something.
    fn goals(&self) -> Vec<Goal<Self::State>>;
    /// The beginning and a step, in words.
    fn begin_text(&self, state: &Self::State) -> String;
    fn step_text(&self, before: &Self::State, action: Self::Action, after: &Self::State) -> String;
}

/// What an exploration has found.
#[derive(Debug)]
pub struct Found {
    pub states: usize,
    /// No state is left that was not looked at.
    pub is_complete: bool,
    pub counterexample: Option<Counterexample>,
    pub missed_goals: Vec<&'static str>,
}

/// The shortest steps that break a promise.
#[derive(Debug)]
pub struct Counterexample {
    pub broken: &'static str,
    /// A line for the beginning and for each step.
    pub lines: Vec<String>,
}

impl Counterexample {
    pub fn steps(&self) -> usize {
        self.lines.len() - 1
    }
}

/// Explores until a promise is broken, or until there are no more states.
pub fn explore<S: Space>(space: &S) -> Found {
    let mut known: HashSet<u64> = HashSet::new();
    // For each state that was found: the state before it and the action, or the number of a beginning.
    let mut origins: Vec<Result<(usize, S::Action), usize>> = Vec::new();
    let mut goals = space.goals();
    let is_new = |state: &S::State, known: &mut HashSet<u64>| known.insert(fingerprint(state));
    let mut frontier: Vec<(usize, S::State)> = Vec::new();
    for (number, state) in space.begin().into_iter().enumerate().filter(|(_, state)| is_new(state, &mut known)) {
        frontier.push((origins.len(), state));
        origins.push(Err(number));
    }
    while !frontier.is_empty() {
        let mut next_frontier = Vec::new();
        for (number, state) in frontier {
            if let Some(broken) = space.broken(&state) {
                let counterexample = Some(Counterexample { broken, lines: lines(space, &origins, number) });
                return Found { states: origins.len(), is_complete: false, counterexample, missed_goals: names(goals) };
            }
            goals.retain(|(_, is_reached)| !is_reached(&state));
            for action in space.actions(&state) {
                if let Some(next) = space.next(&state, action).filter(|next| is_new(next, &mut known)) {
                    next_frontier.push((origins.len(), next));
                    origins.push(Ok((number, action)));
                }
            }
        }
        frontier = next_frontier;
    }
    Found { states: origins.len(), is_complete: true, counterexample: None, missed_goals: names(goals) }
}

fn names<T>(goals: Vec<(&'static str, T)>) -> Vec<&'static str> {
    goals.into_iter().map(|(name, _)| name).collect()
}

/// The same in each run. Two of a million states have one fingerprint with a probability below 1 in 10 million.
fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// The steps to a state, in words.
fn lines<S: Space>(space: &S, origins: &[Result<(usize, S::Action), usize>], mut number: usize) -> Vec<String> {
    let mut actions = Vec::new();
    let beginning = loop {
        match origins[number] {
            Ok((before, action)) => {
                actions.push(action);
                number = before;
            }
            Err(beginning) => break beginning,
        }
    };
    let mut state = space.begin().swap_remove(beginning);
    let mut lines = vec![space.begin_text(&state)];
    for action in actions.into_iter().rev() {
        let next = space.next(&state, action).expect("the action was possible");
        lines.push(space.step_text(&state, action, &next));
        state = next;
    }
    lines
}
