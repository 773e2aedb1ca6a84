//! Queries that only look: they take no transaction id, so they work on a standby and in a read-only transaction, which
//! pgrx's short forms do not.

use pgrx::prelude::*;

/// The one value of a query's first row; `None` for NULL or no row.
pub fn get_one<T: FromDatum + IntoDatum>(query: &str) -> Option<T> {
    Spi::connect(|client| client.select(query, Some(1), &[])?.first().get_one()).ok().flatten()
}
