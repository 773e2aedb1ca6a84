//! The latch of this process: sleeping until another process or a signal handler sets it. Each sleep first checks for
//! interrupts, so that no loop around it runs on after a cancel, a timeout or a stop, however short the sleeps are.

use super::wait_event::WaitEvent;
use pgrx::prelude::*;
use std::ffi::c_int;
use std::ptr::null_mut;
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
