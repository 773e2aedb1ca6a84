//! PostgreSQL's primitives, under PostgreSQL's names. Nothing here knows what idgen does; the lists of hosts of a connection
//! string are the core's.

#[cfg(feature = "injection-points")]
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::NonNull,
};

pub mod advisory_lock;
pub mod bgworker;
mod copy_batches;
pub mod datum;
pub mod effects;
pub mod ereport;
pub mod fired;
pub mod function;
pub mod invalidation;
pub mod latch;
pub mod libpq;
pub mod recovery;
pub mod row;
pub mod session;
pub mod shared_objects;
pub mod snapshot;
pub mod spi;
pub mod system_clock;
pub mod xact;

/// A named point at which a test stops a process, so that it can crash the server exactly there. Only builds with the feature
/// `crash-points` have them: see `tests/cluster/crash_points`.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        $crate::pg::reach_crash_point($name);
    };
}
pub(crate) use crash_point;

/// Stops this process if a test has ordered that, once. The test sees it, and kills what it wants to kill.
#[cfg(feature = "crash-points")]
pub fn reach_crash_point(name: &str) {
    /// The test names a point in this file of the data directory, which background workers and the postmaster find too.
    const ORDER: &str = "idgen_crash_point";
    /// The order of a test, with the process that has followed it.
    const REACHED: &str = "idgen_crash_point.reached";
    let is_ordered = std::fs::read_to_string(ORDER).is_ok_and(|order| order == name);
    // Of several processes, one renames the file.
    if is_ordered && std::fs::rename(ORDER, REACHED).is_ok() {
        std::fs::write(REACHED, std::process::id().to_string()).expect("a crash point writes into the data directory");
        // SAFETY: a signal to this process.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

/// At the start of the server: PostgreSQL's own points that idgen's tests want, from a PostgreSQL that is built with them.
#[cfg(feature = "injection-points")]
pub fn attach_injection_points() {
    unsafe extern "C-unwind" {
        fn InjectionPointAttach(
            name: *const c_char,
            library: *const c_char,
            callback: *const c_char,
            data: *const c_void,
            size: c_int,
        );
    }
    let points = [
        c"checkpoint-before-old-wal-removal",
        c"heap_update-before-pin",
        c"multixact-create-from-members",
        c"promotion-after-wal-segment-cleanup",
        c"transaction-end-process-inval",
    ];
    let callback = c"idgen_reach_injection_point".as_ptr();
    for point in points {
        // SAFETY: shared memory exists, and PostgreSQL copies the texts.
        unsafe { InjectionPointAttach(point.as_ptr(), c"idgen".as_ptr(), callback, std::ptr::null(), 0) };
    }
}

#[cfg(feature = "injection-points")]
#[unsafe(no_mangle)]
extern "C" fn idgen_reach_injection_point(name: NonNull<c_char>) {
    // SAFETY: PostgreSQL passes the name of the point.
    reach_crash_point(unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().expect("it is ASCII"));
}
