//! Takes steps from the committed changes of a real server, and says which of them the rules do not allow.
//!
//! The changes are those of logical decoding, in the order of their commits. Locks are not decoded: that a take-over has
//! waited for a fence shows in the order of its commit and that of the write.

pub mod decoded;
pub mod fleet;
pub mod lease;
pub mod worker;

use std::collections::BTreeMap;
use std::fmt::Debug;

/// What a replay has seen.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of steps of each kind.
    pub steps: BTreeMap<&'static str, usize>,
    /// Steps that the rules do not allow.
    pub refused: Vec<String>,
}

impl Report {
    /// Counts a step, and notes the rules that it breaks.
    fn check<R: Debug>(&mut self, kind: &'static str, step: &impl Debug, broken: &[R]) {
        *self.steps.entry(kind).or_default() += 1;
        if !broken.is_empty() {
            self.refused.push(format!("{broken:?}: {step:?}"));
        }
    }

    pub fn count(&self, kind: &str) -> usize {
        self.steps.get(kind).copied().unwrap_or(0)
    }

    /// The counts of both, and the refused steps of both.
    pub fn and(mut self, other: Report) -> Report {
        other.steps.into_iter().for_each(|(kind, count)| *self.steps.entry(kind).or_default() += count);
        self.refused.extend(other.refused);
        self
    }
}
