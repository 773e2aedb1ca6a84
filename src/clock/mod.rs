//! The time: read from the machine, bounded by what the file promises.

use crate::bell::Bell;
use crate::settings;
use crate::shmem::Shared;
use crate::worker;
use idgen_core::clock::{EffectiveClock, InTheWay, Mark, Reading, Step};
use idgen_core::snowflake::Bounds;
use pgrx::prelude::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize};
use std::time::Duration;

mod file;
mod glance;
pub mod label;
pub mod mark;
pub mod recovery;
pub mod stats;

pub use file::{FileError, PATH, sync_directory};

const NS_PER_MS: i64 = 1_000_000;

/// What all processes know about time. In shared memory; made by the postmaster.
pub struct State {
    effective: EffectiveClock,
    pub mark: Mark,
    /// How far replicas know that ids may go.
    label: label::State,
    /// The file has been read since the server started, and time begins at its floor. Written by the holder of the file's lock.
    is_begun: AtomicBool,
    /// And the file promises no less than that floor.
    is_ready: AtomicBool,
    /// The data directory was synced since the server started, and the name of the file with it.
    is_name_durable: AtomicBool,
    /// Number of the newest durable record in the file. Holder of the file's lock.
    turn: AtomicU64,
    /// The server started in archive or standby recovery: times of another server's clock have been replayed.
    recovered: AtomicBool,
    /// To how many databases the worker after recovery could not connect: see `recovery`.
    databases_missing: AtomicUsize,
    /// `idgen.layout` is another than when the file was last written by an earlier start.
    pub layout_changed: AtomicBool,
    writes: AtomicU64,
    write_us: AtomicU64,
    /// The system's error number of the last write, 0 if it went well.
    last_error: AtomicI32,
    /// Who waits for the mark sleeps here.
    pub moved: Bell,
}

impl State {
    /// As the server starts: the file is not read yet, so nothing can be issued.
    pub fn new() -> Self {
        Self {
            effective: EffectiveClock::new(read()),
            mark: Mark::unknown(),
            label: label::State::new(),
            is_begun: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            is_name_durable: AtomicBool::new(false),
            turn: AtomicU64::new(0),
            recovered: AtomicBool::new(recovery::is_requested()),
            databases_missing: AtomicUsize::new(0),
            layout_changed: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            write_us: AtomicU64::new(0),
            last_error: AtomicI32::new(0),
            moved: Bell::new(),
        }
    }

    /// Where ids end that are issued now: at the wall clock and the drift. Ids that are further ahead go on from there,
    /// as fast as time passes.
    fn limit_ms(&self, reading: Reading) -> i64 {
        (reading.wall_ms() + settings::max_drift_ms()).max(self.effective.now_ms(reading))
    }
}

/// The bounds of an issue by one look at the wall clock. They may be too narrow, never too wide: when they are in the
/// way, ask for [`careful_bounds`].
#[inline]
pub fn quick_bounds(shared: &Shared) -> Bounds {
    let (now_ms, limit_ms) = glance::now_and_limit_ms(shared);
    // Not the mark itself, so that it is moved before it is in anybody's way.
    Bounds { now_ms, limit_ms, mark_ms: shared.clock.mark.near_ms() }
}

/// The bounds of an issue by the effective clock and the mark itself. Moves nothing: the clock may be outside of the
/// layout's time, and a mark that was moved there would outlive the correction of the clock.
pub fn careful_bounds(shared: &Shared) -> Bounds {
    let state = shared.clock;
    if state.effective.is_stale(wall_ms()) {
        sample(shared);
    }
    // One reading for both, so that the limit is not by another clock than the time.
    let reading = read();
    Bounds { now_ms: reading.wall_ms(), limit_ms: state.limit_ms(reading), mark_ms: state.mark.promised_ms() }
}

/// Takes note that ids up to `last_ms` were issued within these bounds: moves the mark if it is due and nobody else is
/// moving it.
pub fn issued(shared: &Shared, bounds: &Bounds, last_ms: i64) {
    mark::tend(shared, next_limit_ms(bounds, last_ms));
}

/// Makes room for ids of these times, where nothing from the mark of these bounds on was promised: moves the mark, or waits
/// for the lease of this server's number to be renewed.
pub fn make_room(shared: &Shared, bounds: &Bounds, (first_ms, last_ms): (i64, i64)) {
    match shared.clock.mark.in_the_way(bounds.mark_ms, last_ms) {
        InTheWay::Nothing => {}
        InTheWay::Mark { reserve_ms } => mark::reserve(shared, reserve_ms, next_limit_ms(bounds, reserve_ms)),
        InTheWay::Lease => worker::state::wait_for_renewal(shared, first_ms),
    }
}

/// What ids can come to next, when they have come to `reached_ms` within these bounds. Not the limit of the bounds: the
/// effective clock may still be where the wall clock was by mistake.
fn next_limit_ms(bounds: &Bounds, reached_ms: i64) -> i64 {
    reached_ms.max(bounds.now_ms + settings::max_drift_ms())
}

/// From now on ids of this server have times from `first_ms` on and before `end_ms`, under a number that `publish` makes
/// known. What was issued under another number, or in another interval of the same, is over when this returns.
pub fn confine<R>(shared: &Shared, first_ms: i64, end_ms: i64, publish: impl FnOnce() -> R) -> R {
    confine_if(shared, || true, first_ms, end_ms, publish).expect("without a condition")
}

/// The same if the condition holds under the table's lock.
pub fn confine_if<R>(
    shared: &Shared,
    condition: impl FnOnce() -> bool,
    first_ms: i64,
    end_ms: i64,
    publish: impl FnOnce() -> R,
) -> Option<R> {
    let reading = read();
    shared.with_table(|table| {
        if !condition() {
            return None;
        }
        // First of all, so that nobody goes by a tenancy of the number before up to the end of the new one.
        table.begin_anew(first_ms, &shared.clock.effective, reading);
        shared.clock.mark.end_at(end_ms);
        // Last: whoever waits for another end looks at what is published.
        Some(publish())
    })
}

/// Takes note of both clocks, and says in the server's log when the wall clock has stepped back, or far forward. While ids
/// are ahead of it, looks how far they still are.
#[cold]
fn sample(shared: &Shared) {
    let effective = &shared.clock.effective;
    match effective.sample(read_together) {
        Some(Step::Back(step_ns)) => {
            let step_ms = step_ns / NS_PER_MS;
            log!(
                "the clock has stepped back by {step_ms} ms; ids go on from where they were, no faster than time passes"
            );
        }
        Some(Step::FarForward(step_ns)) => {
            let days = stats::days(step_ns);
            log!(
                "the clock has stepped forward by {days} days, and ids take its time and keep it; if it is wrong, set it right before more ids are generated"
            );
        }
        None => {}
    }
    let reading = read();
    if effective.is_ahead(reading) {
        shared.with_table(|table| table.settle(effective, reading));
    }
}

/// Waits until the limit of issue is at least this, outside of any lock. Ends early, by an error, when the statement is
/// cancelled or the session terminated.
pub fn wait_for_limit(shared: &Shared, limit_ms: i64) {
    loop {
        let reading = read();
        let by_wall_ns = (limit_ms - settings::max_drift_ms()).saturating_mul(NS_PER_MS) - reading.wall_ns;
        let by_ids_ns = limit_ms.saturating_mul(NS_PER_MS) - shared.clock.effective.now_ns(reading);
        let left_ns = by_wall_ns.min(by_ids_ns);
        if left_ns <= 0 {
            return;
        }
        sleep(Duration::from_nanos(left_ns as u64));
        check_for_interrupts!();
    }
}

/// Sleeps for at most so long, and at most a second.
pub fn sleep(left: Duration) {
    let ms = left.as_millis().min(1000) as i64;
    if ms == 0 {
        // A latch counts in milliseconds, and would sleep through a tick of the default layout. A signal ends this
        // one too; should it arrive just before, it is seen within the millisecond.
        let rest = libc::timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
        // SAFETY: the pointer is to a local that outlives the call; null: the remainder is not wanted.
        unsafe { libc::nanosleep(&rest, null_mut()) };
        return;
    }
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: every backend has its latch, and waits on it alone.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
}

/// Milliseconds since 1970 by the server's wall clock.
#[inline]
pub fn wall_ms() -> i64 {
    gettime(libc::CLOCK_REALTIME) / NS_PER_MS
}

/// The wall clock in milliseconds as it was at the system's last tick, up to 10 ms ago: a fraction of the cost of a reading.
#[inline]
pub fn coarse_ms() -> i64 {
    gettime(libc::CLOCK_REALTIME_COARSE) / NS_PER_MS
}

/// Microseconds since the machine started: a clock that never steps.
pub fn boot_us() -> i64 {
    gettime(libc::CLOCK_BOOTTIME) / 1000
}

/// Both clocks. The wall clock last: read late, it is ahead of the boot time, and the effective clock with it.
fn read() -> Reading {
    let boot_ns = gettime(libc::CLOCK_BOOTTIME);
    Reading { wall_ns: gettime(libc::CLOCK_REALTIME), boot_ns }
}

/// Both clocks at one instant, to a fifth of a millisecond; `None` when the process is interrupted at each try.
fn read_together() -> Option<Reading> {
    (0..3).find_map(|_| {
        let reading = read();
        let after_ns = gettime(libc::CLOCK_BOOTTIME);
        (after_ns - reading.boot_ns < NS_PER_MS / 5).then_some(reading)
    })
}

#[inline]
fn gettime(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Straight to libc, which reads the clock without a system call; PostgreSQL's own function costs a guarded call.
    // SAFETY: the pointer is to a local that outlives the call. It cannot fail: every Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
