//! The rows of a simulated database.

use idgen_core::clock::label::MarkLabel;
use idgen_core::history::History;
use idgen_core::lease::LeaseDefinition;
use idgen_core::segment::fleet::ServerReport;
use idgen_core::segment::tag::TagRow;
use idgen_core::worker::Rectangle;
use idgen_core::worker::granting::PoolDefinition;
use idgen_core::worker::recording;
use idgen_core::worker::search::WorkerRow;
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The label of the mark.
    Label,
    /// The greatest id of a table whose ids are of this layout.
    Ids(usize),
    /// A tag.
    Segment(usize),
    /// What the server of this number has reported of a tag.
    Report(usize, i64),
    Pool(usize),
    /// A worker id of a pool.
    Worker(usize, i32),
    WorkerHistory,
    WorkerLabel,
    /// The last token of leases.
    LeaseTokens,
    LeaseDefinition(usize),
    /// A slot or a shared term of a lease.
    Lease(usize, i32),
    /// The token by which a row was written last, under a lease.
    Written(usize),
}

#[derive(Clone, Debug)]
pub enum Row {
    Label(MarkLabel),
    Ids(i64),
    Segment(TagRow),
    Report(ServerReport),
    Pool(PoolDefinition),
    Worker(WorkerRecord),
    WorkerHistory(History),
    WorkerLabel(recording::Label),
    LeaseDefinition(LeaseDefinition),
    Lease(LeaseRow),
    Token(i64),
}

/// The row of a slot or of a shared term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    pub token: i64,
    pub depth: i32,
    pub ttl_us: i64,
    pub ends_us: i64,
    /// The clock that `ends_us` is by.
    pub clock: Rc<str>,
    pub revoked: bool,
    /// The start of the server, and the key of the session's lock.
    pub session: Option<(u64, i64)>,
}

/// The row of a worker id.
#[derive(Clone, Debug)]
pub struct WorkerRecord {
    pub row: WorkerRow,
    pub rectangle: Rectangle,
    /// `None`: it was never granted.
    pub acquired_us: Option<i64>,
}

pub type Database = BTreeMap<Key, Row>;
