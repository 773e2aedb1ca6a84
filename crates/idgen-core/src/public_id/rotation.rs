//! Rotations and retirements of the keys of a prefix, and those that would break texts in use.

use super::Form;

/// A key of a prefix, as a rotation sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyState {
    pub version: i32,
    pub form: Form,
    pub is_retired: bool,
}

/// A change of the keys that would let a text decode to an id that it was not made from, or leave no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationError {
    /// The key of this version has the short form. It counts even after its retirement: its texts are still in use.
    SecondShortKey(i32),
    /// The key of this version is the newest, which makes the texts.
    Newest(i32),
    UnknownVersion(i32),
    /// The prefix has a key of [`MAX_VERSION`].
    NoMoreVersions,
}

/// The table refuses higher versions, by an error that would show the row with its new secret.
const MAX_VERSION: i32 = 1_000_000_000;

/// The version and the form of the next key of a prefix, which has at least one. Without a form, that of the newest key.
pub fn next_key(keys: &[KeyState], form: Option<Form>) -> Result<(i32, Form), RotationError> {
    let newest = newest(keys).expect("a prefix has a key");
    let form = form.unwrap_or(newest.form);
    match keys.iter().find(|key| key.form == Form::Short) {
        Some(short) if form == Form::Short => Err(RotationError::SecondShortKey(short.version)),
        _ if newest.version >= MAX_VERSION => Err(RotationError::NoMoreVersions),
        _ => Ok((newest.version + 1, form)),
    }
}

/// True if the key is to be retired, false if it is already.
pub fn retire(keys: &[KeyState], version: i32) -> Result<bool, RotationError> {
    let key = keys.iter().find(|key| key.version == version).ok_or(RotationError::UnknownVersion(version))?;
    if newest(keys) == Some(key) { Err(RotationError::Newest(version)) } else { Ok(!key.is_retired) }
}

fn newest(keys: &[KeyState]) -> Option<&KeyState> {
    keys.iter().max_by_key(|key| key.version)
}
