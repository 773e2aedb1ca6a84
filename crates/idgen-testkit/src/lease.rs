//! Helpers for tests that use leases.

use postgres::Client;

use crate::sql::{row, value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub slot: i32,
    pub token: i64,
}

/// Acquires with these arguments, written in SQL.
pub fn acquire(client: &mut Client, arguments: &str) -> Grant {
    granted(client, &format!("lease_acquire({arguments})")).expect("lease_acquire raises an error or returns a grant")
}

pub fn try_acquire(client: &mut Client, arguments: &str) -> Option<Grant> {
    granted(client, &format!("lease_try_acquire({arguments})"))
}

fn granted(client: &mut Client, call: &str) -> Option<Grant> {
    let sql = format!("SELECT slot, token FROM {call}");
    let row = client.query_opt(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"))?;
    Some(Grant { slot: row.get(0), token: row.get(1) })
}

/// Acquires a lease for an hour if it is free now. Returns the token.
pub fn take_if_free(client: &mut Client, name: &str) -> Option<i64> {
    try_acquire(client, &format!("'{name}', ttl => '1 hour'")).map(|grant| grant.token)
}

/// The row of a lease with one slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    pub token: i64,
    pub depth: i32,
    pub ttl_us: i64,
    pub ends_us: i64,
}

impl Term {
    /// The time of the acquisition or of the last renewal.
    pub fn began_us(&self) -> i64 {
        self.ends_us - self.ttl_us
    }
}

/// The term of a name that must have a row.
pub fn term(client: &mut Client, name: &str) -> Term {
    let row = row(client, &format!("SELECT token, depth, ttl_us, ends_us FROM idgen.lease WHERE name = '{name}'"));
    Term { token: row.get(0), depth: row.get(1), ttl_us: row.get(2), ends_us: row.get(3) }
}

/// The view shows the lease as held, and it cannot be acquired.
pub fn assert_held(client: &mut Client, name: &str) {
    let state = format!("SELECT state FROM idgen.leases WHERE name = '{name}'");
    assert_eq!(value::<String>(client, &state), "held", "{name}");
    assert_eq!(take_if_free(client, name), None, "{name}");
}
