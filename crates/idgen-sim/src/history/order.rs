//! Ids: none is issued twice, and they rise in real time. If one call returned before another was sent, the first one's ids
//! are below the second one's. Takes time n log n.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Ns, Verdict};

pub const TWICE: &str = "an id is issued twice";
pub const WITHIN: &str = "the ids of a call do not rise";
pub const ORDER: &str = "an id is not above one that was received before its call was sent";
pub const BOUND: &str = "a value is above the durable bound";

/// The ids that one call has received, in the order of their issue. A call whose connection was lost has received ids too:
/// it returned when the last of them arrived.
#[derive(Clone, Debug)]
pub struct Draw<T> {
    pub sent: Ns,
    pub returned: Ns,
    pub ids: Vec<T>,
}

/// All rules, for one sequence of ids.
pub fn judge<T: Ord + Copy + Debug>(draws: &[Draw<T>]) -> Verdict {
    let mut verdict = unique(draws);
    rising(draws, &mut verdict);
    verdict
}

/// No id twice, in any order: values that several servers draw from one segment.
pub fn unique<T: Ord + Copy + Debug>(draws: &[Draw<T>]) -> Verdict {
    let mut ids: Vec<T> = draws.iter().flat_map(|draw| draw.ids.iter().copied()).collect();
    ids.sort_unstable();
    let mut verdict = Verdict::of(ids.len());
    for pair in ids.windows(2).filter(|pair| pair[0] == pair[1]) {
        verdict.report(TWICE, || format!("{:?}", pair[0]));
    }
    verdict
}

fn rising<T: Ord + Copy + Debug>(draws: &[Draw<T>], verdict: &mut Verdict) {
    for draw in draws {
        for pair in draw.ids.windows(2).filter(|pair| pair[0] >= pair[1]) {
            verdict.report(WITHIN, || format!("{:?} after {:?}, sent at {}", pair[1], pair[0], draw.sent));
        }
    }
    let drawn = || draws.iter().filter(|draw| !draw.ids.is_empty());
    let mut by_sent: Vec<&Draw<T>> = drawn().collect();
    by_sent.sort_by_key(|draw| draw.sent);
    let mut by_returned: Vec<&Draw<T>> = drawn().collect();
    by_returned.sort_by_key(|draw| draw.returned);
    let mut before = by_returned.into_iter().peekable();
    let mut greatest: Option<(T, Ns)> = None;
    for draw in by_sent {
        // An answer that arrived in the nanosecond of the sending is not earlier.
        while let Some(earlier) = before.next_if(|earlier| earlier.returned < draw.sent) {
            greatest = greatest.max(earlier.ids.iter().max().map(|id| (*id, earlier.returned)));
        }
        for id in &draw.ids {
            let Some((earlier, returned)) = greatest.filter(|(earlier, _)| id <= earlier) else { continue };
            let case = || format!("{id:?}, sent at {}, after {earlier:?}, received at {returned}", draw.sent);
            verdict.report(ORDER, case);
        }
    }
}

/// A read of how far values may go, such as `max_id` of a segment.
#[derive(Clone, Debug)]
pub struct Bound<T> {
    pub sent: Ns,
    pub bound: T,
}

/// A bound that is read after a value was received covers this value, because it is durable before the value is used.
pub fn judge_bounds<T: Ord + Copy + Debug>(draws: &[Draw<T>], bounds: &[Bound<T>]) -> Verdict {
    let mut verdict = Verdict::of(bounds.len());
    let mut greatest = BTreeMap::new();
    let mut highest = None;
    let mut by_returned: Vec<&Draw<T>> = draws.iter().collect();
    by_returned.sort_by_key(|draw| draw.returned);
    for draw in by_returned {
        highest = highest.max(draw.ids.iter().max().copied());
        greatest.insert(draw.returned, highest);
    }
    for Bound { sent, bound } in bounds {
        let received = greatest.range(..sent).next_back().and_then(|(_, highest)| *highest);
        if let Some(id) = received.filter(|id| id > bound) {
            verdict.report(BOUND, || format!("{id:?} was received before {bound:?} was read at {sent}"));
        }
    }
    verdict
}

#[cfg(test)]
mod tests;
