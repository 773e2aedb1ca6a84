//! What a simulated server has promised about ids. The judge knows what the servers have done, and nothing of how they decide.

use super::disk::Entry;
use super::memory::{LAYOUTS, layout_of};
use super::rows::{Key, Row};
use idgen_core::snowflake::{IdSpace, SlotRun};
use std::rc::Rc;

/// What no id of a server may be at or below, and how far ahead ids may be.
#[derive(Clone, Debug, Default)]
pub struct Promised {
    lines: [Line; LAYOUTS.len()],
    /// Ids begin at this time at the latest, or within the drift of the clock. `None`: not known.
    pub floor_at_most_ms: Option<i64>,
    /// The latest time of an id of any layout, or of an observed one.
    pub reached_ms: i64,
    /// The latest mark that was written, or may have been.
    pub mark_ms: i64,
    /// Since the start, ids were made to begin here, on purpose.
    raised_ms: i64,
}

/// The ids of one layout.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    above: i64,
    /// How far ids may be ahead of the boot clock; `None` before the first one since the start. Grows only with ids that the
    /// limit allows.
    lead_ms: Option<i64>,
}

/// What an issue was decided by.
#[derive(Clone, Copy)]
pub struct Now {
    pub limit_ms: i64,
    pub boot_ms: i64,
    pub tick_ms: i64,
}

impl Promised {
    /// The ids that rows have: those of a server whose files are gone or were another one's.
    pub fn by_rows(entries: &[Rc<Entry>]) -> Self {
        let mut promised = Self::default();
        if let Some(entry) = entries.last() {
            for (layout, line) in promised.lines.iter_mut().enumerate() {
                if let Some(Row::Ids(id)) = entry.rows.get(&Key::Ids(layout)) {
                    line.above = *id;
                    let time_ms = layout_of(layout).unpack(*id).map_or(0, |parts| parts.time_ms);
                    promised.reached_ms = promised.reached_ms.max(time_ms);
                }
            }
        }
        promised
    }

    /// All ids of another server too.
    pub fn and(mut self, other: &Self) -> Self {
        for (line, other) in self.lines.iter_mut().zip(&other.lines) {
            line.above = line.above.max(other.above);
        }
        self.reached_ms = self.reached_ms.max(other.reached_ms);
        self
    }

    /// The server starts.
    pub fn restart(&mut self, floor_at_most_ms: Option<i64>) {
        self.lines.iter_mut().for_each(|line| line.lead_ms = None);
        (self.floor_at_most_ms, self.raised_ms) = (floor_at_most_ms, 0);
    }

    /// The server has issued ids since it started. So they have reached where they began.
    pub fn has_issued(&self) -> bool {
        self.lines.iter().any(|line| line.lead_ms.is_some())
    }

    /// The mark, or the latest time at which ids begin: past the label, where the file is lost. `None` if nothing can be said.
    pub fn known_ms(&self) -> Option<i64> {
        if self.has_issued() { Some(self.mark_ms) } else { self.floor_at_most_ms.map(|ms| ms.max(self.mark_ms)) }
    }

    /// All ids are made to begin at this time or later, on purpose. Others may be issued before that takes effect.
    pub fn raise(&mut self, floor_ms: i64) {
        self.reached_ms = self.reached_ms.max(floor_ms);
        self.raised_ms = self.raised_ms.max(floor_ms);
        self.floor_at_most_ms = self.floor_at_most_ms.map(|at_most_ms| at_most_ms.max(floor_ms));
    }

    /// The promise that these ids break.
    pub fn issue(&mut self, layout: usize, space: &IdSpace, run: &SlotRun, now: &Now) -> Option<String> {
        let line = &mut self.lines[layout];
        let last_slot = run.first + run.count - 1;
        let (first, last) = (space.id(run.first), space.id(last_slot));
        let time_ms = space.time_ms(last_slot);
        if first <= line.above {
            return Some(format!("S1, S2 or S4: id {first} is not above {}, which was issued before", line.above));
        }
        let floor_ms = self.floor_at_most_ms;
        let most_ms = line.lead_ms.or_else(|| Some(floor_ms? - now.boot_ms));
        let lead_ms = time_ms - now.boot_ms;
        line.above = last;
        self.reached_ms = self.reached_ms.max(time_ms);
        let is_ahead = time_ms > now.limit_ms && time_ms > self.raised_ms + now.tick_ms;
        line.lead_ms = Some(if is_ahead { most_ms.map_or(lead_ms, |most_ms| most_ms.min(lead_ms)) } else { lead_ms });
        // A line begins at a whole tick, and opens one more at once.
        let most_ms = most_ms.filter(|most_ms| is_ahead && lead_ms > most_ms + 2 * now.tick_ms)?;
        Some(format!("S3: an id is {} ms further ahead than it may be", lead_ms - most_ms))
    }
}
