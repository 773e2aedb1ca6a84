//! Public ids: texts that stand for ids, and tell neither time, worker nor count. A key makes them, and reads them back.
//!
//! A *prefix* such as `ord` has one key or, after a rotation, several. The newest key makes texts, and every key reads its
//! own. A key has one of two *forms*. The length of a text tells the forms apart, and the zeros in a long text tell the
//! keys of the long form apart. A short text does not name its key, so a prefix has at most one key of the short form.
//!
//! The texts of a key never change: users store and print them.

use cipher::{Cipher, mask, open, seal, unmask};
use std::fmt;

pub use rotation::{KeyState, RotationError, next_key, retire};

mod base58;
mod cipher;
mod rotation;

/// The bytes of a secret.
pub const SECRET_BYTES: usize = 32;
pub const MAX_PREFIX_BYTES: usize = 63;

/// True for 1 to 63 lower-case letters, digits and underscores: a letter first, and no underscore last.
pub fn is_valid_prefix(prefix: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    prefix.len() <= MAX_PREFIX_BYTES
        && prefix.starts_with(|first: char| first.is_ascii_lowercase())
        && !prefix.ends_with('_')
        && prefix.bytes().all(is_inner)
}

/// How a key makes texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 11 characters: a permutation of the ids. Every number below 2^63 is the text of some id.
    Short,
    /// 22 characters: an id and 64 zero bits in one block. Decoding checks the zeros.
    Long,
}

impl Form {
    pub const ALL: [Self; 2] = [Self::Short, Self::Long];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Long => "long",
        }
    }

    /// The characters after the prefix.
    const fn width(self) -> usize {
        match self {
            Self::Short => 11,
            Self::Long => 22,
        }
    }
}

/// The keys of a prefix that are not retired.
pub struct Keyring {
    /// The prefix with its underscore.
    begin: String,
    newest: Cipher,
    older: Vec<Cipher>,
}

impl Keyring {
    /// From the keys, the newest first; `None` if there are none.
    pub fn new(prefix: &str, keys: &[(Form, [u8; SECRET_BYTES])]) -> Option<Self> {
        let mut ciphers = keys.iter().map(|(form, secret)| Cipher::new(prefix, *form, secret));
        let newest = ciphers.next()?;
        Some(Self { begin: format!("{prefix}_"), newest, older: ciphers.collect() })
    }

    fn ciphers(&self) -> impl Iterator<Item = &Cipher> {
        std::iter::once(&self.newest).chain(&self.older)
    }

    /// The text of an id, by the newest key.
    pub fn encode(&self, id: i64) -> Result<String, PublicIdError> {
        let number = non_negative(id)?;
        let width = self.newest.form().width();
        let mut text = String::with_capacity(self.begin.len() + width);
        text.push_str(&self.begin);
        let block = match &self.newest {
            Cipher::Short(cipher) => mask(cipher, number).into(),
            Cipher::Long(cipher) => seal(cipher, number),
        };
        base58::push(&mut text, block, width);
        Ok(text)
    }

    /// The id of a text, by the key that made it.
    pub fn decode(&self, text: &str) -> Result<i64, PublicIdError> {
        let digits = text.strip_prefix(&self.begin).ok_or_else(|| PublicIdError::Prefix(self.begin.clone()))?;
        let length = digits.chars().count();
        let form = Form::ALL.into_iter().find(|form| form.width() == length).ok_or(PublicIdError::Length(length))?;
        let number = base58::number(digits).map_err(PublicIdError::Character)?.ok_or(PublicIdError::NotMade)?;
        let open = |cipher: &Cipher| match cipher {
            Cipher::Short(cipher) => i64::try_from(number).ok().map(|masked| unmask(cipher, masked as u64) as i64),
            Cipher::Long(cipher) => open(cipher, number),
        };
        self.ciphers().filter(|cipher| cipher.form() == form).find_map(open).ok_or(PublicIdError::NotMade)
    }

    /// The number that the text of the short form writes. Only the newest key masks, as only it makes texts.
    pub fn mask(&self, id: i64) -> Result<i64, PublicIdError> {
        let number = non_negative(id)?;
        match &self.newest {
            Cipher::Short(cipher) => Ok(mask(cipher, number) as i64),
            Cipher::Long(_) => Err(PublicIdError::NoShortKey),
        }
    }

    /// The id of a masked number, by the key of the short form.
    pub fn unmask(&self, masked: i64) -> Result<i64, PublicIdError> {
        let number = non_negative(masked)?;
        let short = self.ciphers().find_map(|cipher| match cipher {
            Cipher::Short(cipher) => Some(unmask(cipher, number) as i64),
            Cipher::Long(_) => None,
        });
        short.ok_or(PublicIdError::NoShortKey)
    }
}

fn non_negative(number: i64) -> Result<u64, PublicIdError> {
    u64::try_from(number).map_err(|_| PublicIdError::Negative)
}

/// Why a number has no text, or a text no id. Displays the state, for a DETAIL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicIdError {
    Negative,
    /// A masked number needs a key of the short form.
    NoShortKey,
    Prefix(String),
    Length(usize),
    Character(char),
    /// No key of the prefix made the text.
    NotMade,
}

impl fmt::Display for PublicIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Negative => write!(f, "An id is never negative."),
            Self::NoShortKey => write!(f, "A number of 63 bits is masked by a key of the short form only."),
            Self::Prefix(begin) => write!(f, "It does not begin with \"{begin}\"."),
            Self::Length(length) => write!(f, "After its prefix it has {length} characters, not 11 or 22."),
            Self::Character(character) => write!(f, "Base58 has no character \"{character}\"."),
            Self::NotMade => write!(f, "No key of the prefix made it."),
        }
    }
}

#[cfg(test)]
mod tests;
