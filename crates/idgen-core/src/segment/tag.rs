//! A tag's row in `idgen.segment`: which settings are valid, which values come next, and how many to take at once.

use super::{TagKey, ValueRun};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The most values of one range. They last a while, and cannot overflow anything.
pub const MAX_STEP: i64 = 1_000_000_000;

/// The longest tag in bytes, as for every name in idgen.
pub const MAX_TAG_BYTES: usize = 255;

/// True for the bytes of a tag that can be stored.
pub fn is_valid_tag_len(bytes: usize) -> bool {
    (1..=MAX_TAG_BYTES).contains(&bytes)
}

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

/// The columns of a tag that is attached to a coordinator's, or was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The coordinator knows this server by this number. Stays after a detachment: a coordinator that falls back to an
    /// earlier state still knows it, and a tag that is attached again must report under it.
    pub server: Option<i64>,
    /// `None` unless the tag is attached.
    pub reserve_us: Option<i64>,
    /// The coordinator's tag that the last values came from. Empty if the tag was attached without ever having values.
    pub source: Option<String>,
    /// At a coordinator: the history under which the tag was last shared. Empty if that is not known.
    pub history: Option<String>,
    /// The highest value of the coordinator, while it has not heard that the tag was detached. Until it has, a tag that is
    /// attached again reports and receives nothing: its own values would look like grants that the coordinator has lost.
    pub received: Option<i64>,
}

impl Link {
    pub fn is_attached(&self) -> bool {
        self.reserve_us.is_some()
    }
}

#[derive(Clone, Debug)]
pub struct TagRow {
    pub key: TagKey,
    pub tag: String,
    /// Rises with each change after which values of the row before may not be drawn.
    pub version: i64,
    /// Created by the running transaction: no other session sees the row.
    pub created_here: bool,
    pub definition: TagDefinition,
    pub link: Link,
}

/// Why a row was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLocked {
    /// Another transaction has locked it.
    Busy,
    Gone,
}

/// The coordinator's tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Identifies it and its definition: after any change of them, servers discard what they hold.
    pub source: String,
    pub stride: i64,
    pub residue: i64,
}

impl TagRow {
    /// Attaches the tag, or gives it another reserve. `number` identifies it at the coordinator, unless it has a number. The
    /// first time, the step is free from then on. The numbers are the coordinator's.
    pub fn attach(&mut self, number: i64, reserve_us: i64) {
        let is_attached = self.link.is_attached();
        if !is_attached && self.link.source.is_none() {
            (self.definition.min_step, self.definition.max_step) = (1, MAX_STEP);
        }
        self.definition.upper_bound = i64::MAX;
        self.link.server.get_or_insert(number);
        self.link.reserve_us = Some(reserve_us);
        // What the ring holds is discarded with the version, and a report need not discard it.
        self.link.source.take_if(|_| !is_attached);
    }

    /// Detaches the tag. Its values stay those of the fleet, so it has none left.
    pub fn detach(&mut self) {
        let max_id = self.definition.max_id;
        self.definition.upper_bound = max_id;
        self.link.reserve_us = None;
        self.link.source.get_or_insert_default();
        self.link.received.get_or_insert(max_id);
    }

    /// True if the tag was attached, and has no values of its own since.
    pub fn is_detached(&self) -> bool {
        let TagDefinition { max_id, upper_bound, .. } = self.definition;
        self.link.source.is_some() && !self.link.is_attached() && max_id == upper_bound
    }

    /// True if values are asked for one by one only. Then they rise over all servers.
    pub fn is_in_order(&self) -> bool {
        self.link.is_attached() && self.definition.max_step == 1
    }

    /// Records values that this server has received: the last one, where they come from, and how many were asked for, within the
    /// limits of now. False if the tag was detached, also if it was attached again since.
    pub fn receive(&mut self, server: i64, last: i64, origin: &Origin, count: i64) -> bool {
        let Self { definition, link, .. } = self;
        let is_it = link.is_attached() && link.received.is_none() && link.server == Some(server);
        if is_it {
            definition.max_id = definition.max_id.max(last);
            (definition.stride, definition.residue) = (origin.stride, origin.residue);
            definition.step = count.clamp(definition.min_step, definition.max_step);
            link.source = Some(origin.source.clone());
        }
        is_it
    }

    pub fn basis(&self) -> Basis {
        let (allocation, is_attached) = (self.definition.allocation(), self.link.is_attached());
        Basis { allocation, is_attached, source: self.link.source.clone() }
    }
}

/// What the values of a ring depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    pub allocation: Allocation,
    pub is_attached: bool,
    pub source: Option<String>,
}

impl Basis {
    /// True if values of this row may be drawn under the new one, unless that has a higher `max_id`. The step applies from the
    /// next range on.
    pub fn keeps_values(&self, new: &Self) -> bool {
        let keeps_numbers = Allocation { max_id: new.allocation.max_id, ..self.allocation } == new.allocation;
        // A tag that was just attached has no values yet.
        let keeps_source = self.source.is_none() || self.source == new.source;
        keeps_numbers && self.is_attached == new.is_attached && keeps_source
    }

    /// True if the new row has another version, which ends the ring. An allocation may raise `max_id`.
    pub fn is_another_version(&self, new: &Self, is_allocation: bool) -> bool {
        !self.keeps_values(new) || !is_allocation && new.allocation.max_id != self.allocation.max_id
    }
}

/// A setting that is out of range.
#[derive(Debug, PartialEq, Eq)]
pub struct TagDefinitionError {
    pub field: &'static str,
    pub value: i64,
    pub rule: String,
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
        let (field, value, rule) = ("target_duration", self.target_us, "It must be above 0 microseconds.".to_owned());
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
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(TagDefinitionError { field, value, rule: format!("It must be {least} to {most}.") })
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
