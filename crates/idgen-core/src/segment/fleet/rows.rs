//! What a coordinator does with the rows of a tag: procedures over a port, each in the transaction of its caller.

use super::{Reply, ServerReport, SharedTag};
use crate::history::{HistoryState, Identity};
use crate::segment::NoValues;
use crate::segment::tag::{Allocation, Origin, TagRow};

/// The rows of tags and of their servers, in the running transaction.
pub trait TagRows {
    /// What grants from this database.
    fn identity(&self) -> &Identity;

    /// True if there is a tag of this name, by what is committed now.
    fn exists(&mut self, tag: &str) -> bool;

    /// Locks the report of a server: a transaction that creates a tag of this name waits for this one. False if there is none.
    fn lock_report(&mut self, tag: &str, server: i64) -> bool;

    /// Locks the row of a tag, with the privilege to change it so. Waits for a transaction that has locked it.
    fn lock(&mut self, tag: &str, privilege: Privilege) -> TagRow;

    /// The reports of all servers of a tag, or of this one, as they are stored.
    fn reports(&mut self, tag: &str, server: Option<i64>) -> Vec<ServerReport>;

    /// The names of some servers of a tag, in one text.
    fn names(&mut self, tag: &str, servers: Vec<i64>) -> String;

    /// Writes `max_id` and the history of a tag, which is locked, and the report of a server.
    fn share(&mut self, row: &TagRow, shared: &SharedTag, report: Option<&ServerReport>);

    /// Clears the reports of a tag, so that its servers report again: one has received more than was granted.
    fn clear_reports(&mut self, row: &TagRow, received: i64);

    fn delete_report(&mut self, tag: &str, server: i64);
}

/// What a caller that locks the row of a tag must be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    Alter,
    Serve,
}

/// Why a call is refused. The caller rolls back what it has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such tag, nor has the server reported for one.
    Unknown,
    /// The tag is attached itself.
    Chained,
    /// The tag was attached itself, and has had no values of its own since.
    Detached,
    /// The session counts the values that it has drawn from the tag, and raises `max_id` when it commits.
    CreatedHere,
    /// The tag has too few values, or a server has received values above its upper bound.
    Exhausted { upper_bound: i64 },
    /// The operator has given a value above the upper bound.
    AboveUpperBound { max_id: i64, upper_bound: i64 },
}

/// An attached server: how the coordinator knows it, and the highest value that it has ever received.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub number: i64,
    pub received: i64,
}

/// A server reports, and asks for `count` values; 0 only reports. They count once they are confirmed to be on synchronous
/// standbys.
pub fn request(rows: &mut impl TagRows, tag: &str, server: Server, count: u64) -> Result<(Origin, Reply), Refused> {
    let row = lock(rows, tag, Privilege::Serve)?;
    let (mut shared, report, current) = reported(rows, &row, server);
    let reply = shared.grant(count, &current);
    if reply == Reply::Exhausted && count > 0 {
        return Err(exhausted(&row));
    }
    share(rows, &row, &shared, Some(&report))?;
    let Identity { system_identifier, database, .. } = rows.identity();
    let source = format!("{system_identifier}/{database}/{}/{}", row.key.creation, row.version);
    Ok((Origin { source, stride: row.definition.stride, residue: row.definition.residue }, reply))
}

/// A server is detached. Its last report counts. Also forgets a server of a tag that was dropped.
pub fn leave(rows: &mut impl TagRows, tag: &str, server: Server) -> Result<(), Refused> {
    if !rows.exists(tag) {
        if !rows.lock_report(tag, server.number) {
            return Err(Refused::Unknown);
        }
        // A transaction that creates the tag again has been waited for, or waits for this one and then finds the server gone.
        if !rows.exists(tag) {
            rows.delete_report(tag, server.number);
            return Ok(());
        }
    }
    let row = lock(rows, tag, Privilege::Serve)?;
    let (mut shared, ..) = reported(rows, &row, server);
    shared.leave(server.number);
    share(rows, &row, &shared, None)?;
    rows.delete_report(tag, server.number);
    Ok(())
}

/// The operator's decision that the servers that have not reported are gone for good.
pub fn resume(rows: &mut impl TagRows, tag: &str, max_id: i64) -> Result<(), Refused> {
    let row = lock(rows, tag, Privilege::Alter)?;
    let upper_bound = row.definition.upper_bound;
    if max_id > upper_bound {
        return Err(Refused::AboveUpperBound { max_id, upper_bound });
    }
    let (mut shared, current) = SharedTag::read(rows, &row, None);
    shared.resume(max_id, &current);
    share(rows, &row, &shared, None)
}

/// What the coordinator's own next values follow, or why it may take none. The caller has locked the row.
pub fn own_allocation(rows: &mut impl TagRows, row: &TagRow) -> Result<Allocation, NoValues> {
    let is_own = |recorded: &String| rows.identity().state_of(recorded) == HistoryState::Own;
    if row.link.history.as_ref().is_none_or(is_own) {
        return Ok(row.definition.allocation());
    }
    let (mut shared, current) = SharedTag::read(rows, row, None);
    let (unreported, tag) = (shared.settle(&current), row.tag.clone());
    if !unreported.is_empty() {
        return Err(NoValues::Unreported { servers: rows.names(&tag, unreported), tag });
    }
    share(rows, row, &shared, None).map_err(|_| NoValues::BeyondBound { tag })?;
    Ok(shared.allocation)
}

fn lock(rows: &mut impl TagRows, tag: &str, privilege: Privilege) -> Result<TagRow, Refused> {
    let row = rows.lock(tag, privilege);
    match privilege {
        _ if row.link.is_attached() => Err(Refused::Chained),
        Privilege::Serve if row.created_here => Err(Refused::CreatedHere),
        _ => Ok(row),
    }
}

fn exhausted(row: &TagRow) -> Refused {
    if row.is_detached() { Refused::Detached } else { Refused::Exhausted { upper_bound: row.definition.upper_bound } }
}

fn share(
    rows: &mut impl TagRows,
    row: &TagRow,
    shared: &SharedTag,
    report: Option<&ServerReport>,
) -> Result<(), Refused> {
    // A server can have received such values.
    if shared.allocation.max_id > shared.allocation.upper_bound {
        return Err(exhausted(row));
    }
    rows.share(row, shared, report);
    Ok(())
}

/// The tag with a new report, this report, and the history of now. While that is the tag's, and has granted what the server
/// has received, the reports of others do not matter.
fn reported(rows: &mut impl TagRows, row: &TagRow, server: Server) -> (SharedTag, ServerReport, String) {
    let Server { number, received } = server;
    let (mut shared, current) = SharedTag::read(rows, row, (received <= row.definition.max_id).then_some(number));
    let was_current = shared.history.as_ref() == Some(&current);
    let report = shared.report(number, received, &current);
    if was_current && shared.history.as_ref() != Some(&current) {
        rows.clear_reports(row, received);
    }
    (shared, report, current)
}

impl SharedTag {
    /// The rows of a tag. The caller has locked that of the tag, without which no report changes. While the history is the
    /// tag's, only the report of this server is read, if it is given. Also returns the history of now.
    pub fn read(rows: &mut impl TagRows, row: &TagRow, server: Option<i64>) -> (Self, String) {
        let current = rows.identity().to_string();
        let history = row.link.history.clone().map(|recorded| rows.identity().in_the_present_form(recorded));
        let mut servers = rows.reports(&row.tag, server.filter(|_| history.as_ref() == Some(&current)));
        for report in &mut servers {
            report.history = rows.identity().in_the_present_form(std::mem::take(&mut report.history));
        }
        (Self { history, allocation: row.definition.allocation(), servers }, current)
    }
}
