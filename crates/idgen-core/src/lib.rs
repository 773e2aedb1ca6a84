//! Everything in idgen that decides: pure, so that it can be tested without a server.
//!
//! No clock, no I/O and no PostgreSQL in here: the time, the rows and the limits come in as arguments, and decisions
//! go out as values. The extension reads settings, clock and shared memory, asks this crate, and converts the answer.

pub mod clock;
pub mod error;
pub mod generator;
pub mod layout;
pub mod lease;
pub mod lock;
pub mod segment;
pub mod snowflake;
mod sync;
pub mod table;
pub mod text;
pub mod worker;
