//! Advisory locks of a lease: the queue of acquirers, the lock of the definition, precedence over fences, and the lock of a
//! session that a term is bound to.
//!
//! Lock order: the head of the queue may hold locks of slots while it waits for the lock of the definition. So a
//! transaction that needs both enters the queue first.

use crate::args::name_hash;
use crate::pg::advisory_lock::{AdvisoryLock, Limit, LockKind, Mode, Scope, acquire_for_transaction};
use crate::pg::latch::{self, ConditionVariable, WaitEvent};
use crate::pg::{session, system_clock};
use crate::shmem::{self, Locked, Part};
use idgen_core::lease::{EndedSessions, LeaseLock, SeenEnded, Session};
use parking_lot::Mutex;
use std::sync::LazyLock;
use std::time::Duration;

/// Leases share condition variables. A broadcast for another lease costs one read of the rows.
pub static CONDITIONS: Part<&'static [ConditionVariable]> =
    Part::new(c"idgen lease conditions", |block| block.array(CONDITION_COUNT, ConditionVariable::default));
const CONDITION_COUNT: usize = 256;

/// The longest sleep of the head of a queue. Some ends signal nothing: DISCARD ALL in a bound session, COMMIT PREPARED.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The longest sleep without shared memory, where no process signals.
const LONGEST_SLEEP_UNPRELOADED: Duration = Duration::from_millis(100);

/// The wait event of the head of a queue.
static LEASE_WAIT: WaitEvent = WaitEvent::new(c"IdgenLease");

/// The queue of acquirers of a lease. Only its holder, the head, reads the rows. So acquirers are served in order, and a grant
/// costs the same however many wait. The view `idgen.leases` has this kind as a number.
const QUEUE: LockKind = LockKind::new(b"lq");
/// A grant holds it shared while it chooses a slot and writes the row. A transaction that changes the definition holds it
/// exclusively until it ends.
const DEFINITION: LockKind = LockKind::new(b"ld");
/// Held shared by a transaction that has begun a shared term, until it ends. Until then, acquirers of slots do not see the
/// term, and wait.
const SHARED_GRANT: LockKind = LockKind::new(b"lg");
/// Held shared by a fence before it locks the row, exclusively by a take-over that waits for that row.
const FENCE: LockKind = LockKind::new(b"lf");

/// A lock of a lease.
pub fn lock(name: &str, lock: LeaseLock, mode: Mode) -> AdvisoryLock {
    let kind = match lock {
        LeaseLock::Queue => QUEUE,
        LeaseLock::Definition => DEFINITION,
        LeaseLock::SharedGrants => SHARED_GRANT,
    };
    AdvisoryLock::new(kind, name_hash(name).key, mode)
}

/// True if the head of the queue may be waiting for this transaction, which needs no turn then. It holds the lock of the
/// definition exclusively, so no other transaction is granted a slot until it ends. Or it has begun a shared term and wants
/// another.
pub fn bypasses_queue(name: &str, wants_shared: bool) -> bool {
    wants_shared && lock(name, LeaseLock::SharedGrants, Mode::Shared).is_held()
        || lock(name, LeaseLock::Definition, Mode::Exclusive).is_held()
}

/// The condition variable of a lease, broadcast when a slot may have become free. `None` without preload.
pub fn condition(name: &str) -> Option<&'static ConditionVariable> {
    let index = name_hash(name).check as usize % CONDITION_COUNT;
    CONDITIONS.get().map(|conditions| &conditions[index])
}

/// Sleeps until a broadcast for the lease, for at most `time`. Returns at once if there was one since `broadcasts` was read.
pub fn sleep(name: &str, broadcasts: u64, time: Duration) {
    match condition(name) {
        Some(condition) => condition.sleep_unless_broadcast_since(broadcasts, time.min(LONGEST_SLEEP), &LEASE_WAIT),
        None => latch::sleep(time.min(LONGEST_SLEEP_UNPRELOADED), &LEASE_WAIT),
    }
}

/// Precedence of a take-over over later fences of the slots that it waits for. A fence acquires and releases the lock of its
/// slot in shared mode before it locks the row.
#[derive(Default)]
pub struct Precedence(Vec<(i32, AdvisoryLock)>);

/// Slots whose keys collide only wait for each other. The key does not contain the token: all users can read
/// `pg_locks`.
fn slot_lock(name: &str, slot: i32, mode: Mode) -> AdvisoryLock {
    let slot = i64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    AdvisoryLock::new(FENCE, name_hash(name).key ^ slot, mode)
}

/// Waits until no take-over has precedence in the slot. Not in a transaction that has locked the slot's row: the
/// take-over waits for that transaction.
pub fn yield_to_take_over(name: &str, slot: i32) {
    let lock = slot_lock(name, slot, Mode::Shared);
    lock.acquire(Scope::Transaction);
    lock.release(Scope::Transaction);
}

impl Precedence {
    /// Acquires precedence in these slots, until the transaction ends at the latest, and releases it in all others: they are
    /// free, or their terms were renewed. False if the limit has passed.
    pub fn move_to(&mut self, name: &str, slots: &[i32], limit: Limit) -> bool {
        self.0.retain(|(slot, lock)| slots.contains(slot) || !lock.release(Scope::Transaction));
        slots.iter().all(|slot| {
            let is_held = self.0.iter().any(|(held, _)| held == slot);
            let lock = slot_lock(name, *slot, Mode::Exclusive);
            let is_acquired = is_held || limit.left() != Some(Duration::ZERO) && acquire_for_transaction(&lock, limit);
            if is_acquired && !is_held {
                self.0.push((*slot, lock));
            }
            is_acquired
        })
    }
}

/// When sessions were first seen to have ended.
pub static ENDED: Locked<EndedSessions> = Locked::new(c"idgen ended sessions", 60, |_| EndedSessions::new());

/// Held by the session that a term is bound to: the term lasts while the lock is held. The key is a random number in the
/// slot's row: all users can read `pg_locks`, and the token is secret.
const SESSION: LockKind = LockKind::new(b"ls");

/// The lock that the session holds.
pub fn session_lock(key: i64) -> AdvisoryLock {
    AdvisoryLock::new(SESSION, key, Mode::Exclusive)
}

/// True if a session holds the lock.
pub fn is_alive(key: i64) -> bool {
    // In shared mode, so that a concurrent test does not look like the session.
    let probe = AdvisoryLock::new(SESSION, key, Mode::Shared);
    if session_lock(key).is_held() {
        return true;
    }
    let is_free = probe.try_acquire(Scope::Transaction).is_some();
    if is_free {
        probe.release(Scope::Transaction);
    }
    !is_free
}

/// The state of the session that a term is bound to: when its server started, and the key of its lock. Its end is remembered if
/// the slot has a lock delay and the caller wants the slot.
pub fn session_state(session: Option<(i64, i64)>, lock_delay_us: Option<i64>) -> Session {
    let Some((server, key)) = session else { return Session::None };
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
    static SEEN: LazyLock<Mutex<SeenEnded>> = LazyLock::new(Mutex::default);
    let now_us = system_clock::boot_us();
    let shared_us = match shmem::is_preloaded() {
        true => ENDED.exclusive(|ended| ended.since_us(key, now_us, lock_delay_us)),
        false => now_us,
    };
    SEEN.lock().since_us(key, now_us, lock_delay_us, shared_us)
}
