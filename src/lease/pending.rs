//! Effects of the running transaction on leases: what its end has to do, or to take back.

use super::store::terms;
use super::{errors, queue, session_lock};
use crate::pg::advisory_lock::Scope;
use crate::pg::condition_variable::ConditionVariable;
use crate::pg::xact::{self, Durability, SubxactList};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::sync::Once;

/// What the transaction has done with a lease. A savepoint that is rolled back removes its effects.
enum PendingEffect {
    /// The row is locked against take-overs.
    Fenced { name: String, token: i64 },
    /// The row is locked otherwise: the term has begun or was extended.
    Locked { token: i64 },
    /// The session has acquired the lock of a new term. A rollback removes the term, and must release the lock.
    Bound { token: i64 },
    /// The token no longer fences. A term that is bound to this session gives up its session lock at the commit.
    Released { token: i64 },
}

static EFFECTS: SubxactList<PendingEffect> = SubxactList::new(undo);

/// The state of the transaction that savepoints do not roll back.
struct Transaction {
    /// A term must not be lost once its client knows that it has begun or was extended.
    durability: Durability,
    /// Broadcast when the transaction has ended.
    conditions: Vec<&'static ConditionVariable>,
}

static RUNNING: Mutex<Transaction> = Mutex::new(Transaction { durability: Durability::Any, conditions: Vec::new() });

fn follow_transactions() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        xact::on_xact_event(at_xact_event);
        EFFECTS.follow();
        xact::at_exit(at_exit);
    });
}

fn push(effect: PendingEffect) {
    follow_transactions();
    EFFECTS.push(effect);
}

/// A term has begun or was extended: the commit waits for the disk and for synchronous standbys.
pub fn require_durability() {
    follow_transactions();
    RUNNING.lock().durability = Durability::Failover;
}

/// Under `synchronous_commit = local`, terms that begin or are extended in `work` wait for the disk only. The client then
/// calls worker_confirm().
pub fn confirmed_apart<R>(work: impl FnOnce() -> R) -> R {
    let before = RUNNING.lock().durability;
    let result = work();
    RUNNING.lock().durability = before.max(Durability::Crash);
    result
}

/// Wakes the waiters for a lease when the transaction ends.
pub fn wake_at_end(name: &str) {
    let Some(condition) = queue::condition(name) else {
        return;
    };
    follow_transactions();
    let conditions = &mut RUNNING.lock().conditions;
    if !conditions.iter().any(|known| std::ptr::eq(*known, condition)) {
        conditions.push(condition);
    }
}

pub fn fenced(name: &str, token: i64) {
    push(PendingEffect::Fenced { name: name.to_owned(), token });
}

/// The transaction has begun or extended the term of this token, and holds a lock on its row.
pub fn locked(token: i64) {
    push(PendingEffect::Locked { token });
}

/// A term was released.
pub fn released(token: i64) {
    push(PendingEffect::Released { token });
}

/// How many terms the transaction has begun or extended.
pub fn term_count() -> usize {
    EFFECTS.count(|effect| matches!(effect, PendingEffect::Locked { .. }))
}

/// True if the transaction holds a lock on the row of this token's term, so that a take-over waits for its end.
pub fn has_locked(token: i64) -> bool {
    use PendingEffect::*;
    EFFECTS.any(|effect| match effect {
        Fenced { token: by, .. } | Locked { token: by } | Released { token: by } => *by == token,
        Bound { .. } => false,
    })
}

/// True if the transaction has fenced by the lease, and has not released the token since.
pub fn has_fenced(name: &str) -> bool {
    let mut is_released = Vec::new();
    // The newest first, so a release comes before the fence that it ends.
    EFFECTS.any(|effect| match effect {
        PendingEffect::Released { token } => {
            is_released.push(*token);
            false
        }
        PendingEffect::Fenced { name: fenced, token } => fenced == name && !is_released.contains(token),
        _ => false,
    })
}

/// Binds a term to the session, which holds the lock of this key until the term ends. After the session, the slot stays
/// unavailable for `lock_delay_us`.
pub fn bind(name: &str, token: i64, key: i64, lock_delay_us: i64) {
    // Other sessions may have ended or moved these terms: release the locks of those that ended, and rename those that
    // moved.
    let bound = SESSION_TERMS.lock().clone();
    for term in bound.into_iter().filter(|term| !terms::is_current(&term.name, term.token)) {
        match terms::name_of(term.token) {
            Some(name) => SESSION_TERMS
                .lock()
                .iter_mut()
                .filter(|bound| bound.token == term.token)
                .for_each(|bound| bound.name.clone_from(&name)),
            None => unbind(term.token),
        }
    }
    session_lock::lock(key).acquire(Scope::Session);
    push(PendingEffect::Bound { token });
    // The end of the session frees the slot.
    SESSION_TERMS.lock().push(BoundTerm { name: name.to_owned(), token, key, lock_delay_us });
}

/// A term that is bound to this session. Another session may have ended it.
#[derive(Clone)]
struct BoundTerm {
    name: String,
    token: i64,
    key: i64,
    lock_delay_us: i64,
}

static SESSION_TERMS: Mutex<Vec<BoundTerm>> = Mutex::new(Vec::new());

fn unbind(token: i64) {
    let Some(key) = SESSION_TERMS.lock().iter().find(|term| term.token == token).map(|term| term.key) else {
        return;
    };
    let lock = session_lock::lock(key);
    // DISCARD ALL may have released it.
    if lock.is_held() {
        lock.release(Scope::Session);
    }
    SESSION_TERMS.lock().retain(|term| term.token != token);
}

fn at_xact_event(event: pg_sys::XactEvent::Type) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            let durability = RUNNING.lock().durability;
            xact::require_durability(durability);
        }
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE if RUNNING.lock().durability > Durability::Any => {
            errors::prepared().raise()
        }
        // Other sessions see the changed rows already.
        pg_sys::XactEvent::XACT_EVENT_COMMIT => end(|effect| {
            if let PendingEffect::Released { token } = effect {
                unbind(token);
            }
        }),
        pg_sys::XactEvent::XACT_EVENT_ABORT => end(undo),
        // The prepared transaction keeps the row locks of its fences, without this session.
        pg_sys::XactEvent::XACT_EVENT_PREPARE => end(drop),
        _ => {}
    }
}

/// Releases the lock that an effect leaves behind when it is rolled back.
fn undo(effect: PendingEffect) {
    if let PendingEffect::Bound { token } = effect {
        unbind(token);
    }
}

fn end(finish: fn(PendingEffect)) {
    let conditions = {
        let mut running = RUNNING.lock();
        running.durability = Durability::Any;
        std::mem::take(&mut running.conditions)
    };
    EFFECTS.take().into_iter().for_each(finish);
    conditions.into_iter().for_each(ConditionVariable::broadcast);
}

/// The session ends, and PostgreSQL has released its locks.
fn at_exit(_code: i32) {
    for BoundTerm { name, key, lock_delay_us, .. } in SESSION_TERMS.lock().drain(..) {
        session_lock::ended_since_us(key, Some(lock_delay_us));
        if let Some(condition) = queue::condition(&name) {
            condition.broadcast();
        }
    }
}
