//! Ids as text and back. The functions are IMMUTABLE and STRICT.

use super::errors;
use crate::pg::encoding::Text;
use idgen_core::text::Format;
use pgrx::prelude::*;

/// An id as text. Raises 22023 for an unknown format, 22003 for a negative id.
#[pg_extern(immutable, strict, parallel_safe)]
fn snowflake_encode(id: i64, format: Text) -> String {
    named(&format).encode(id).unwrap_or_else(|e| errors::text(&id.to_string(), &format, e).raise())
}

/// The id of a text. Raises 22023 for an unknown format or a malformed text, 22003 for a number too large.
#[pg_extern(immutable, strict, parallel_safe)]
fn snowflake_decode(text: Text, format: Text) -> i64 {
    named(&format).decode(&text).unwrap_or_else(|e| errors::text(&text, &format, e).raise())
}

fn named(format: &str) -> Format {
    Format::named(format).unwrap_or_else(|| errors::unknown_format(format).raise())
}
