//! Snowflake ids. `next` issues them, `decode` reads them, `observe` moves past one, and `settled` returns the one up to
//! which no transaction can commit a row any more.

use crate::pg::xact;
use crate::shmem;

mod adopt;
mod attach;
mod decode;
mod earliest_draw;
mod errors;
mod layouts;
mod next;
pub mod node;
mod observe;
mod prepared;
mod settled;
pub mod stats;
mod status;

pub use attach::AttachedGenerator;
pub use layouts::{attach_by_text, default as default_layout};
pub use next::{IdSet, next_id};
pub use status::checks;

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&node::CURRENT, &next::COUNTERS, &earliest_draw::EARLIEST_DRAWS]);
    // In the postmaster, from which all processes inherit it: it runs after all other callbacks, and in a leader also if
    // only its workers have drawn.
    xact::on_xact_event(next::at_xact_event);
}
