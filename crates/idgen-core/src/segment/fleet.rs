//! Tags that a fleet of servers draws from: when their coordinator grants values.
//!
//! The coordinator can lose the last changes of its rows, by a failover to a standby that lags or by a restore. Then it
//! gets another *history*, a text that identifies the past of its database. Only the servers still know the values that
//! were granted in the lost part. So under another history the coordinator grants values only when every server has
//! reported the highest value that it has received, or the operator has decided.
//!
//! Two losses are beyond this. A server whose row was lost is unknown, and nothing waits for its report: before that,
//! the operator has to resume the tag above its values. And the values that the coordinator's own sessions have drawn
//! in the lost part are lost as those of a tag without a fleet.
//!
//! A caller reads the rows of a tag under a lock, calls a decision, and writes back the rows that it changed. While the
//! history is the tag's, the tag waits for no server and `max_id` covers all reports. Then the caller need not read the
//! rows of other servers than the one that calls, except to resume, and if that one has received more than `max_id`.

use super::ValueRun;
use super::tag::Allocation;

pub mod rows;

/// The rows of a tag at its coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTag {
    /// The history under which the coordinator may grant values. `None`: no server ever reported. Empty after a restore of
    /// the row, or if a tag of this name was dropped while it had servers: then their reports decide.
    pub history: Option<String>,
    pub allocation: Allocation,
    pub servers: Vec<ServerReport>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    pub server: i64,
    /// The highest value that the server has ever received.
    pub max_id: i64,
    /// The coordinator's history at the time of the report.
    pub history: String,
}

/// The answer to a request for values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Granted(ValueRun),
    /// These servers have yet to report under the current history.
    Waits {
        unreported: Vec<i64>,
    },
    /// The tag has no values up to its upper bound, or none were wanted.
    Exhausted,
}

/// True if these are values that a server has asked for: above all that it has received, no more than wanted, and of one
/// stride and residue. Others could repeat values.
pub fn is_answer(run: &ValueRun, residue: i64, received: i64, wanted: u64) -> bool {
    let &ValueRun { first, count, stride } = run;
    let is_in_strides = (1..=i64::from(i32::MAX)).contains(&stride)
        && (0..stride).contains(&residue)
        && first.rem_euclid(stride) == residue;
    let last = i128::from(first) + (i128::from(count) - 1) * i128::from(stride);
    is_in_strides && first > received && (1..=wanted).contains(&count) && last <= i128::from(i64::MAX)
}

impl SharedTag {
    /// The servers that have yet to report under the current history. The coordinator grants values if there is none.
    pub fn unreported(&self, current: &str) -> Vec<i64> {
        let is_own = self.history.as_deref().is_none_or(|history| history == current);
        let missing = self.servers.iter().filter(|report| !is_own && report.history != current);
        missing.map(|report| report.server).collect()
    }

    /// A server reports the highest value that it has received. Returns its row, which can be new.
    ///
    /// A known server that has received more than this history has granted proves that the coordinator was set back under the
    /// same history, as by a snapshot of its disk. Then all other servers have to report again: their reports are cleared.
    pub fn report(&mut self, server: i64, received: i64, current: &str) -> ServerReport {
        let earlier = self.servers.iter().position(|report| report.server == server);
        let earlier = earlier.map(|index| self.servers.swap_remove(index));
        let is_own = self.history.as_deref() == Some(current);
        if is_own && earlier.is_some() && received > self.allocation.max_id {
            self.history = Some(String::new());
            self.servers.iter_mut().for_each(|report| report.history.clear());
        }
        let max_id = earlier.map_or(received, |report| report.max_id.max(received));
        let report = ServerReport { server, max_id, history: current.to_owned() };
        self.servers.push(report.clone());
        self.settle(current);
        report
    }

    /// Grants up to `want` values, at least one. Raises `max_id` to the last of them.
    pub fn grant(&mut self, want: u64, current: &str) -> Reply {
        let unreported = if self.history.is_some() { self.settle(current) } else { Vec::new() };
        if !unreported.is_empty() {
            return Reply::Waits { unreported };
        }
        let Some(run) = self.allocation.next(want) else { return Reply::Exhausted };
        self.allocation.max_id = run.last();
        Reply::Granted(run)
    }

    /// A server that has reported ends its attachment. The values that it has received still count.
    pub fn leave(&mut self, server: i64) {
        if let Some(index) = self.servers.iter().position(|report| report.server == server) {
            let report = self.servers.swap_remove(index);
            self.raise_max_id(report.max_id);
        }
    }

    /// The operator has decided: no server has received a value above `max_id`, or above its last report. The tag waits
    /// for no report until the next change of the history.
    pub fn resume(&mut self, max_id: i64, current: &str) {
        self.raise_max_id(max_id);
        self.history = Some(current.to_owned());
        self.settle(current);
    }

    /// As [`unreported`](Self::unreported). If no report is missing, values from above the highest one can be granted under the
    /// current history.
    pub fn settle(&mut self, current: &str) -> Vec<i64> {
        let unreported = self.unreported(current);
        if unreported.is_empty() {
            let highest = self.servers.iter().map(|report| report.max_id).max();
            self.raise_max_id(highest.unwrap_or(self.allocation.max_id));
            self.history = Some(current.to_owned());
        }
        unreported
    }

    fn raise_max_id(&mut self, max_id: i64) {
        self.allocation.max_id = self.allocation.max_id.max(max_id);
    }
}

#[cfg(test)]
mod tests;
