//! Acquiring and releasing named locks, one or several.

use super::holds::{self, LockWait};
use super::names;
use crate::pg::advisory_lock::{Acquired, AdvisoryLock, Limit, Mode, Scope, acquire_for_session};
use crate::pg::effects::MessageEffects;
use crate::pg::ereport::{self, errors};
use idgen_core::lock::NameHash;
use parking_lot::Mutex;
use pgrx::prelude::*;

/// A lock by its name.
pub struct Named<'a> {
    pub hash: NameHash,
    pub name: &'a str,
}

impl Named<'_> {
    fn lock(&self, mode: Mode) -> AdvisoryLock {
        holds::lock(self.hash.key, mode)
    }

    #[inline]
    fn acquired(&self, mode: Mode, scope: Scope, acquired: Acquired) {
        if scope == Scope::Session {
            ACQUIRED.push((self.hash.key, mode));
        }
        if holds::acquired(self.hash.key, mode, scope, acquired) {
            names::register(self.hash, self.name);
        }
    }

    fn waiting(&self, mode: Mode, scope: Scope) -> LockWait {
        // First: the registry keeps names of locks that a process waits for.
        let waiting = LockWait::begin(self.hash.key, mode, scope);
        names::register(self.hash, self.name);
        waiting
    }
}

/// The session's locks that the client's message has acquired, and not released since. If it ends in an error, its client does
/// not know that it holds them.
static ACQUIRED: MessageEffects<(i64, Mode)> = MessageEffects::new(|(key, mode)| {
    if holds::lock(key, mode).release(Scope::Session) {
        holds::released(key, mode, Scope::Session);
    }
});

/// Notes that a session's lock was released once.
fn released(key: i64, mode: Mode) {
    ACQUIRED.forget(|acquired| *acquired == (key, mode));
    holds::released(key, mode, Scope::Session);
}

/// Acquires a lock. False when the time is over.
#[inline]
pub fn one(named: &Named, mode: Mode, scope: Scope, limit: Limit) -> bool {
    let lock = named.lock(mode);
    match lock.try_acquire(scope).or_else(|| wait_for(named, &lock, mode, scope, limit)) {
        Some(acquired) => {
            named.acquired(mode, scope, acquired);
            true
        }
        None => false,
    }
}

#[cold]
fn wait_for(named: &Named, lock: &AdvisoryLock, mode: Mode, scope: Scope, limit: Limit) -> Option<Acquired> {
    let _waiting = match limit {
        Limit::Answer(until) if until <= std::time::Instant::now() => return None,
        _ => named.waiting(mode, scope),
    };
    // Without a limit of this call, an error of the wait ends the transaction, which releases the transaction's lock.
    if scope == Scope::Transaction && !matches!(limit, Limit::Answer(_)) {
        return Some(lock.acquire(scope));
    }
    let acquired = acquire_for_session(lock, limit)?;
    if scope == Scope::Transaction {
        lock.hand_to_transaction();
    }
    Some(acquired)
}

/// Acquires every lock, in the order given, which is that of the keys, or none. False when the time is over.
pub fn all(names: &[(NameHash, String)], mode: Mode, scope: Scope, limit: Limit) -> bool {
    // For the session first, in either scope: those can be released before the transaction ends. Without a subtransaction, as
    // each wait.
    let held: Mutex<Vec<(AdvisoryLock, Acquired)>> = Mutex::new(Vec::with_capacity(names.len()));
    let release_held = || {
        for ((lock, _), (hash, _)) in held.lock().drain(..).zip(names) {
            lock.release(Scope::Session);
            if scope == Scope::Session {
                released(hash.key, mode);
            }
        }
    };
    let outcome = ereport::catching(|| {
        let has_all = names.iter().all(|(hash, name)| {
            // A cancel that nothing serves here would be reported after the call, which then leaves its locks held.
            check_for_interrupts!();
            let named = Named { hash: *hash, name };
            let lock = named.lock(mode);
            let acquired = lock.try_acquire(Scope::Session).or_else(|| {
                let _waiting = named.waiting(mode, scope);
                acquire_for_session(&lock, limit)
            });
            let Some(acquired) = acquired else { return false };
            held.lock().push((lock, acquired));
            // Before the last check below: a thousand names take a while.
            if scope == Scope::Session {
                named.acquired(mode, scope, acquired);
            }
            true
        });
        check_for_interrupts!();
        has_all
    });
    match outcome {
        Ok(true) => {
            if scope == Scope::Transaction {
                let held = held.lock();
                // First: to note a name can send a warning, which can raise.
                held.iter().for_each(|(lock, _)| lock.hand_to_transaction());
                for ((_, acquired), (hash, name)) in held.iter().zip(names) {
                    Named { hash: *hash, name }.acquired(mode, scope, *acquired);
                }
            }
            true
        }
        Ok(false) => {
            release_held();
            false
        }
        Err(cause) => {
            release_held();
            cause.rethrow()
        }
    }
}

/// Releases a session's lock once. Without a mode, releases the exclusive lock, or else the shared one. False, with a
/// warning, if the session does not hold it.
pub fn release(named: &Named, mode: Option<Mode>) -> bool {
    let modes: &[Mode] = match &mode {
        Some(mode) => std::slice::from_ref(mode),
        None => &[Mode::Exclusive, Mode::Shared],
    };
    match modes.iter().find(|mode| named.lock(**mode).release(Scope::Session)) {
        Some(mode) => {
            released(named.hash.key, *mode);
            true
        }
        None => {
            let is_transactions = modes.iter().any(|mode| named.lock(*mode).is_held());
            (if is_transactions { held_by_transaction } else { not_held })(named.name).warn();
            false
        }
    }
}

errors! {
    fn not_held(name: &str) {
        ERRCODE_WARNING: "this session does not hold lock \"{name}\"";
    }

    fn held_by_transaction(name: &str) {
        ERRCODE_WARNING: "lock \"{name}\" is held by the transaction";
        detail: "A function with _xact in its name acquired it. The end of the transaction releases it.";
    }
}
