//! What this process has joined of the turns of a tag in one line: see `idgen_core::segment::turns`.

use super::attach::SharedRing;
use super::state::SEGMENTS;
use crate::pg::xact;
use idgen_core::segment::Draw;
use idgen_core::segment::turns::{Claim, Ticket};
use idgen_core::tenancy::Ended;
use parking_lot::Mutex;
use std::sync::Once;

/// The ring that this process waits for, and its part of a turn.
static JOINED: Mutex<Option<(usize, Ticket)>> = Mutex::new(None);

/// Draws from the turn that this process has joined, if that is over: so many values if `whole`, otherwise at least one.
pub fn draw(SharedRing { handle, index, .. }: SharedRing, whole: bool) -> Result<Draw, Ended> {
    let mut joined = JOINED.lock();
    SEGMENTS.exclusive(|segments| {
        if !segments.table.has_tenancy(index, handle) {
            return Err(Ended);
        }
        let Some((_, ticket)) = *joined else { return Ok(Draw::Dry) };
        let claim = segments.turns[index].claim(ticket, whole);
        if claim != Claim::Waits {
            *joined = None;
        }
        Ok(match claim {
            Claim::Drawn { run, makes_room } => Draw::Drawn { run, request: makes_room },
            Claim::Waits | Claim::Nothing => Draw::Dry,
        })
    })
}

/// Joins the next turn, unless this process has joined one. True if it has done so now.
pub fn join(SharedRing { handle, index, .. }: SharedRing, want: u64) -> bool {
    static REGISTERED: Once = Once::new();
    // A process that is terminated drops nothing.
    REGISTERED.call_once(|| {
        xact::before_exit(|_| {
            withdraw();
        })
    });
    let mut joined = JOINED.lock();
    if joined.is_some() {
        return false;
    }
    *joined = SEGMENTS.exclusive(|segments| {
        segments.table.has_tenancy(index, handle).then(|| (index, segments.turns[index].join(want)))
    });
    joined.is_some()
}

/// Ends what this process has joined without values. True if it had joined a turn.
pub fn withdraw() -> bool {
    let Some((index, ticket)) = JOINED.lock().take() else { return false };
    SEGMENTS.exclusive(|segments| segments.turns[index].withdraw(ticket));
    true
}
