//! PostgreSQL's primitives, under PostgreSQL's names. Nothing here knows what idgen does; the lists of hosts of a connection
//! string are the core's.

pub mod advisory_lock;
pub mod bgworker;
pub mod call_site;
pub mod client_message;
pub mod condition_variable;
pub mod data_directory;
pub mod databases;
pub mod datum;
pub mod ereport;
pub mod extension;
pub mod invalidation;
pub mod latch;
pub mod libpq;
pub mod notify;
pub mod process_utility;
pub mod recovery;
pub mod row_expansion;
pub mod row_lock;
pub mod security_label;
pub mod session;
pub mod spi;
pub mod srf;
pub mod sync_rep;
pub mod system_clock;
pub mod timestamp;
pub mod trigger;
pub mod uuid;
pub mod wait_event;
pub mod xact;
