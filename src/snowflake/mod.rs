//! Snowflake ids. `next` and `next_many` issue them, `decode` and `text` read them, `observe` moves past one.

use crate::shmem;

mod attach;
mod decode;
mod errors;
mod layouts;
mod next;
mod next_many;
pub mod node;
mod observe;
pub mod stats;
mod text;

pub use layouts::default as default_layout;

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&node::CURRENT, &stats::COUNTERS]);
}
