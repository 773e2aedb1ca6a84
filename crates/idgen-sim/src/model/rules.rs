//! Named rules, and sets of them that are in force.

use std::fmt::Debug;
use std::marker::PhantomData;

/// The rules of a room: an enum.
pub trait Rule: Copy + Debug + Eq + 'static {
    const ALL: &'static [Self];

    /// The promise that the rule serves, by its name in docs/architecture.md.
    fn promise(self) -> &'static str;

    /// The rule in one sentence.
    fn text(self) -> &'static str;

    fn name(self) -> String {
        format!("{self:?}")
    }
}

/// The rules that are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules<R> {
    /// A bit for each rule of [`Rule::ALL`].
    bits: u32,
    of: PhantomData<R>,
}

impl<R: Rule> Rules<R> {
    pub fn all() -> Self {
        Self { bits: (1 << R::ALL.len()) - 1, of: PhantomData }
    }

    pub fn without(self, rule: R) -> Self {
        Self { bits: self.bits & !bit(rule), ..self }
    }

    pub fn has(self, rule: R) -> bool {
        self.bits & bit(rule) != 0
    }

    /// True if no rule in force is broken.
    pub fn allow(self, broken: &[R]) -> bool {
        !broken.iter().any(|rule| self.has(*rule))
    }
}

fn bit<R: Rule>(rule: R) -> u32 {
    1 << R::ALL.iter().position(|known| *known == rule).expect("ALL has every rule")
}

/// The rules whose condition does not hold.
pub fn broken<R: Rule>(conditions: &[(R, bool)]) -> Vec<R> {
    conditions.iter().filter(|(_, holds)| !holds).map(|(rule, _)| *rule).collect()
}
