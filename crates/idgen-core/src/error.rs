//! What can be wrong, as values. The extension maps each to SQLSTATE, message, DETAIL and HINT.

use std::fmt;

/// A text that is no layout: which word, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutError {
    /// The word that is wrong; `None` when something is missing or wrong in the whole.
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
    pub(crate) fn at(word: &str, problem: LayoutProblem) -> Self {
        Self { word: Some(word.to_owned()), problem }
    }

    pub(crate) fn of_text(problem: LayoutProblem) -> Self {
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
            Self::UnknownPreset => write!(f, "there is no preset of this name"),
            Self::UnknownWord => write!(f, "a spec has no such word"),
            Self::NoColon => write!(f, "a word of a spec is a name, a colon and a value"),
            Self::TimeNotFirst => write!(f, "\"time\" must be the first field, the highest bits"),
            Self::Repeated => write!(f, "this is given twice"),
            Self::Bits { min, max } => write!(f, "this field has {min} to {max} bits"),
            Self::TagWithoutValue => write!(f, "a tag has a number of bits and a value"),
            Self::TagDoesNotFit { max } => {
                write!(f, "a tag of this width has a value from 0 to {max}")
            }
            Self::Unit => write!(f, "a unit is 1ms to 1000ms, or 1s"),
            Self::Epoch => write!(f, "an epoch is a date or time from 1970 to 9999, or milliseconds since 1970"),
            Self::MissingTime => write!(f, "The field \"time\" is missing"),
            Self::MissingSequence => write!(f, "The field \"sequence\" is missing"),
            Self::MissingEpoch => write!(f, "The word \"epoch\" is missing"),
            Self::DatacenterWithoutWorker => {
                write!(f, "A \"datacenter\" needs a \"worker\" beside it")
            }
            Self::TooManyBits { total } => write!(f, "The fields have {total} bits together, and 63 is the most"),
        }
    }
}

/// A server's number that its layout has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeError {
    /// `"worker"` or `"datacenter"`.
    pub field: &'static str,
    pub value: u32,
    /// The greatest number that fits; 0 where the layout has no such field.
    pub max: u64,
}

/// An id that cannot be taken apart, or parts that make no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdError {
    Negative,
    TooManyBits { bits: u32 },
    BeforeEpoch,
    AfterEnd,
    Sequence { max: u64 },
    Node(NodeError),
}

/// A text that is no id, or a number that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    Negative,
    Empty,
    Character(char),
    Width { width: usize },
    LeadingZero,
    NotBase64,
    Overflow,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Negative => write!(f, "An id is never negative."),
            Self::Empty => write!(f, "The text is empty."),
            Self::Character(character) => write!(f, "The format has no character \"{character}\"."),
            Self::Width { width } => write!(f, "A text of this format has {width} characters."),
            Self::LeadingZero => write!(f, "A text of this format has no leading zeros."),
            Self::NotBase64 => write!(f, "The text is not the base 64 of a decimal number."),
            Self::Overflow => write!(f, "An id has 63 bits at most."),
        }
    }
}
