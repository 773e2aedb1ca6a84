//! Sleeping: on the latch of this process, until another process or a signal handler sets it, and on condition variables,
//! until another process signals; and the names that `pg_stat_activity.wait_event` shows of sleeps.
//!
//! Each sleep first checks for interrupts, so that no loop around it runs on after a cancel, a timeout or a stop, however
//! short the sleeps are.

use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use std::time::Duration;

/// The address of this process's latch, for other processes: it is in shared memory, at the same address in all of them.
pub fn address() -> usize {
    // SAFETY: every process has its latch.
    unsafe { pg_sys::MyLatch as usize }
}

/// Wakes the process that owns a latch now. If another process has ended, one that reuses its latch wakes for nothing.
///
/// # Safety
/// A process of this server got the address from [`address`].
pub unsafe fn set_at(address: usize) {
    // SAFETY: by the above, the latch of a process slot in shared memory, which exists as long as the server.
    unsafe { pg_sys::SetLatch(address as *mut pg_sys::Latch) };
}

/// Sleeps until the latch is set, at most `time` if there is one, and resets the latch.
pub fn wait(time: Option<Duration>, event: &WaitEvent) {
    wait_for(pg_sys::WL_LATCH_SET, -1, time, event);
}

/// As [`wait`], or until the socket is ready for these events. True if it is.
pub fn wait_or_socket(socket: c_int, events: u32, time: Duration, event: &WaitEvent) -> bool {
    wait_for(pg_sys::WL_LATCH_SET | events, socket, Some(time), event) & events != 0
}

fn wait_for(events: u32, socket: c_int, time: Option<Duration>, event: &WaitEvent) -> u32 {
    // A signal that arrives from here on sets the latch.
    check_for_interrupts!();
    let timeout = if time.is_some() { pg_sys::WL_TIMEOUT } else { 0 };
    let events = (events | timeout | pg_sys::WL_EXIT_ON_PM_DEATH) as c_int;
    let ms = time.map_or(-1, |time| time.as_millis() as i64);
    // SAFETY: every process has its latch and waits on it alone; the caller owns the socket, or it is none.
    unsafe {
        let happened = match socket {
            -1 => pg_sys::WaitLatch(pg_sys::MyLatch, events, ms, event.id()),
            _ => pg_sys::WaitLatchOrSocket(pg_sys::MyLatch, events, socket, ms, event.id()),
        };
        pg_sys::ResetLatch(pg_sys::MyLatch);
        happened as u32
    }
}

/// Sleeps for `time`, at most a second, or until the latch is set. Below a millisecond only a signal ends the sleep.
pub fn sleep(time: Duration, event: &WaitEvent) {
    if time.as_millis() > 0 {
        return wait(Some(time.min(Duration::from_secs(1))), event);
    }
    check_for_interrupts!();
    // A latch counts milliseconds, and would sleep for a whole one. A signal that arrives just
    // before the sleep is served within the millisecond.
    let rest = libc::timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: the pointer is to a local that outlives the call; null: the remainder is not wanted.
    unsafe { libc::nanosleep(&rest, null_mut()) };
}

/// Lives in shared memory. Prepare to sleep before testing the condition; otherwise a wakeup is lost. Where the test
/// cancels the sleep, as a subtransaction that rolls back does, read the number of broadcasts first instead.
pub struct ConditionVariable {
    variable: UnsafeCell<pg_sys::ConditionVariable>,
    broadcasts: AtomicU64,
}

// SAFETY: PostgreSQL makes the type for shared memory; only its own functions touch it, and they lock it.
unsafe impl Sync for ConditionVariable {}

impl Default for ConditionVariable {
    fn default() -> Self {
        let mut variable = pg_sys::ConditionVariable::default();
        // SAFETY: initialises a local. The result has no address in it, so it can be moved until a process waits.
        unsafe { pg_sys::ConditionVariableInit(&mut variable) };
        Self { variable: UnsafeCell::new(variable), broadcasts: AtomicU64::new(0) }
    }
}

impl ConditionVariable {
    /// Adds this process to the waiters. An error removes it.
    pub fn prepare_to_sleep(&self) {
        // SAFETY: initialised, and in shared memory.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.variable.get()) };
    }

    /// Sleeps until a broadcast, at most `time`; true if there was one. Raises when the statement is canceled, also if there
    /// is nothing to sleep for.
    pub fn sleep(&self, time: Duration, event: &WaitEvent) -> bool {
        check_for_interrupts!();
        let ms = time.as_millis().max(1) as i64;
        // SAFETY: as in `prepare_to_sleep`.
        !unsafe { pg_sys::ConditionVariableTimedSleep(self.variable.get(), ms, event.id()) }
    }

    pub fn broadcasts(&self) -> u64 {
        self.broadcasts.load(Acquire)
    }

    /// Sleeps unless there was a broadcast since this count was read. Raises as [`ConditionVariable::sleep`].
    pub fn sleep_unless_broadcast_since(&self, broadcasts: u64, time: Duration, event: &WaitEvent) {
        check_for_interrupts!();
        self.prepare_to_sleep();
        if self.broadcasts() == broadcasts {
            self.sleep(time, event);
        }
        Self::cancel_sleep();
    }

    /// Wakes all waiters.
    pub fn broadcast(&self) {
        // Count first: a process that prepares too late to be woken sees the new count.
        self.broadcasts.fetch_add(1, AcqRel);
        // SAFETY: as in `prepare_to_sleep`.
        unsafe { pg_sys::ConditionVariableBroadcast(self.variable.get()) };
    }

    /// Removes this process from the waiters of whatever variable it prepared for.
    pub fn cancel_sleep() {
        // SAFETY: does nothing if this process waits for none.
        unsafe { pg_sys::ConditionVariableCancelSleep() };
    }
}

/// A wait event of type Extension. Servers before PostgreSQL 17 show all of them as "Extension".
pub struct WaitEvent {
    #[cfg_attr(any(feature = "pg15", feature = "pg16"), allow(dead_code, reason = "has no names"))]
    name: &'static CStr,
    /// 0 until the first wait: PostgreSQL finds the id of a name under a lock.
    id: AtomicU32,
}

impl WaitEvent {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, id: AtomicU32::new(0) }
    }

    pub fn id(&self) -> u32 {
        let known = self.id.load(Relaxed);
        if known != 0 {
            return known;
        }
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        let id = pg_sys::PG_WAIT_EXTENSION;
        // SAFETY: a C string. PostgreSQL returns the same id for the same name in every process.
        #[cfg(not(any(feature = "pg15", feature = "pg16")))]
        let id = unsafe { pg_sys::WaitEventExtensionNew(self.name.as_ptr()) };
        self.id.store(id, Relaxed);
        id
    }
}
