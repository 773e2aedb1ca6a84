//! Taking and letting go of named locks, one or several.

use super::errors;
use super::manager::{Lock, Mode, Scope, Space, Taken};
use super::registry;
use super::wait::{self, Limit};
use crate::pg::xact;
use idgen_core::lock::NameHash;
use parking_lot::Mutex;

/// A lock by its name.
pub struct Named<'a> {
    pub hash: NameHash,
    /// Asked for only where the name is not registered yet.
    pub name: &'a dyn Fn() -> String,
}

/// Takes a lock. False when the time is over.
#[inline]
pub fn one(named: &Named, mode: Mode, scope: Scope, limit: Limit) -> bool {
    let lock = Lock::new(Space::Name, named.hash.key, mode);
    match lock.try_take(scope).or_else(|| wait_for(named, &lock, mode, scope, limit)) {
        Some(taken) => {
            registry::taken(named, mode, scope, taken);
            true
        }
        None => false,
    }
}

#[cold]
fn wait_for(named: &Named, lock: &Lock, mode: Mode, scope: Scope, limit: Limit) -> Option<Taken> {
    let _waiting = match limit {
        Limit::Answer(until) if until <= std::time::Instant::now() => return None,
        _ => registry::waiting(named, mode, scope),
    };
    // Without a time limit of our own, the end of the transaction lets go of a transaction's lock, however the wait ends.
    if scope == Scope::Transaction && !matches!(limit, Limit::Answer(_)) {
        return Some(lock.take(scope));
    }
    let taken = wait::in_session(lock, limit)?;
    if scope == Scope::Transaction {
        hand_over(lock);
    }
    Some(taken)
}

/// Takes a lock for the transaction within the limit. False when the time is over.
pub fn in_transaction(lock: &Lock, limit: Limit) -> bool {
    if lock.try_take(Scope::Transaction).is_some() {
        return true;
    }
    let is_taken = wait::in_session(lock, limit).is_some();
    if is_taken {
        hand_over(lock);
    }
    is_taken
}

/// What the session holds becomes the transaction's. It is never free in between.
pub fn hand_over(lock: &Lock) {
    lock.take(Scope::Transaction);
    lock.release(Scope::Session);
}

/// Takes every lock, in the order of their keys, or none. False when the time is over before all are there.
pub fn all(names: &[(NameHash, String)], mode: Mode, scope: Scope, limit: Limit) -> bool {
    // The session's scope first, whatever is wanted: it outlives the subtransaction that catches an error.
    let held: Mutex<Vec<(Lock, Taken)>> = Mutex::new(Vec::with_capacity(names.len()));
    let let_go = || {
        for (lock, _) in held.lock().drain(..).rev() {
            lock.release(Scope::Session);
        }
    };
    let outcome = xact::in_subtransaction(|| {
        let all_are_there = names.iter().all(|(hash, name)| {
            let named = Named { hash: *hash, name: &|| name.clone() };
            let lock = Lock::new(Space::Name, hash.key, mode);
            let taken = lock.try_take(Scope::Session).or_else(|| {
                let _waiting = registry::waiting(&named, mode, scope);
                wait::in_session(&lock, limit)
            });
            taken.map(|taken| held.lock().push((lock, taken))).is_some()
        });
        all_are_there.then_some(())
    });
    match outcome {
        Ok(Some(())) => {
            for ((lock, taken), (hash, name)) in held.lock().iter().zip(names) {
                if scope == Scope::Transaction {
                    hand_over(lock);
                }
                registry::taken(&Named { hash: *hash, name: &|| name.clone() }, mode, scope, *taken);
            }
            true
        }
        Ok(None) => {
            let_go();
            false
        }
        Err(cause) => {
            let_go();
            cause.rethrow()
        }
    }
}

/// Lets go of a session's lock once, in the mode or in whichever is held. False, with a warning, if it is held in none.
pub fn release(named: &Named, mode: Option<Mode>) -> bool {
    let modes: &[Mode] = match &mode {
        Some(mode) => std::slice::from_ref(mode),
        None => &[Mode::Exclusive, Mode::Shared],
    };
    let lock = |mode: &Mode| Lock::new(Space::Name, named.hash.key, *mode);
    match modes.iter().find(|mode| lock(mode).release(Scope::Session)) {
        Some(mode) => {
            registry::released(named.hash, *mode);
            true
        }
        None => {
            let is_transactions = modes.iter().any(|mode| lock(mode).is_held());
            errors::not_held(&(named.name)(), is_transactions).warn();
            false
        }
    }
}
