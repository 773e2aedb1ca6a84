//! A tag's row in `idgen.segment`: which settings are valid, which values come next, and how many to take at once.

use super::ValueRun;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The most values of one range. They last a while, and cannot overflow anything.
pub const MAX_STEP: i64 = 1_000_000_000;

/// The longest tag in bytes, as for every name in idgen.
pub const MAX_TAG_BYTES: usize = 255;

/// The settings of a tag. The table's constraints repeat the limits.
#[derive(Clone, Copy, Debug)]
pub struct TagDefinition {
    /// Values are above this.
    pub max_id: i64,
    pub step: i64,
    pub min_step: i64,
    pub max_step: i64,
    pub target_us: i64,
    pub stride: i64,
    pub residue: i64,
    pub upper_bound: i64,
}

/// A setting that is out of range.
#[derive(Debug, PartialEq, Eq)]
pub struct TagDefinitionError {
    pub field: &'static str,
    pub value: i64,
    rule: Rule,
}

#[derive(Debug, PartialEq, Eq)]
enum Rule {
    Between(i64, i64),
    AboveZeroMicroseconds,
}

impl TagDefinition {
    /// Is the definition valid? A tag that has reached its upper bound is.
    pub fn check(&self) -> Result<(), TagDefinitionError> {
        // A value is never negative, and this is below the first one.
        between("max_id", self.max_id, -1, i64::MAX)?;
        // Before the limits: their defaults are derived from it.
        between("step", self.step, 1, MAX_STEP)?;
        between("min_step", self.min_step, 1, MAX_STEP)?;
        between("max_step", self.max_step, self.min_step, MAX_STEP)?;
        between("step", self.step, self.min_step, self.max_step)?;
        between("stride", self.stride, 1, i64::from(i32::MAX))?;
        between("residue", self.residue, 0, self.stride - 1)?;
        between("upper_bound", self.upper_bound, self.max_id, i64::MAX)?;
        let (field, value, rule) = ("target_duration", self.target_us, Rule::AboveZeroMicroseconds);
        if value > 0 { Ok(()) } else { Err(TagDefinitionError { field, value, rule }) }
    }

    /// The same for a new tag whose values begin at `start`, and which must have room for one.
    pub fn check_new(&self, start: i64) -> Result<(), TagDefinitionError> {
        between("start", start, 0, i64::MAX)?;
        between("upper_bound", self.upper_bound, start, i64::MAX)?;
        self.check()
    }

    pub fn allocation(&self) -> Allocation {
        let Self { max_id, stride, residue, upper_bound, .. } = *self;
        Allocation { max_id, stride, residue, upper_bound }
    }
}

fn between(field: &'static str, value: i64, least: i64, most: i64) -> Result<(), TagDefinitionError> {
    let rule = Rule::Between(least, most);
    if (least..=most).contains(&value) { Ok(()) } else { Err(TagDefinitionError { field, value, rule }) }
}

impl fmt::Display for TagDefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Rule::Between(least, most) => write!(f, "It must be {least} to {most}."),
            Rule::AboveZeroMicroseconds => write!(f, "It must be above 0 microseconds."),
        }
    }
}

/// The part of a definition that determines the next values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The highest value that any server may have handed out, or one below the first.
    pub max_id: i64,
    /// Values are `residue` modulo `stride`.
    pub stride: i64,
    pub residue: i64,
    /// No value is above this.
    pub upper_bound: i64,
}

impl Allocation {
    /// The next `want` values, or as many as there are up to the upper bound; `None` if there are none, or none are wanted.
    pub fn next(&self, want: u64) -> Option<ValueRun> {
        // Wider than a value, so that nothing overflows near the ends.
        let (stride, bound) = (i128::from(self.stride), i128::from(self.upper_bound));
        let above = i128::from(self.max_id) + 1;
        let first = above + (i128::from(self.residue) - above).rem_euclid(stride);
        if first > bound || want == 0 {
            return None;
        }
        let count = i128::from(want).min((bound - first) / stride + 1);
        // `first` lies between two values, and `count` is at most `want`: both fit.
        Some(ValueRun { first: first as i64, count: count as u64, stride: self.stride })
    }
}

/// The step after one that was used up in `lifetime`: twice as large if that was shorter than the target, half as large
/// if it was at least twice the target. In between it stays, so that a steady rate does not make it oscillate.
///
/// The rule is that of Leaf's segments (Meituan-Dianping).
pub fn next_step(step: i64, lifetime: Duration, target: Duration, limits: RangeInclusive<i64>) -> i64 {
    let wanted = if lifetime < target {
        step.saturating_mul(2)
    } else if lifetime >= target.saturating_mul(2) {
        step / 2
    } else {
        step
    };
    wanted.clamp(*limits.start(), *limits.end())
}
