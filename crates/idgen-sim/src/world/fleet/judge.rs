//! What a fleet has promised about values. The judge knows what the servers have done, and nothing of how they decide.

use idgen_core::segment::ValueRun;
use idgen_core::segment::fleet::ServerReport;
use std::collections::{BTreeMap, BTreeSet};

/// For each tag.
#[derive(Default)]
pub struct Judge {
    tags: [Tag; super::TAGS.len()],
    /// The last value of a row on a server.
    last: BTreeMap<(usize, i64), i64>,
}

#[derive(Default)]
struct Tag {
    /// The server that has drawn a value.
    drawn: BTreeMap<i64, usize>,
    /// What the coordinator has granted to servers, by their numbers.
    granted: Vec<(i64, ValueRun)>,
    /// A snapshot of the coordinator's disk was put back, which no server has noticed yet. Values up to this one are lost.
    lost_until: Option<i64>,
    /// Values granted since then, without what the documents promise.
    excepted: Vec<(i64, i64)>,
}

/// The row of values that are drawn.
pub struct Drawn {
    pub creation: i64,
    /// The durable `max_id`; `None` if the row was dropped.
    pub max_id: Option<i64>,
    /// The last value that was drawn before the call.
    pub above: Option<i64>,
}

impl Judge {
    /// A backend of the coordinator grants values to a server, which may have reported in the same transaction that values are
    /// lost.
    pub fn grants(&mut self, tag: usize, (server, has_noticed): (i64, bool), run: &ValueRun) {
        let tag = &mut self.tags[tag];
        tag.granted.push((server, *run));
        if !has_noticed && tag.lost_until.is_some_and(|lost| run.first <= lost) {
            tag.excepted.push((run.first, run.last()));
        }
    }

    /// The coordinator takes values for its own sessions: those above the first of these, up to the second.
    pub fn draws_own_range(&mut self, tag: usize, (above, last): (i64, i64)) {
        let tag = &mut self.tags[tag];
        if tag.lost_until.is_some_and(|lost| above < lost) {
            tag.excepted.push((above + 1, last));
        }
    }

    /// A server that the coordinator knows has received more than it has granted.
    pub fn snapshot_is_noticed(&mut self, tag: usize) {
        self.tags[tag].lost_until = None;
    }

    /// A snapshot of the coordinator's disk is put back.
    pub fn snapshot(&mut self, tag: usize) {
        self.tags[tag].lost_until = Some(self.highest_used(tag));
    }

    /// The highest value that the coordinator has ever granted to a server; -1 without one.
    pub fn highest(&self, tag: usize) -> i64 {
        self.tags[tag].granted.iter().map(|(_, run)| run.last()).max().unwrap_or(-1)
    }

    /// True if a server that rows do not know has got values above their `max_id`.
    pub fn is_unknown(&self, tag: usize, max_id: i64, reports: &[ServerReport]) -> bool {
        let known: BTreeSet<i64> = reports.iter().map(|report| report.server).collect();
        self.tags[tag].granted.iter().any(|(server, run)| !known.contains(server) && run.last() > max_id)
    }

    /// The same of all values, also those that were drawn at the coordinator.
    pub fn highest_used(&self, tag: usize) -> i64 {
        let is_shared = |(_, server): &(&i64, &usize)| **server < super::COORDINATORS;
        let drawn = self.tags[tag].drawn.iter().rev().find(is_shared).map_or(-1, |(value, _)| *value);
        self.highest(tag).max(drawn)
    }

    /// The coordinator has fallen back to this `max_id`. It has forgotten what its own sessions have drawn above.
    pub fn falls_back(&mut self, tag: usize, max_id: i64, coordinators: usize) {
        self.tags[tag].lost_until = None;
        self.tags[tag].drawn.retain(|value, server| *server >= coordinators || *value <= max_id);
        self.last.retain(|(server, _), _| *server >= coordinators);
    }

    /// The highest value of a row of this number on a server so far.
    pub fn last(&self, server: usize, creation: i64) -> Option<i64> {
        self.last.get(&(server, creation)).copied()
    }

    /// A session draws values, which rise above an earlier one. The promise that these break.
    pub fn draws(&mut self, server: usize, tag: usize, run: &ValueRun, row: &Drawn) -> Option<String> {
        let Drawn { creation, max_id, above } = *row;
        let Tag { drawn, excepted, .. } = &mut self.tags[tag];
        let mut broken = None;
        for at in 0..run.count as i64 {
            let value = run.first + at * run.stride;
            let is_excepted = excepted.iter().any(|(first, last)| (*first..=*last).contains(&value));
            if let Some(other) = drawn.insert(value, server).filter(|_| !is_excepted) {
                broken.get_or_insert(format!("G1: value {value} was drawn on server {other} before"));
            }
        }
        if max_id.is_some_and(|max_id| run.last() > max_id) {
            broken.get_or_insert(format!("G2: value {} is above max_id {max_id:?}, which is durable", run.last()));
        }
        if above.is_some_and(|above| run.first <= above) {
            broken.get_or_insert(format!("G3: value {} is drawn after {above:?}", run.first));
        }
        let last = self.last.entry((server, creation)).or_insert(run.last());
        *last = run.last().max(*last);
        broken
    }
}
