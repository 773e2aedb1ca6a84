//! A pool of one worker id, two holders, a coordinator, and one fault.
//!
//! Rectangles are as long as the rules allow, and begin as early. A holder that makes no step is paused or cut off. There
//! are no leases here: rectangles keep holders apart without them.

use super::{Bounds, Rectangle, Rule, Step};
use crate::model::explore::{self, Goal, Size};
use crate::model::rules::Rules;

/// A ttl of one tick, and a lead of one.
const LONGEST: i64 = 2;
/// The coordinator's clock at first.
const START: i64 = 3;
/// How far the clock of the synchronous standby is behind.
const BEHIND: i64 = 3;

pub struct Space {
    rules: Rules<Rule>,
    last_tick: i64,
    /// Id times end here.
    end: i64,
    last_token: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A synchronous standby is promoted, whose clock is behind.
    FailoverToSynchronous,
    /// A standby that lags is promoted.
    FailoverToLagging,
    /// The coordinator's directory is copied, and both run.
    CopiedCoordinator,
    /// A holder is copied with its memory, and both run.
    CopiedMemory,
    /// A holder is started from a copy of another one's files.
    CopiedFiles,
}

const FAULTS: [Fault; 5] = [
    Fault::FailoverToSynchronous,
    Fault::FailoverToLagging,
    Fault::CopiedCoordinator,
    Fault::CopiedMemory,
    Fault::CopiedFiles,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Coordinator {
    row: Option<Rectangle>,
    drawn: i64,
    floor: Option<i64>,
    first_token: i64,
    is_copy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Holder {
    /// What it was told.
    rectangle: Rectangle,
    /// The end that is confirmed.
    certain: i64,
    /// After its last id.
    next: i64,
    is_released: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    fault: Fault,
    has_failed: bool,
    /// By the coordinator's clock.
    now: i64,
    coordinators: [Option<Coordinator>; 2],
    standby: Option<Rectangle>,
    holders: [Option<Holder>; 2],
    /// A bit for each id time that was used.
    used: u32,
    /// Copies of memory may use the same times before this one.
    shared_until: i64,
    has_used_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Grant { at: usize, to: usize },
    Renew { at: usize, holder: usize },
    Confirm { holder: usize },
    Use { holder: usize, time: i64 },
    Release { at: usize, holder: usize },
    Replicate,
    Fail,
}

impl State {
    fn begin(fault: Fault) -> Self {
        let coordinator = Coordinator { row: None, drawn: 0, floor: None, first_token: 0, is_copy: false };
        Self {
            fault,
            has_failed: false,
            now: START,
            coordinators: [Some(coordinator), None],
            standby: None,
            holders: [None; 2],
            used: 0,
            shared_until: 0,
            has_used_twice: false,
        }
    }

    fn bounds(&self, at: usize) -> Option<Bounds> {
        let Coordinator { floor, first_token, is_copy, .. } = self.coordinators[at]?;
        Some(Bounds { now: self.now, longest: LONGEST, floor, first_token, is_copy })
    }

    /// The end that counts at once: only a synchronous standby has to be waited for.
    fn certain(&self, not_after: i64, before: i64) -> i64 {
        if self.fault == Fault::FailoverToSynchronous && !self.has_failed { before } else { not_after }
    }

    fn fail(&mut self) -> Option<bool> {
        self.has_failed = true;
        let origin = self.coordinators[0]?;
        match self.fault {
            Fault::FailoverToSynchronous | Fault::FailoverToLagging => {
                self.now += if self.fault == Fault::FailoverToSynchronous { 1 - BEHIND } else { 1 };
                let (first_token, floor) = (origin.drawn + 1, Some(self.now + LONGEST));
                self.coordinators[0] =
                    Some(Coordinator { row: self.standby, floor, first_token, drawn: first_token, ..origin });
            }
            Fault::CopiedCoordinator => self.coordinators[1] = Some(Coordinator { is_copy: true, ..origin }),
            Fault::CopiedMemory => {
                let holder = self.holders[0].filter(|_| self.holders[1].is_none())?;
                self.holders[1] = Some(holder);
                self.shared_until = holder.rectangle.not_after;
            }
            Fault::CopiedFiles => {
                let holder = self.holders[0].filter(|_| self.holders[1].is_none())?;
                self.holders[1] = Some(Holder { next: holder.rectangle.not_before, ..holder });
                return Some(true);
            }
        }
        Some(false)
    }
}

impl Space {
    fn take(&self, state: &State, action: Action) -> Option<(Option<Step>, State)> {
        let mut next = state.clone();
        let step = match action {
            Action::Tick => {
                next.now += 1;
                None
            }
            Action::Grant { at, to } => {
                let Coordinator { row, drawn, .. } = state.coordinators[at]?;
                let bounds = state.bounds(at)?;
                let token = Some(drawn + 1).filter(|token| *token <= self.last_token)?;
                let granted =
                    self.widest(|granted| Step::Grant { row, granted: Rectangle { token, ..granted }, bounds })?;
                let granted = Rectangle { token, ..granted };
                let coordinator = next.coordinators[at].as_mut()?;
                (coordinator.row, coordinator.drawn) = (Some(granted), token);
                let certain = state.certain(granted.not_after, granted.not_before);
                next.holders[to] =
                    Some(Holder { rectangle: granted, certain, next: granted.not_before, is_released: false });
                Some(Step::Grant { row, granted, bounds })
            }
            Action::Renew { at, holder } => {
                let known = next.holders[holder].as_mut()?;
                let row = state.coordinators[at]?.row.filter(|row| row.token == known.rectangle.token)?;
                let (told, bounds) = (known.rectangle.not_after, state.bounds(at)?);
                let renew = |not_after| Step::Renew { row, told, not_after, bounds };
                let mut ends = (row.not_after + 1..=self.end).rev();
                let not_after = ends.find(|end| self.rules.allow(&renew(*end).broken()))?;
                known.rectangle.not_after = not_after;
                known.certain = state.certain(not_after, known.certain);
                next.coordinators[at].as_mut()?.row = Some(Rectangle { not_after, ..row });
                Some(renew(not_after))
            }
            Action::Confirm { holder } => {
                let known = next.holders[holder].as_mut()?;
                let has_it = state.standby.is_some_and(|row| row.token == known.rectangle.token);
                known.certain = state.standby.filter(|_| has_it)?.not_after.min(known.rectangle.not_after);
                None
            }
            Action::Use { holder, time } => {
                let known = next.holders[holder].as_mut()?;
                let Holder { rectangle, certain, is_released, .. } = *known;
                known.next = time + 1;
                next.has_used_twice = state.used & 1 << time != 0 && time >= state.shared_until;
                next.used |= 1 << time;
                Some(Step::Use { rectangle, certain, time, is_released })
            }
            Action::Release { at, holder } => {
                let known = next.holders[holder].as_mut()?;
                let row = state.coordinators[at]?.row.filter(|row| row.token == known.rectangle.token)?;
                let until = known.next.clamp(row.not_before, row.not_after);
                known.is_released = true;
                next.coordinators[at].as_mut()?.row = Some(Rectangle { not_after: until, ..row });
                Some(Step::Release { row, told: known.rectangle.not_after })
            }
            Action::Replicate => {
                next.standby = state.coordinators[0]?.row;
                None
            }
            Action::Fail => next.fail()?.then_some(Step::Start { keeps_rectangle: true }),
        };
        Some((step, next))
    }

    /// The earliest beginning, from the first tick on, and the latest end that the rules allow.
    fn widest(&self, step: impl Fn(Rectangle) -> Step) -> Option<Rectangle> {
        let rectangle = |not_before, not_after| Rectangle { token: 0, not_before, not_after };
        let allows = |rectangle: &Rectangle| self.rules.allow(&step(*rectangle).broken());
        let first = (START..self.end).map(|begin| rectangle(begin, begin + 1)).find(allows)?;
        (first.not_before + 1..=self.end).rev().map(|end| rectangle(first.not_before, end)).find(allows)
    }
}

impl explore::Space for Space {
    type Rule = Rule;
    type State = State;
    type Action = Action;

    fn with(rules: Rules<Rule>, size: Size) -> Self {
        let (last_tick, end, last_token) = if size == Size::Small { (START + 2, 8, 3) } else { (START + 2, 9, 4) };
        Self { rules, last_tick, end, last_token }
    }

    fn begin(&self) -> Vec<State> {
        FAULTS.into_iter().map(State::begin).collect()
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        if state.now < self.last_tick {
            actions.push(Action::Tick);
        }
        if !state.has_failed {
            actions.push(Action::Fail);
            let has_standby = matches!(state.fault, Fault::FailoverToSynchronous | Fault::FailoverToLagging);
            if has_standby && state.coordinators[0].is_some_and(|origin| origin.row != state.standby) {
                actions.push(Action::Replicate);
            }
        }
        for (holder, known) in state.holders.iter().enumerate() {
            let at = (0..2).filter(|at| state.coordinators[*at].is_some());
            actions.extend(at.clone().map(|at| Action::Grant { at, to: holder }));
            let Some(known) = known else { continue };
            actions.extend((known.next..self.end).map(|time| Action::Use { holder, time }));
            if !known.is_released {
                actions.extend(at.flat_map(|at| [Action::Renew { at, holder }, Action::Release { at, holder }]));
            }
            if known.certain < known.rectangle.not_after {
                actions.push(Action::Confirm { holder });
            }
        }
        actions
    }

    fn next(&self, state: &State, action: Action) -> Option<State> {
        let (step, next) = self.take(state, action)?;
        step.is_none_or(|step| self.rules.allow(&step.broken())).then(|| next.in_normal_form())
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        state.has_used_twice.then_some("W1: one time of the worker id is in two ids")
    }

    fn goals(&self) -> Vec<Goal<State>> {
        fn last(state: &State) -> Option<Rectangle> {
            state.coordinators[0].and_then(|origin| origin.row)
        }
        vec![
            ("both holders have a rectangle that is not over", |state| {
                state.holders.iter().all(|holder| holder.is_some_and(|known| known.next < known.certain))
            }),
            ("a holder uses its rectangle after the next one is granted", |state| {
                let is_earlier = |token| last(state).is_some_and(|row| row.token > token);
                let late =
                    |known: &Holder| is_earlier(known.rectangle.token) && known.next > known.rectangle.not_before;
                state.holders.iter().flatten().any(late)
            }),
            ("a promoted coordinator lacks a grant that is in use", |state| {
                state.fault == Fault::FailoverToLagging && state.has_failed && last(state).is_none() && state.used != 0
            }),
            ("a copied coordinator is asked", |state| state.coordinators[1].is_some() && state.used != 0),
            ("two copies of a holder run", |state| state.shared_until > 0),
        ]
    }

    fn begin_text(&self, state: &State) -> String {
        let fault = match state.fault {
            Fault::FailoverToSynchronous => format!(", a synchronous standby whose clock is {BEHIND} ticks behind"),
            Fault::FailoverToLagging => ", an asynchronous standby".into(),
            _ => String::new(),
        };
        format!("one worker id; a rectangle ends at most {LONGEST} ticks ahead; holders A and B{fault}")
    }

    fn step_text(&self, before: &State, action: Action, after: &State) -> String {
        let name = |holder: usize| ["A", "B"][holder];
        let by = |at: usize| ["the coordinator", "the copy"][at];
        let times = |holder: usize| {
            let Rectangle { not_before, not_after, .. } = after.holders[holder].expect("it has one").rectangle;
            format!("id times {not_before} to {}", not_after - 1)
        };
        let text = match action {
            Action::Tick => "time passes".into(),
            Action::Grant { at, to } => format!("{} grants {} {}", by(at), name(to), times(to)),
            Action::Renew { at, holder } => format!("{} renews for {}: {}", by(at), name(holder), times(holder)),
            Action::Confirm { holder } => format!("{} hears that the standby has its rectangle", name(holder)),
            Action::Use { holder, time } => format!("{} makes an id of time {time}", name(holder)),
            Action::Release { at, holder } => format!("{} releases at {}", name(holder), by(at)),
            Action::Replicate => "the standby has all rows".into(),
            Action::Fail => match before.fault {
                Fault::FailoverToSynchronous | Fault::FailoverToLagging => "the standby is promoted".into(),
                Fault::CopiedCoordinator => "the coordinator's directory is copied, and both run".into(),
                Fault::CopiedMemory => "A is copied with its memory to B, and both run".into(),
                Fault::CopiedFiles => "B starts from a copy of A's files".into(),
            },
        };
        format!("{text} (now {})", after.now)
    }
}

impl State {
    /// Forgets what no later step can tell apart.
    fn in_normal_form(mut self) -> Self {
        if self.has_failed {
            self.standby = None;
        }
        self
    }
}
