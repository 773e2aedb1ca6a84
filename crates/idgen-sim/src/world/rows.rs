//! The rows of a simulated database.

use std::collections::BTreeMap;

use idgen_core::clock::label::MarkLabel;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The label of the mark.
    Label,
    /// The greatest id of a table whose ids are of this layout.
    Ids(usize),
}

#[derive(Clone, Debug)]
pub enum Row {
    Label(MarkLabel),
    Ids(i64),
}

pub type Database = BTreeMap<Key, Row>;
