//! Ids as text.
//!
//! base2, base32, base36, base58 and base64 are compatible with bwmarrin/snowflake, the most used library of this kind.
//! An id has exactly one text in each format: [`Format::decode`] rejects what [`Format::encode`] would not write.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;

/// How an id is written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Positional digits, the highest first.
    Digits { alphabet: &'static str },
    /// Digits with a fixed width and an alphabet in ASCII order, so that texts sort as ids do.
    Fixed { alphabet: &'static str, width: usize },
    /// Base64 of the decimal digits.
    Base64,
}

const BASE2: &str = "01";
const HEX: &str = "0123456789abcdef";
/// z-base-32.
const BASE32: &str = "ybndrfg8ejkmcpqxot1uwisza345h769";
const BASE36: &str = "0123456789abcdefghijklmnopqrstuvwxyz";
pub(crate) const BASE58: &str = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ";
const BASE62: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Crockford's alphabet, without I, L, O and U.
const SORT32: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Every format and its name. A format never changes: users store and print the texts.
pub const FORMATS: [(&str, Format); 9] = [
    ("base2", Format::Digits { alphabet: BASE2 }),
    ("base32", Format::Digits { alphabet: BASE32 }),
    ("base36", Format::Digits { alphabet: BASE36 }),
    ("base58", Format::Digits { alphabet: BASE58 }),
    ("base62", Format::Digits { alphabet: BASE62 }),
    ("base64", Format::Base64),
    ("hex", Format::Digits { alphabet: HEX }),
    // The smallest widths that hold 63 bits.
    ("sort32", Format::Fixed { alphabet: SORT32, width: 13 }),
    ("sort62", Format::Fixed { alphabet: BASE62, width: 11 }),
];

impl Format {
    pub fn named(name: &str) -> Option<Format> {
        FORMATS.iter().find(|(format, _)| *format == name).map(|(_, format)| *format)
    }

    pub fn encode(self, id: i64) -> Result<String, TextError> {
        let number = u64::try_from(id).map_err(|_| TextError::Negative)?;
        Ok(match self {
            Format::Digits { alphabet } => digits(number, alphabet, 1),
            Format::Fixed { alphabet, width } => digits(number, alphabet, width),
            Format::Base64 => STANDARD.encode(number.to_string()),
        })
    }

    pub fn decode(self, text: &str) -> Result<i64, TextError> {
        match self {
            Format::Digits { alphabet } => {
                let number = number(text, alphabet)?;
                match text.len() > 1 && text.starts_with(&alphabet[..1]) {
                    true => Err(TextError::LeadingZero),
                    false => Ok(number),
                }
            }
            Format::Fixed { width, .. } if text.chars().count() != width => Err(TextError::Width { width }),
            Format::Fixed { alphabet, .. } => number(text, alphabet),
            Format::Base64 => {
                let decimal = STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                let decimal = decimal.ok_or(TextError::NotBase64)?;
                Format::Digits { alphabet: &BASE36[..10] }.decode(&decimal).map_err(|error| match error {
                    TextError::Overflow => error,
                    _ => TextError::NotBase64,
                })
            }
        }
    }
}

/// Pads with zeros up to `width`.
fn digits(mut number: u64, alphabet: &str, width: usize) -> String {
    let (alphabet, base) = (alphabet.as_bytes(), alphabet.len() as u64);
    let mut lowest_first = String::new();
    while number > 0 || lowest_first.len() < width {
        lowest_first.push(char::from(alphabet[(number % base) as usize]));
        number /= base;
    }
    lowest_first.chars().rev().collect()
}

fn number(text: &str, alphabet: &str) -> Result<i64, TextError> {
    if text.is_empty() {
        return Err(TextError::Empty);
    }
    text.chars().try_fold(0i64, |number, character| {
        let digit = alphabet.find(character).ok_or(TextError::Character(character))?;
        let shifted = number.checked_mul(alphabet.len() as i64).ok_or(TextError::Overflow)?;
        shifted.checked_add(digit as i64).ok_or(TextError::Overflow)
    })
}

/// Why a text is not an id, or a number has no text.
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
            Self::NotBase64 => write!(f, "The text is not the base64 encoding of a decimal number."),
            Self::Overflow => write!(f, "An id has at most 63 bits."),
        }
    }
}

#[cfg(test)]
mod tests;
