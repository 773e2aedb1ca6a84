//! PostgreSQL's primitives, under PostgreSQL's names. Nothing here knows what idgen does; the lists of hosts of a connection
//! string are the core's.

pub mod advisory_lock;
pub mod bgworker;
mod copy_batches;
pub mod crash_point;
pub mod datum;
pub mod effects;
pub mod ereport;
pub mod fired;
pub mod function;
pub mod invalidation;
pub mod latch;
pub mod libpq;
pub mod recovery;
pub mod row;
pub mod session;
pub mod shared_objects;
pub mod spi;
pub mod system_clock;
pub mod xact;

pub(crate) use crash_point::crash_point;
