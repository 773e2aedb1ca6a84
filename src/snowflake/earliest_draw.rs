//! How early the ids are that open transactions have drawn, for `settled`.

use super::prepared;
use crate::pg::session;
use crate::shmem::Part;
use idgen_core::generator::settled::EarliestDraw;
use pgrx::prelude::*;

/// One for each process that can draw.
pub static EARLIEST_DRAWS: Part<&'static [EarliestDraw]> = Part::new(c"idgen earliest draws", |block| {
    // SAFETY: fixed before PostgreSQL asks for the size of shared memory.
    block.array(unsafe { pg_sys::MaxBackends } as usize, EarliestDraw::new)
});

/// That of this process, or of the leader if it is a worker of a parallel query: that one commits the rows. `None`
/// in a process that runs no transactions.
fn own() -> Option<&'static EarliestDraw> {
    EARLIEST_DRAWS.get()?.get(session::leader_index())
}

/// Before a draw that can have this time.
pub fn lower_to(time_ms: i64) {
    if let Some(earliest) = own() {
        earliest.lower_to(time_ms);
    }
}

/// At each event of a transaction of this process, also if it draws no id: a worker may have drawn for it.
pub fn at_xact_event(event: pg_sys::XactEvent::Type) {
    use pg_sys::XactEvent::*;
    // A worker of a parallel query commits a transaction of its own before it joins its leader's.
    let own = own().filter(|_| !session::is_parallel_worker());
    let Some(earliest) = own else {
        return;
    };
    match event {
        XACT_EVENT_PRE_PREPARE => prepared::keep(earliest.get()),
        // PostgreSQL has made the transaction's rows visible, and all its workers have ended.
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => earliest.clear(),
        _ => {}
    }
}
