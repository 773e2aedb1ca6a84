//! The rows of terms that are bound to this session, of any role.

use super::LEASE;
use crate::pg::spi::{Query, text, value};
use std::collections::HashMap;

/// A subquery for each term, so that the plan looks each one up in the index, however large the table grows.
static WITHOUT_TERM: Query = LEASE.query(
    "SELECT bound.token FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS bound (name, token) \
     WHERE NOT EXISTS (SELECT FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) bound.name \
                       AND lease.token OPERATOR(pg_catalog.=) bound.token \
                       AND lease.depth OPERATOR(pg_catalog.>) 0 OFFSET 0)",
);

/// Those of the tokens that have no term of the lease.
pub fn without_term(names: Vec<String>, tokens: Vec<i64>) -> Vec<i64> {
    if tokens.is_empty() {
        return Vec::new();
    }
    WITHOUT_TERM.read_latest(&[names.into(), tokens.into()], |row| value(row, 1))
}

static NAMES_OF: Query = LEASE.query(
    "SELECT token, name FROM idgen.lease WHERE token OPERATOR(pg_catalog.=) ANY ($1) AND depth OPERATOR(pg_catalog.>) 0",
);

/// The current leases of tokens that have a term. Reads the whole table: the index has tokens after leases.
pub fn names_of(tokens: Vec<i64>) -> HashMap<i64, String> {
    NAMES_OF.read_latest(&[tokens.into()], |row| (value(row, 1), text(row, 2))).into_iter().collect()
}
