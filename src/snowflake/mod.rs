//! Snowflake ids. `next` issues them, `decode` reads them, `observe` moves past one, and `settled` returns the one up to
//! which no transaction can commit a row any more.

use crate::pg::xact;
use crate::shmem;

mod attach;
mod decode;
mod draw_bound;
mod errors;
mod layouts;
mod next;
pub mod node;
mod observe;
mod prepared;
mod settled;
pub mod stats;

pub use attach::AttachedGenerator;
pub use layouts::{attached, default as default_layout};
pub use next::{IdSet, next_id};

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&node::CURRENT, &next::COUNTERS, &draw_bound::BOUNDS]);
    // In the postmaster, which all processes inherit it from: a bound is cleared after all other callbacks, and that of a
    // leader also if only its workers have drawn.
    xact::on_xact_event(next::at_xact_event);
}
