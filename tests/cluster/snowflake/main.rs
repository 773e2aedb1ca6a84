//! Snowflake ids on real servers: sessions, databases, waits, limits, roles and crashes.

mod adopt;
mod call_sites;
mod changes;
mod copy;
mod generators;
mod limits;
mod modes;
mod set_returning;
mod settled;
mod unique;
mod waits;

/// One of many layouts, distinguished by a tag.
fn tagged(tag: i64) -> String {
    format!("time:41 tag:10={tag} sequence:12 epoch:2020-01-01")
}

/// The tag of an id of such a layout.
fn tag_of(id: i64) -> i64 {
    (id >> 12) & 1023
}
