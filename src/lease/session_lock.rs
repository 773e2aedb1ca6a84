//! Terms that are bound to a session. The session holds an advisory lock: the term lasts while the lock is held. The
//! key of the lock is a random number in the slot's row: all users can read `pg_locks`, and the token is secret.

use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::{session, system_clock};
use crate::shmem::{self, Locked};
use idgen_core::lease::{EndedSessions, Session};
use parking_lot::Mutex;
use std::sync::LazyLock;

/// When sessions were first seen to have ended.
pub static ENDED: Locked<EndedSessions> = Locked::new(c"idgen ended sessions", 60, |_| EndedSessions::new());

/// Held by the session that a term is bound to. The key is random.
const SESSION: LockKind = LockKind::new(b"ls");

/// The columns `session` and `session_key` for a term that is bound to this session.
pub fn new_binding() -> (i64, i64) {
    (session::server_start_us(), session::random_i64())
}

/// The lock that the session holds.
pub fn lock(key: i64) -> AdvisoryLock {
    AdvisoryLock::new(SESSION, key, Mode::Exclusive)
}

/// True if a session holds the lock.
pub fn is_alive(key: i64) -> bool {
    // In shared mode, so that a concurrent test does not look like the session.
    let probe = AdvisoryLock::new(SESSION, key, Mode::Shared);
    if lock(key).is_held() {
        return true;
    }
    let is_free = probe.try_acquire(Scope::Transaction).is_some();
    if is_free {
        probe.release(Scope::Transaction);
    }
    !is_free
}

/// The state of a session. Its end is remembered if the slot has a lock delay and the caller wants the slot.
pub fn state((server, key): (i64, i64), lock_delay_us: Option<i64>) -> Session {
    if server != session::server_start_us() {
        Session::EndedWithServer
    } else if is_alive(key) {
        Session::Lives
    } else {
        Session::Ended { since_us: ended_since_us(key, lock_delay_us) }
    }
}

/// When a session without its lock was first seen to have ended; see [`EndedSessions::since_us`]. Without shared
/// memory, each process remembers on its own.
pub fn ended_since_us(key: i64, lock_delay_us: Option<i64>) -> i64 {
    static ENDED_HERE: LazyLock<Mutex<EndedSessions>> = LazyLock::new(|| Mutex::new(EndedSessions::new()));
    let now_us = system_clock::boot_us();
    match shmem::is_preloaded() {
        true => ENDED.exclusive(|ended| ended.since_us(key, now_us, lock_delay_us)),
        false => ENDED_HERE.lock().since_us(key, now_us, lock_delay_us),
    }
}
