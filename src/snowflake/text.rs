//! Ids as text and back. IMMUTABLE and STRICT: NULL in, NULL out.

use super::errors;
use crate::pg::encoding::Text;
use idgen_core::text::Format;
use pgrx::prelude::*;

#[pg_extern(immutable, strict, parallel_safe)]
fn snowflake_encode(id: i64, format: Text) -> String {
    named(&format).encode(id).unwrap_or_else(|e| errors::text(&id.to_string(), &format, e).raise())
}

#[pg_extern(immutable, strict, parallel_safe)]
fn snowflake_decode(text: Text, format: Text) -> i64 {
    named(&format).decode(&text).unwrap_or_else(|e| errors::text(&text, &format, e).raise())
}

fn named(format: &str) -> Format {
    Format::named(format).unwrap_or_else(|| errors::unknown_format(format).raise())
}
