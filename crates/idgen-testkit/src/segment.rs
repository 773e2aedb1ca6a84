//! Helpers for tests that use segments.

use postgres::Client;

use crate::sql::{execute, value};

/// Creates a segment with settings such as `, step => 10`.
pub fn create(client: &mut Client, tag: &str, settings: &str) {
    execute(client, &format!("SELECT segment_create('{tag}'{settings})"));
}

pub fn next(client: &mut Client, tag: &str) -> i64 {
    value(client, &draw(tag))
}

/// The statement that draws one value.
pub fn draw(tag: &str) -> String {
    format!("SELECT segment_next('{tag}')")
}
