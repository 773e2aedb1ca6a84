//! Effects of the running transaction on leases: what its end has to do, or to take back; and the terms that are bound to
//! this session, which holds the lock of each until the term ends.

use super::rows::{LeaseRow, ROWS, held, slot_key};
use super::terms::HeldTerm;
use super::{errors, locks};
use crate::pg::advisory_lock::Scope;
use crate::pg::effects::SubxactList;
use crate::pg::latch::ConditionVariable;
use crate::pg::snapshot::Moment;
use crate::pg::xact::{self, Durability};
use idgen_core::lease::{Effect, Effects};
use parking_lot::{Mutex, MutexGuard};
use pgrx::prelude::*;
use std::collections::HashMap;
use std::sync::{LazyLock, Once};

/// What the transaction has done with leases. A savepoint that is rolled back undoes its effects.
static PENDING: SubxactList<Effect> = SubxactList::new(undo);

/// The same, for questions.
pub static EFFECTS: LazyLock<Mutex<Effects>> = LazyLock::new(|| Mutex::new(Effects::default()));

/// The state of the transaction that savepoints do not roll back.
#[derive(Default)]
pub struct Transaction {
    /// A term has begun, or was extended or revoked.
    changes_terms: bool,
    /// What the log has of the transaction, if that is a release and nothing else. If it ends like this, its commit does not wait
    /// for the disk: a crash that loses the release costs a wait for the end of the term, and never lets two hold it.
    pub release_only: Option<u64>,
    /// Leases that it has acquired, and when. A snapshot that is older may not show what the last holder has written.
    pub acquired: HashMap<String, Moment>,
    /// Broadcast when the transaction has ended.
    conditions: Vec<&'static ConditionVariable>,
}

static RUNNING: LazyLock<Mutex<Transaction>> = LazyLock::new(Mutex::default);

/// The running transaction. Its end is followed from the first call on, and also runs where that call has failed.
pub fn running() -> MutexGuard<'static, Transaction> {
    static FOLLOWED: Once = Once::new();
    FOLLOWED.call_once(|| {
        xact::on_xact_event(at_xact_event);
        PENDING.follow();
        xact::at_exit(at_exit);
    });
    RUNNING.lock()
}

/// Raises 55000 in a statement whose snapshot may be older than the term of this lease that the transaction has begun.
pub fn refuse_in_acquiring_statement(name: &str) {
    if running().acquired.get(name).is_some_and(|moment| !moment.is_seen()) {
        errors::used_by_acquiring_statement(name).raise();
    }
}

/// Records an effect of the transaction on a term, unless it changes no answer.
pub fn record(change: impl FnOnce(&mut Effects) -> Option<Effect>) {
    let effect = change(&mut EFFECTS.lock());
    if let Some(effect) = effect {
        // The end of the transaction ends the effect.
        drop(running());
        PENDING.push(effect);
    }
}

/// A term has begun, or was extended or revoked: the commit waits for the disk and for synchronous standbys.
pub fn require_durability() {
    xact::require_durability(Durability::Failover);
    running().changes_terms = true;
}

/// Wakes the waiters for a lease when the transaction ends.
pub fn wake_at_end(name: &str) {
    let Some(condition) = locks::condition(name) else {
        return;
    };
    let conditions = &mut running().conditions;
    if !conditions.iter().any(|known| std::ptr::eq(*known, condition)) {
        conditions.push(condition);
    }
}

/// Binds a term to the session, which holds the lock of this key until the term ends. After the session, the slot stays
/// unavailable for `lock_delay_us`.
pub fn bind(name: &str, term: &HeldTerm, key: i64, lock_delay_us: i64) {
    sweep_bound();
    locks::session_lock(key).acquire(Scope::Session);
    let mut terms = BOUND.lock();
    terms.bound += 1;
    terms.by_token.insert(term.token, BoundTerm { name: name.to_owned(), slot: term.slot, key, lock_delay_us });
    drop(terms);
    record(|_| Some(Effect::Bound { token: term.token }));
}

fn at_xact_event(event: pg_sys::XactEvent::Type) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT if RUNNING.lock().release_only == Some(xact::log_position()) => {
            xact::commit_asynchronously()
        }
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE if RUNNING.lock().changes_terms => errors::prepared().raise(),
        // Other sessions see the changed rows already.
        pg_sys::XactEvent::XACT_EVENT_COMMIT => end(|effect| {
            if let Effect::Released { token, .. } = effect {
                remove_bound(token);
            }
        }),
        pg_sys::XactEvent::XACT_EVENT_ABORT => end(undo),
        // The prepared transaction keeps the row locks of its fences, without this session.
        pg_sys::XactEvent::XACT_EVENT_PREPARE => end(drop),
        _ => {}
    }
}

/// Undoes the newest effect, with the lock that it would leave behind.
fn undo(effect: Effect) {
    match effect {
        Effect::Bound { token } => remove_bound(token),
        effect => EFFECTS.lock().undo(&effect),
    }
}

fn end(finish: fn(Effect)) {
    let conditions = std::mem::take(&mut *RUNNING.lock()).conditions;
    PENDING.take().into_iter().rev().for_each(finish);
    *EFFECTS.lock() = Effects::default();
    conditions.into_iter().for_each(ConditionVariable::broadcast);
}

/// A term that is bound to this session. Another session may have ended it.
struct BoundTerm {
    name: String,
    slot: i32,
    key: i64,
    lock_delay_us: i64,
}

#[derive(Default)]
struct BoundTerms {
    by_token: HashMap<i64, BoundTerm>,
    /// How many terms the last sweep has kept.
    kept: usize,
    /// How many terms were bound since the last sweep.
    bound: usize,
}

static BOUND: LazyLock<Mutex<BoundTerms>> = LazyLock::new(|| Mutex::new(BoundTerms::default()));

/// Releases the lock of a term that has ended.
fn remove_bound(token: i64) {
    let Some(BoundTerm { key, .. }) = BOUND.lock().by_token.remove(&token) else {
        return;
    };
    let lock = locks::session_lock(key);
    // DISCARD ALL may have released it.
    if lock.is_held() {
        lock.release(Scope::Session);
    }
}

/// Releases the locks of terms that other sessions have ended.
///
/// Call it before each new term. It reads the rows when as many terms were bound as it has kept the last time. So a
/// term costs the same however many are bound.
fn sweep_bound() {
    let bound: Vec<(i64, String, i32)> = {
        let terms = BOUND.lock();
        if terms.bound < terms.kept {
            return;
        }
        terms.by_token.iter().map(|(token, term)| (*token, term.name.clone(), term.slot)).collect()
    };
    for (token, name, slot) in bound {
        // Also while this transaction has ended it, which may be rolled back.
        // SAFETY: a row of the scan below.
        let is_over = |row: &LeaseRow| unsafe { row.replaced_by() }.is_some_and(xact::is_committed);
        let find_it = |row: &LeaseRow| (held(row).is_current(token) && !is_over(row)).then_some(());
        if ROWS.read(|rows| rows.find_in_all(&slot_key(&name, slot), find_it)).is_none() {
            remove_bound(token);
        }
    }
    let mut terms = BOUND.lock();
    terms.kept = terms.by_token.len();
    terms.bound = 0;
}

/// The session ends, and PostgreSQL has released its locks: the slots are free.
fn at_exit(_code: i32) {
    for BoundTerm { name, key, lock_delay_us, .. } in std::mem::take(&mut *BOUND.lock()).by_token.into_values() {
        locks::ended_since_us(key, Some(lock_delay_us));
        if let Some(condition) = locks::condition(&name) {
            condition.broadcast();
        }
    }
}
