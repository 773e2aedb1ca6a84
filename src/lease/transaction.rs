//! What the end of a transaction means for its leases.

use super::{own, session, turnstile};
use crate::bell::Bell;
use crate::durable::{self, Need};
use crate::error;
use crate::lock::manager::Scope;
use crate::subtransaction::Done;
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::sync::Once;

/// Something done with a lease, in a transaction that has not ended yet.
enum Deed {
    /// The row is locked against take-overs.
    Fenced { name: String, token: i64 },
    /// The row is locked otherwise: the term has begun or was prolonged.
    Locked { token: i64 },
    /// The session has taken the lock of a term that is nobody's if this is undone.
    Bound { token: i64 },
    /// Nothing is fenced by the token any more, and its session is to let go of its lock, unless this is undone.
    Released { token: i64 },
}

struct Transaction {
    deeds: Done<Deed>,
    /// A term has begun or was prolonged: that must not be lost after it was told.
    need: Need,
    /// Whom to wake when the rows are as they stay.
    bells: Vec<&'static Bell>,
}

static RUNNING: Mutex<Transaction> =
    Mutex::new(Transaction { deeds: Done::new(), need: Need::Nothing, bells: Vec::new() });

fn with<R>(work: impl FnOnce(&mut Transaction) -> R) -> R {
    static REGISTERED: Once = Once::new();
    // SAFETY: the callbacks have the signatures asked for, and live as long as the library, which is never unloaded.
    REGISTERED.call_once(|| unsafe {
        pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_subtransaction_end), std::ptr::null_mut());
        pg_sys::on_shmem_exit(Some(at_exit), pg_sys::Datum::null());
    });
    work(&mut RUNNING.lock())
}

/// A term has begun, or lasts longer than before.
pub fn is_to_be_durable() {
    with(|running| running.need = Need::Standbys);
}

/// What begins or prolongs a term in here needs the standbys only if the caller has not set `synchronous_commit = local`.
pub fn confirmed_apart<R>(work: impl FnOnce() -> R) -> R {
    let before = RUNNING.lock().need;
    let result = work();
    RUNNING.lock().need = before.max(Need::Here);
    result
}

/// Who waits for the name is woken when the transaction ends.
pub fn wake_at_end(name: &str) {
    let Some(bell) = turnstile::bell(name) else {
        return;
    };
    with(|running| {
        if !running.bells.iter().any(|known| std::ptr::eq(*known, bell)) {
            running.bells.push(bell);
        }
    });
}

pub fn fenced(name: &str, token: i64) {
    with(|running| running.deeds.push(Deed::Fenced { name: name.to_owned(), token }));
}

/// The transaction has begun or prolonged the term of this token, and holds a lock on its row.
pub fn locked(token: i64) {
    with(|running| running.deeds.push(Deed::Locked { token }));
}

/// How many terms the transaction has begun or prolonged.
pub fn terms() -> usize {
    RUNNING.lock().deeds.iter().filter(|deed| matches!(deed, Deed::Locked { .. })).count()
}

/// Does the transaction hold a lock on the row of this token's term, so that a take-over waits for its end?
pub fn has_locked(token: i64) -> bool {
    let is_lock = |deed: &Deed| matches!(deed, Deed::Fenced { token: by, .. } | Deed::Locked { token: by } | Deed::Released { token: by } if *by == token);
    // Mostly the last one: a transaction fences by one token.
    RUNNING.lock().deeds.iter().rev().any(is_lock)
}

/// Has the transaction fenced by the name, and not let go of it since?
pub fn has_fenced(name: &str) -> bool {
    let running = RUNNING.lock();
    let is_released =
        |by: &i64| running.deeds.iter().any(|deed| matches!(deed, Deed::Released { token } if token == by));
    let is_fence =
        |deed: &Deed| matches!(deed, Deed::Fenced { name: fenced, token } if fenced == name && !is_released(token));
    running.deeds.iter().any(is_fence)
}

/// Do later statements of the transaction see what its first one saw? To be asked outside of a subtransaction of ours, which
/// looks like a block.
pub fn has_one_snapshot() -> bool {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 && pg_sys::IsTransactionBlock() }
}

/// The session is to hold the lock of this key as long as the term lasts, and the slot rests after the session.
pub fn bind(name: &str, token: i64, key: i64, rest_us: i64) {
    // Other sessions may have ended or moved these terms: release the locks of those that ended, and rename those that moved.
    let bound = SESSION_TERMS.lock().clone();
    for term in bound.into_iter().filter(|term| !own::is_current(&term.name, term.token)) {
        match own::name_of(term.token) {
            Some(name) => SESSION_TERMS
                .lock()
                .iter_mut()
                .filter(|bound| bound.token == term.token)
                .for_each(|bound| bound.name.clone_from(&name)),
            None => unbind(term.token),
        }
    }
    session::lock(key).take(Scope::Session);
    with(|running| running.deeds.push(Deed::Bound { token }));
    // The session's end frees the lease.
    SESSION_TERMS.lock().push(Bound { name: name.to_owned(), token, key, rest_us });
}

/// A term was released.
pub fn released(token: i64) {
    with(|running| running.deeds.push(Deed::Released { token }));
}

/// A term that was bound to this session, and maybe still is.
#[derive(Clone)]
struct Bound {
    name: String,
    token: i64,
    key: i64,
    rest_us: i64,
}

static SESSION_TERMS: Mutex<Vec<Bound>> = Mutex::new(Vec::new());

/// If it is bound to this session, it is no longer.
fn unbind(token: i64) {
    let Some(key) = SESSION_TERMS.lock().iter().find(|term| term.token == token).map(|term| term.key) else {
        return;
    };
    let lock = session::lock(key);
    // Not after DISCARD ALL.
    if lock.is_held() {
        lock.release(Scope::Session);
    }
    SESSION_TERMS.lock().retain(|term| term.token != token);
}

#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            let need = RUNNING.lock().need;
            durable::make_commit(need);
        }
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE if RUNNING.lock().need > Need::Nothing => {
            error::lease::prepared().raise()
        }
        // Here the rows are as they stay, for all to see.
        pg_sys::XactEvent::XACT_EVENT_COMMIT => end(|deed| match deed {
            Deed::Released { token } => Some(token),
            _ => None,
        }),
        pg_sys::XactEvent::XACT_EVENT_ABORT => end(undo),
        // A fence goes on with the prepared transaction, without this session.
        pg_sys::XactEvent::XACT_EVENT_PREPARE => end(|_| None),
        _ => {}
    }
}

/// The lock that a deed which was undone leaves behind.
fn undo(deed: Deed) -> Option<i64> {
    match deed {
        Deed::Bound { token } => Some(token),
        _ => None,
    }
}

fn end(to_unbind: fn(Deed) -> Option<i64>) {
    let (deeds, bells) = {
        let mut running = RUNNING.lock();
        running.need = Need::Nothing;
        (running.deeds.take(), std::mem::take(&mut running.bells))
    };
    deeds.into_iter().filter_map(to_unbind).for_each(unbind);
    bells.into_iter().for_each(Bell::ring);
}

#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction_end(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => RUNNING.lock().deeds.committed(own, parent),
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            let undone = RUNNING.lock().deeds.undone(own);
            undone.into_iter().filter_map(undo).for_each(unbind);
        }
        _ => {}
    }
}

/// The session ends. PostgreSQL has let go of its locks by now; this process can still wake others.
#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    for Bound { name, key, rest_us, .. } in SESSION_TERMS.lock().drain(..) {
        session::known_end_us(key, Some(rest_us));
        if let Some(bell) = turnstile::bell(&name) {
            bell.ring();
        }
    }
}
