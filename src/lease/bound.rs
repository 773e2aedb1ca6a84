//! The terms that are bound to this session. The session holds the lock of each until the term ends.

use super::store::bound as rows;
use super::{queue, session_lock};
use crate::pg::advisory_lock::Scope;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::LazyLock;

/// A term that is bound to this session. Another session may have ended it.
struct BoundTerm {
    name: String,
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

/// Acquires the lock of a new term. After the session, the slot stays unavailable for `lock_delay_us`.
pub fn add(name: &str, token: i64, key: i64, lock_delay_us: i64) {
    session_lock::lock(key).acquire(Scope::Session);
    let mut terms = BOUND.lock();
    terms.bound += 1;
    terms.by_token.insert(token, BoundTerm { name: name.to_owned(), key, lock_delay_us });
}

/// Releases the lock of a term that has ended.
pub fn remove(token: i64) {
    let Some(BoundTerm { key, .. }) = BOUND.lock().by_token.remove(&token) else {
        return;
    };
    let lock = session_lock::lock(key);
    // DISCARD ALL may have released it.
    if lock.is_held() {
        lock.release(Scope::Session);
    }
}

/// Releases the locks of terms that other sessions have ended, and renames those that they have moved.
///
/// Call it before each new term. It reads the rows when as many terms were bound as it has kept the last time. So a
/// term costs the same however many are bound.
pub fn sweep() {
    let (names, tokens): (Vec<String>, Vec<i64>) = {
        let terms = BOUND.lock();
        if terms.bound < terms.kept {
            return;
        }
        terms.by_token.iter().map(|(token, term)| (term.name.clone(), *token)).unzip()
    };
    let ended_or_moved = rows::without_term(names, tokens);
    if !ended_or_moved.is_empty() {
        let mut names = rows::names_of(ended_or_moved.clone());
        for token in ended_or_moved {
            match names.remove(&token) {
                Some(name) => rename(token, name),
                None => remove(token),
            }
        }
    }
    let mut terms = BOUND.lock();
    terms.kept = terms.by_token.len();
    terms.bound = 0;
}

fn rename(token: i64, name: String) {
    if let Some(term) = BOUND.lock().by_token.get_mut(&token) {
        term.name = name;
    }
}

/// The session ends, and PostgreSQL has released its locks: the slots are free.
pub fn at_exit(_code: i32) {
    for BoundTerm { name, key, lock_delay_us } in std::mem::take(&mut *BOUND.lock()).by_token.into_values() {
        session_lock::ended_since_us(key, Some(lock_delay_us));
        if let Some(condition) = queue::condition(&name) {
            condition.broadcast();
        }
    }
}
