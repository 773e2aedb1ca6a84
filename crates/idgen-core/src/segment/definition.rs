//! What a tag may be: the limits of its settings, which the table's constraints repeat.

use super::step::MAX_STEP;
use std::fmt;

/// The settings of a tag as they are given.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
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

/// A setting that cannot be: its name, its value, and what it has to be.
#[derive(Debug, PartialEq, Eq)]
pub struct DefinitionError {
    pub field: &'static str,
    pub value: i64,
    rule: Rule,
}

#[derive(Debug, PartialEq, Eq)]
enum Rule {
    Between(i64, i64),
    AboveZeroMicroseconds,
}

/// The longest tag in bytes, as for every name in idgen.
pub const MAX_TAG_BYTES: usize = 255;

impl Definition {
    /// Can the tag be? One that has come to its bound can.
    pub fn check(&self) -> Result<(), DefinitionError> {
        // A value is never negative, so the one below the first is -1 at least.
        between("start", self.max_id.saturating_add(1), 0, i64::MAX)?;
        // First by itself: the limits of a new tag are made from it.
        between("step", self.step, 1, MAX_STEP)?;
        between("min_step", self.min_step, 1, MAX_STEP)?;
        between("max_step", self.max_step, self.min_step, MAX_STEP)?;
        between("step", self.step, self.min_step, self.max_step)?;
        between("stride", self.stride, 1, i64::from(i32::MAX))?;
        between("residue", self.residue, 0, self.stride - 1)?;
        between("upper_bound", self.upper_bound, self.max_id, i64::MAX)?;
        match self.target_us > 0 {
            true => Ok(()),
            false => {
                let (field, value) = ("target_duration", self.target_us);
                Err(DefinitionError { field, value, rule: Rule::AboveZeroMicroseconds })
            }
        }
    }

    /// Can a new tag be so, with values to hand out?
    pub fn check_new(&self) -> Result<(), DefinitionError> {
        between("upper_bound", self.upper_bound, self.max_id.saturating_add(1), i64::MAX)?;
        self.check()
    }
}

fn between(field: &'static str, value: i64, least: i64, most: i64) -> Result<(), DefinitionError> {
    let rule = Rule::Between(least, most);
    if (least..=most).contains(&value) { Ok(()) } else { Err(DefinitionError { field, value, rule }) }
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Rule::Between(least, most) => write!(f, "It must be {least} to {most}."),
            Rule::AboveZeroMicroseconds => write!(f, "It must be above 0 microseconds."),
        }
    }
}
