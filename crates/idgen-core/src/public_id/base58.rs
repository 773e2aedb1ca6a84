//! Numbers in base58, padded to a fixed width. A number has exactly one text of each width. The digits are those of the
//! format base58 of `snowflake_encode`, which has no `0`, `I`, `O` and `l`.

use crate::text::BASE58;

const ALPHABET: &[u8] = BASE58.as_bytes();
const BASE: u64 = ALPHABET.len() as u64;

/// Digits that fit a `u64` together: its division is much faster than that of a `u128`.
const CHUNK: usize = 10;

/// Appends the `width` lowest digits of a number.
pub fn push(text: &mut String, mut number: u128, width: usize) {
    let mut digits = [ALPHABET[0]; 22];
    let digits = &mut digits[..width];
    for chunk in digits.rchunks_mut(CHUNK) {
        let of_chunk = u128::from(BASE.pow(CHUNK as u32));
        let mut rest = (number % of_chunk) as u64;
        number /= of_chunk;
        for digit in chunk.iter_mut().rev() {
            *digit = ALPHABET[(rest % BASE) as usize];
            rest /= BASE;
        }
    }
    text.extend(digits.iter().map(|digit| char::from(*digit)));
}

/// The number of a text of ASCII; `None` if it is above 2^128 - 1.
pub fn number(text: &str) -> Result<Option<u128>, char> {
    let mut number = Some(0u128);
    for character in text.chars() {
        let digit = ALPHABET.iter().position(|digit| char::from(*digit) == character).ok_or(character)?;
        number = number.and_then(|number| number.checked_mul(BASE.into())?.checked_add(digit as u128));
    }
    Ok(number)
}
