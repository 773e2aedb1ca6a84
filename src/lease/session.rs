//! Leases that are bound to a session: it holds an advisory lock by the lease's token, and whoever wants to know whether it
//! still lives looks whether that lock is held.

use super::machine;
use crate::lock::manager::{Lock, Mode, Scope, Space};
use crate::{clock, shmem};
use idgen_core::lease::{Ends, Session};
use parking_lot::Mutex;
use std::sync::LazyLock;

/// The lock that the session holds.
pub fn lock(token: i64) -> Lock {
    Lock::new(Space::LeaseSession, token, Mode::Exclusive)
}

/// Is a session there that holds it?
pub fn lives(token: i64) -> bool {
    // Shared, so that those who look do not take each other for the session.
    let probe = Lock::new(Space::LeaseSession, token, Mode::Shared);
    if lock(token).is_held() {
        return true;
    }
    let is_free = probe.try_take(Scope::Transaction).is_some();
    if is_free {
        probe.release(Scope::Transaction);
    }
    !is_free
}

/// What has become of a session of that start of the server.
pub fn state(server_start: i64, token: i64) -> Session {
    if server_start != machine::server_start() {
        Session::EndedWithServer
    } else if lives(token) {
        Session::Lives
    } else {
        Session::Ended { since_us: known_end_us(token) }
    }
}

/// Since when it is known that the session of a token has ended: from now on, if nobody has seen it yet. Without shared
/// memory each process knows for itself.
pub fn known_end_us(token: i64) -> i64 {
    static OWN: LazyLock<Mutex<Ends>> = LazyLock::new(|| Mutex::new(Ends::new()));
    let now_us = clock::boot_us();
    match shmem::shared() {
        Some(shared) => shared.with_lease_ends(|ends| ends.since_us(token, now_us)),
        None => OWN.lock().since_us(token, now_us),
    }
}
