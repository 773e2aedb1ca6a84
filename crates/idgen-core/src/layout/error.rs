//! The errors of layouts and ids. The extension adds SQLSTATE, message and HINT.

use std::fmt;

/// Why a text is not a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutError {
    /// The word that is wrong; `None` if a word is missing or the layout as a whole is wrong.
    pub word: Option<String>,
    pub problem: LayoutProblem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutProblem {
    Empty,
    UnknownPreset,
    UnknownWord,
    NoColon,
    TimeNotFirst,
    Repeated,
    Bits { min: u8, max: u8 },
    TagWithoutValue,
    TagDoesNotFit { max: u64 },
    Unit,
    Epoch,
    MissingTime,
    MissingSequence,
    MissingEpoch,
    DatacenterWithoutWorker,
    TooManyBits { total: u32 },
}

impl LayoutError {
    pub(super) fn at(word: &str, problem: LayoutProblem) -> Self {
        Self { word: Some(word.to_owned()), problem }
    }

    pub(super) fn of_text(problem: LayoutProblem) -> Self {
        Self { word: None, problem }
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.word {
            Some(word) => write!(f, "At \"{word}\": {}.", self.problem),
            None => write!(f, "{}.", self.problem),
        }
    }
}

impl fmt::Display for LayoutProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "The text is empty"),
            Self::UnknownPreset => write!(f, "no preset has this name"),
            Self::UnknownWord => write!(f, "unknown word"),
            Self::NoColon => write!(f, "expected name:value"),
            Self::TimeNotFirst => write!(f, "\"time\" must be the first field"),
            Self::Repeated => write!(f, "given twice"),
            Self::Bits { min, max } => write!(f, "this field must have {min} to {max} bits"),
            Self::TagWithoutValue => write!(f, "expected tag:bits=value"),
            Self::TagDoesNotFit { max } => write!(f, "the value must be 0 to {max}"),
            Self::Unit => write!(f, "the unit must be 1ms to 1000ms, or 1s"),
            Self::Epoch => write!(f, "the epoch must be a date or time from 1970 to 9999, or milliseconds since 1970"),
            Self::MissingTime => write!(f, "The field \"time\" is missing"),
            Self::MissingSequence => write!(f, "The field \"sequence\" is missing"),
            Self::MissingEpoch => write!(f, "The word \"epoch\" is missing"),
            Self::DatacenterWithoutWorker => write!(f, "The field \"datacenter\" requires a field \"worker\""),
            Self::TooManyBits { total } => write!(f, "The fields have {total} bits; the maximum is 63"),
        }
    }
}

/// A worker or datacenter id that does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeError {
    /// `"worker"` or `"datacenter"`.
    pub field: &'static str,
    pub value: u32,
    /// The greatest value that fits; 0 if the layout does not have the field.
    pub max: u64,
}

/// Why an id cannot be unpacked, or parts cannot be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdError {
    Negative,
    TooManyBits { bits: u32 },
    BeforeEpoch,
    AfterEnd,
    Sequence { max: u64 },
    Node(NodeError),
}
