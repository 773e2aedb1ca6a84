//! P1: no transaction commits a row with an id at or below one that `snowflake_settled()` has returned.

mod prepared;
mod storm;
mod transactions;
