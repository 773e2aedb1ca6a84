//! Leases that are bound to a session: it holds an advisory lock, and whoever wants to know whether it still lives looks
//! whether that lock is held. Its key is a random number in the lease's row: all can see locks, and none but the holder is
//! to know the token.

use super::machine;
use crate::lock::manager::{Lock, Mode, Scope, Space};
use crate::pg::system_clock;
use crate::shmem::{self, Locked};
use idgen_core::lease::{Ends, Session};
use parking_lot::Mutex;
use std::sync::LazyLock;

/// Sessions that have ended, and since when.
pub static ENDS: Locked<Ends> = Locked::new(c"idgen ended sessions", 60, |_| Ends::new());

/// The lock that the session holds.
pub fn lock(key: i64) -> Lock {
    Lock::new(Space::LeaseSession, key, Mode::Exclusive)
}

/// Is a session there that holds it?
pub fn lives(key: i64) -> bool {
    // Shared, so that those who look do not take each other for the session.
    let probe = Lock::new(Space::LeaseSession, key, Mode::Shared);
    if lock(key).is_held() {
        return true;
    }
    let is_free = probe.try_take(Scope::Transaction).is_some();
    if is_free {
        probe.release(Scope::Transaction);
    }
    !is_free
}

/// What has become of a session of that start of the server. With a time that the slot rests after it, its end is remembered.
pub fn state(server_start: i64, key: i64, rest_us: Option<i64>) -> Session {
    if server_start != machine::server_start() {
        Session::EndedWithServer
    } else if lives(key) {
        Session::Lives
    } else {
        Session::Ended { since_us: known_end_us(key, rest_us) }
    }
}

/// Since when it is known that the session has ended that holds no lock of this key any more: from now on, if it was not
/// known. With a time that the slot rests after it, it is remembered. Without shared memory each process knows for itself.
pub fn known_end_us(key: i64, rest_us: Option<i64>) -> i64 {
    static OWN: LazyLock<Mutex<Ends>> = LazyLock::new(|| Mutex::new(Ends::new()));
    let now_us = system_clock::boot_us();
    match shmem::is_preloaded() {
        true => ENDS.exclusive(|ends| ends.since_us(key, now_us, rest_us)),
        false => OWN.lock().since_us(key, now_us, rest_us),
    }
}
