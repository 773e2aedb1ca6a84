//! The time of ids: read from the machine, bounded by what the high-water file promises and by where it was told to end.
//!
//! This room knows no layout's SQL, no worker id and no lease. Callers hand in what it needs: the end of the ids' time
//! ([`confine`]), and a function to call when ids reach that end ([`on_end_reached`]).

use crate::pg::condition_variable::ConditionVariable;
use crate::pg::{latch, recovery as pg_recovery, system_clock, xact};
use crate::settings;
use crate::shmem::{self, Locked, Part};
use idgen_core::clock::{EffectiveClock, InTheWay, Mark, Reading, Step};
use idgen_core::generator::Generator;
use idgen_core::snowflake::Bounds;
use idgen_core::table::Table;
use pgrx::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize};
use std::time::Duration;

mod errors;
mod file;
mod label;
mod mark;
mod now;
mod recovery;
pub mod stats;

pub use file::sync_directory;
pub use mark::{ensure_begun, raise_to};

const NS_PER_MS: i64 = 1_000_000;

/// What all processes know about time.
pub static STATE: Part<State> = Part::new(c"idgen clock", |_| State::new());

/// The high-water file. Under the lock: file I/O, which raises nothing. A process that does not get it waits on
/// [`State::moved`], because a wait for an LWLock cannot be cancelled.
static FILE: Locked<file::Written> = Locked::new(c"idgen clock file", 10, |_| file::Written::default());

/// The generators of all id spaces. Issuing does not take the lock.
pub static GENERATORS: Locked<Table<'static>> = Locked::new(c"idgen generators", 20, |room| {
    let count = settings::max_generators();
    Table::new(room.array(count, Generator::new), room.array(count, || None))
});

pub struct State {
    effective: EffectiveClock,
    mark: Mark,
    /// How far replicas know that ids may go.
    label: label::State,
    /// The file was read since the server started, and ids begin at its floor. Holder of the file's lock.
    is_begun: AtomicBool,
    /// The file promises that floor.
    is_ready: AtomicBool,
    /// The server started in archive or standby recovery: it replayed times of another server's clock.
    is_recovered: AtomicBool,
    /// How many of the databases are missing that the worker after recovery can connect to: see `recovery`.
    databases_missing: AtomicUsize,
    /// `idgen.layout` differs from the one that an earlier start wrote into the file.
    is_layout_changed: AtomicBool,
    writes: AtomicU64,
    write_us: AtomicU64,
    /// errno of the last write, 0 after a success.
    last_error: AtomicI32,
    /// Signalled when the mark, its label or the state of the file has changed.
    moved: ConditionVariable,
}

impl State {
    /// At the start nothing can be issued: the file is not read yet.
    fn new() -> Self {
        Self {
            effective: EffectiveClock::new(read()),
            mark: Mark::unknown(),
            label: label::State::new(),
            is_begun: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            is_recovered: AtomicBool::new(pg_recovery::is_requested()),
            databases_missing: AtomicUsize::new(0),
            is_layout_changed: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            write_us: AtomicU64::new(0),
            last_error: AtomicI32::new(0),
            moved: ConditionVariable::new(),
        }
    }

    /// The bounds of an issue by one reading of the wall clock. They may be too narrow, never too wide. If they stop an
    /// issue, ask for [`State::careful_bounds`].
    #[inline]
    pub fn quick_bounds(&self) -> Bounds {
        let (now_ms, limit_ms) = now::now_and_limit_ms(self);
        // `near_ms` is before the mark, so that the mark moves before it stops an issue.
        Bounds { now_ms, limit_ms, mark_ms: self.mark.near_ms() }
    }

    /// The bounds of an issue by the effective clock and the mark itself. Moves nothing: the clock may be outside of the
    /// layout's time, and a mark that was moved there would outlive the correction of the clock.
    pub fn careful_bounds(&self) -> Bounds {
        if self.effective.is_stale(system_clock::wall_ms()) {
            self.sample();
        }
        // One reading for both, so that limit and time come from the same clock.
        let reading = read();
        Bounds { now_ms: reading.wall_ms(), limit_ms: self.limit_ms(reading), mark_ms: self.mark.promised_ms() }
    }

    /// The limit of ids: the wall clock and the drift. Ids that are further ahead go on from there, as fast as time passes.
    fn limit_ms(&self, reading: Reading) -> i64 {
        (reading.wall_ms() + settings::max_drift_ms()).max(self.effective.now_ms(reading))
    }

    /// Called after ids up to `last_ms` were issued within these bounds: moves the mark if it is due and no other process
    /// is moving it.
    pub fn issued(&self, bounds: &Bounds, last_ms: i64) {
        mark::tend(self, next_limit_ms(bounds, last_ms));
    }

    /// Makes room for ids of these times, the first of which was at or past the mark of these bounds: moves the mark, or
    /// calls the function of [`on_end_reached`].
    pub fn make_room(&self, bounds: &Bounds, (first_ms, last_ms): (i64, i64)) {
        match self.mark.in_the_way(bounds.mark_ms, last_ms) {
            InTheWay::Nothing => {}
            InTheWay::Mark { reserve_ms } => mark::reserve(self, reserve_ms, next_limit_ms(bounds, reserve_ms)),
            InTheWay::Lease => ON_END_REACHED.get().into_iter().for_each(|wait| wait(first_ms)),
        }
    }

    /// No id has this time or a later one: see [`confine`]. Milliseconds since 1970.
    pub fn end_ms(&self) -> i64 {
        self.mark.end_ms()
    }

    /// Samples both clocks, and logs when the wall clock has stepped back, or far forward. While ids are ahead of it, also
    /// determines how far.
    #[cold]
    fn sample(&self) {
        match self.effective.sample(read_together) {
            Some(Step::Back(step_ns)) => {
                let step_ms = step_ns / NS_PER_MS;
                log!(
                    "the clock has stepped back by {step_ms} ms; ids go on from where they were, no faster than time passes"
                );
            }
            Some(Step::FarForward(step_ns)) => {
                let days = stats::days(step_ns);
                log!(
                    "the clock has stepped forward by {days} days, and ids keep its time; if it is wrong, correct it before more ids are generated"
                );
            }
            None => {}
        }
        let reading = read();
        if self.effective.is_ahead(reading) {
            GENERATORS.exclusive(|table| table.settle(&self.effective, reading));
        }
    }

    /// Sleeps until the limit of ids is at least this, outside of any lock. Raises when the statement is cancelled.
    pub fn wait_for_limit(&self, limit_ms: i64) {
        loop {
            let reading = read();
            let by_wall_ns = (limit_ms - settings::max_drift_ms()).saturating_mul(NS_PER_MS) - reading.wall_ns;
            let by_ids_ns = limit_ms.saturating_mul(NS_PER_MS) - self.effective.now_ns(reading);
            let left_ns = by_wall_ns.min(by_ids_ns);
            if left_ns <= 0 {
                return;
            }
            latch::sleep(Duration::from_nanos(left_ns as u64));
            check_for_interrupts!();
        }
    }
}

/// The next limit of ids that have reached `reached_ms` within these bounds. Not the limit of the bounds: the effective
/// clock may still be where a wrong wall clock was.
fn next_limit_ms(bounds: &Bounds, reached_ms: i64) -> i64 {
    reached_ms.max(bounds.now_ms + settings::max_drift_ms())
}

static ON_END_REACHED: OnceLock<fn(i64)> = OnceLock::new();

/// Registers a function that is called when ids reach their end, with the time of the next one. It returns when the end
/// has moved, or raises. While the postmaster preloads libraries.
pub fn on_end_reached(wait: fn(i64)) {
    let _ = ON_END_REACHED.set(wait);
}

/// From now on ids of this server have times from `first_ms` up to but not including `end_ms`, under a worker id that
/// `publish` stores. All earlier issuing has ended when this returns.
pub fn confine<R>(first_ms: i64, end_ms: i64, publish: impl FnOnce() -> R) -> R {
    confine_if(|| true, first_ms, end_ms, publish).expect("the condition is true")
}

/// As [`confine`], if the condition is true under the generators' lock.
pub fn confine_if<R>(
    condition: impl FnOnce() -> bool,
    first_ms: i64,
    end_ms: i64,
    publish: impl FnOnce() -> R,
) -> Option<R> {
    let (state, reading) = (STATE.require(), read());
    GENERATORS.exclusive(|table| {
        if !condition() {
            return None;
        }
        // First: a process that sees the new end must see that tenancies under the old worker id have ended.
        table.begin_anew(first_ms, &state.effective, reading);
        state.mark.end_at(end_ms);
        // Last: a process that waits for another end reads what is published.
        Some(publish())
    })
}

/// Moves the end of the ids' time, with nothing else changed: a lease was extended.
pub fn extend_to(end_ms: i64) {
    let state = STATE.require();
    GENERATORS.exclusive(|_| state.mark.end_at(end_ms));
}

/// The time of the latest id that is next in any layout: how far ahead ids are.
pub fn next_ms() -> i64 {
    GENERATORS.shared(|table| table.next_ms())
}

/// No id of any layout was issued at this time or later.
pub fn settled_ms() -> i64 {
    GENERATORS.shared(|table| table.settled_ms())
}

/// Before the first lease of a worker id: nothing can be issued. In the postmaster at the start.
pub fn confine_to_nothing_at_start() {
    STATE.require().mark.end_at(i64::MIN);
}

/// Both clocks. The wall clock last: read late, it is ahead of the boot time, and the effective clock with it.
fn read() -> Reading {
    let boot_ns = system_clock::boot_ns();
    Reading { wall_ns: system_clock::wall_ns(), boot_ns }
}

/// Both clocks at one instant, to a fifth of a millisecond; `None` if the process was interrupted at each try.
fn read_together() -> Option<Reading> {
    (0..3).find_map(|_| {
        let reading = read();
        let after_ns = system_clock::boot_ns();
        (after_ns - reading.boot_ns < NS_PER_MS / 5).then_some(reading)
    })
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&STATE, &FILE, &GENERATORS]);
    shmem::at_startup(|| xact::at_exit(mark::at_exit));
    recovery::register_worker();
}
