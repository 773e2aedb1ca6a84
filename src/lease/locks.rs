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
use idgen_core::lease::{EndedSessions, Session};
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

/// Held by the head of the queue of a lease. The view `idgen.leases` has this kind as a number.
const QUEUE: LockKind = LockKind::new(b"lq");
const DEFINITION: LockKind = LockKind::new(b"ld");
/// Held shared by a transaction that has begun a shared term, until it ends.
const SHARED_GRANT: LockKind = LockKind::new(b"lg");
/// Held shared by a fence before it locks the row, exclusively by a take-over that waits for that row.
const FENCE: LockKind = LockKind::new(b"lf");

/// The queue of acquirers of a lease, an advisory lock. Only its holder, the head, reads the rows. So acquirers are
/// served in order, and a grant costs the same however many wait.
#[derive(Clone, Copy)]
pub struct Queue {
    key: i64,
    lock: AdvisoryLock,
    condition: Option<&'static ConditionVariable>,
    /// The head of the queue may be waiting for this transaction, and it needs no turn. It holds the definition's lock
    /// exclusively, so no other transaction is granted a slot until it ends. Or it has begun a shared term and wants another.
    is_bypassed: bool,
}

/// The order in which calls for several leases work on them.
pub fn order(name: &str) -> (i64, u64) {
    let hash = name_hash(name);
    (hash.key, hash.check)
}

/// The condition variable of a lease, broadcast when a slot may have become free. `None` without preload.
pub fn condition(name: &str) -> Option<&'static ConditionVariable> {
    let index = name_hash(name).check as usize % CONDITION_COUNT;
    CONDITIONS.get().map(|conditions| &conditions[index])
}

impl Queue {
    pub fn of(name: &str, wants_shared: bool) -> Self {
        let key = name_hash(name).key;
        let has_shared = wants_shared && AdvisoryLock::new(SHARED_GRANT, key, Mode::Shared).is_held();
        Self {
            key,
            lock: AdvisoryLock::new(QUEUE, key, Mode::Exclusive),
            condition: condition(name),
            is_bypassed: has_shared || definition_lock(name, Mode::Exclusive).is_held(),
        }
    }

    fn shared_grant_lock(&self, mode: Mode) -> AdvisoryLock {
        AdvisoryLock::new(SHARED_GRANT, self.key, mode)
    }

    /// Waits to become the head of the queue. The end of the transaction leaves the queue. False if the limit has passed.
    pub fn enter(&self, limit: Limit) -> bool {
        self.is_bypassed || acquire_for_transaction(&self.lock, limit)
    }

    pub fn leave(&self) {
        if !self.is_bypassed {
            self.lock.release(Scope::Transaction);
        }
    }

    /// Lets acquirers of slots wait until this transaction has ended: until then, they do not see the shared term that it
    /// has begun.
    pub fn announce_shared_grant(&self) {
        self.shared_grant_lock(Mode::Shared).acquire(Scope::Transaction);
    }

    /// Waits for transactions that have begun shared terms. False if the limit has passed.
    pub fn wait_for_shared_grants(&self, limit: Limit) -> bool {
        let lock = self.shared_grant_lock(Mode::Exclusive);
        let is_acquired = acquire_for_transaction(&lock, limit);
        if is_acquired {
            lock.release(Scope::Transaction);
        }
        is_acquired
    }

    pub fn is_bypassed(&self) -> bool {
        self.is_bypassed
    }

    /// Read before the rows, for the sleep after it.
    pub fn broadcasts(&self) -> u64 {
        self.condition.map_or(0, ConditionVariable::broadcasts)
    }

    /// Sleeps until a broadcast, for at most `time`. Returns at once if there was one since `broadcasts` was read.
    pub fn sleep(&self, broadcasts: u64, time: Duration) {
        match self.condition {
            Some(condition) => condition.sleep_unless_broadcast_since(broadcasts, time.min(LONGEST_SLEEP), &LEASE_WAIT),
            None => latch::sleep(time.min(LONGEST_SLEEP_UNPRELOADED), &LEASE_WAIT),
        }
    }
}

/// The lock of a definition. A grant holds it shared while it chooses a slot and writes the row. A transaction that changes
/// the definition holds it exclusively until it ends.
pub fn definition_lock(name: &str, mode: Mode) -> AdvisoryLock {
    AdvisoryLock::new(DEFINITION, name_hash(name).key, mode)
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
    /// Acquires precedence in these slots, until the transaction ends at the latest. False if the limit has passed.
    pub fn acquire(&mut self, name: &str, slots: &[i32], limit: Limit) -> bool {
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

    /// Releases it in all other slots: they are free, or their terms were renewed.
    pub fn keep_in(&mut self, slots: &[i32]) {
        self.0.retain(|(slot, lock)| slots.contains(slot) || !lock.release(Scope::Transaction));
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

/// The state of a session. Its end is remembered if the slot has a lock delay and the caller wants the slot.
pub fn session_state((server, key): (i64, i64), lock_delay_us: Option<i64>) -> Session {
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
