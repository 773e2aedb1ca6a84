//! The rows of a simulated database.

use idgen_core::clock::label::MarkLabel;
use idgen_core::history::History;
use idgen_core::segment::fleet::ServerReport;
use idgen_core::segment::tag::TagRow;
use idgen_core::worker::Rectangle;
use idgen_core::worker::granting::PoolDefinition;
use idgen_core::worker::recording;
use idgen_core::worker::search::WorkerRow;
use std::collections::BTreeMap;

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
