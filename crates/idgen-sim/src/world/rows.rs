//! The rows of a simulated database.

use idgen_core::clock::label::MarkLabel;
use idgen_core::segment::fleet::ServerReport;
use idgen_core::segment::tag::TagRow;
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
}

#[derive(Clone, Debug)]
pub enum Row {
    Label(MarkLabel),
    Ids(i64),
    Segment(TagRow),
    Report(ServerReport),
}

pub type Database = BTreeMap<Key, Row>;
