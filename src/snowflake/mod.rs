//! Snowflake ids. `next` issues them, `decode` reads them, `observe` moves past one.

use crate::shmem;

mod attach;
mod decode;
mod errors;
mod layouts;
mod next;
pub mod node;
mod observe;
pub mod stats;

pub use layouts::default as default_layout;

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&node::CURRENT, &next::COUNTERS]);
}
