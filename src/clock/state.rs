//! The clock's state in shared memory, and reading the clocks.

use crate::pg::condition_variable::ConditionVariable;
use crate::pg::{recovery, system_clock};
use crate::settings;
use crate::shmem::{Locked, Part};
use idgen_core::clock::{ClockStep, EffectiveClock, Mark, NS_PER_MS, Reading};
use idgen_core::generator::{Generator, GeneratorTable};
use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize};

pub static STATE: Part<State> = Part::new(c"idgen clock", |_| State::new());

/// The high-water file. Under the lock: file I/O, which raises nothing. A process that does not get it waits on
/// [`State::moved`], because a wait for an LWLock cannot be cancelled.
pub static FILE: Locked<Written> = Locked::new(c"idgen clock file", 10, |_| Written::default());

/// The generators of all id spaces. Here, because one lock guards their floors and the mark. Issuing does not take it.
pub static GENERATORS: Locked<GeneratorTable<'static>> = Locked::new(c"idgen generators", 20, |block| {
    let count = settings::max_generators();
    GeneratorTable::new(block.array(count, Generator::new), block.array(count, || None))
});

pub struct State {
    pub(super) effective: EffectiveClock,
    pub(super) mark: Mark,
    /// How far replicas know that ids may go.
    pub(super) label: LabelState,
    /// The file was read since the server started, and ids begin at its floor. Holder of the file's lock.
    pub(super) is_begun: AtomicBool,
    /// The file promises that floor.
    pub(super) is_ready: AtomicBool,
    /// The server started in archive or standby recovery: it replayed times of another server's clock.
    pub(super) is_recovered: AtomicBool,
    /// How many of `recovery::DATABASES` were found missing.
    pub(super) databases_missing: AtomicUsize,
    /// `idgen.layout` differs from the one that an earlier start wrote into the file.
    pub(super) is_layout_changed: AtomicBool,
    pub(super) writes: AtomicU64,
    pub(super) write_us: AtomicU64,
    /// errno of the last write, 0 after a success.
    pub(super) last_error: AtomicI32,
    /// Signalled when the mark, its label or the state of the file has changed.
    pub(super) moved: ConditionVariable,
}

impl State {
    /// At the start nothing can be issued: the file is not read yet.
    fn new() -> Self {
        Self {
            effective: EffectiveClock::new(read()),
            mark: Mark::unknown(),
            label: LabelState {
                until_ms: AtomicI64::new(i64::MIN),
                planned_ms: AtomicI64::new(i64::MIN),
                wanted_ms: AtomicI64::new(i64::MIN),
                requested_us: AtomicI64::new(0),
                is_failing: AtomicBool::new(false),
                is_passed: AtomicBool::new(false),
            },
            is_begun: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            is_recovered: AtomicBool::new(recovery::is_requested()),
            databases_missing: AtomicUsize::new(0),
            is_layout_changed: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            write_us: AtomicU64::new(0),
            last_error: AtomicI32::new(0),
            moved: ConditionVariable::new(),
        }
    }

    /// Samples both clocks, and logs when the wall clock has stepped back, or far forward.
    #[cold]
    pub(super) fn sample(&self) {
        match self.effective.sample(read_together) {
            Some(ClockStep::Back(step_ns)) => {
                let step_ms = step_ns / NS_PER_MS;
                log!(
                    "the clock has stepped back by {step_ms} ms; ids go on from where they were, no faster than time passes"
                );
            }
            Some(ClockStep::FarForward(step_ns)) => {
                let days = days(step_ns);
                log!(
                    "the clock has stepped forward by {days} days, and ids keep its time; if it is wrong, correct it before more ids are generated"
                );
            }
            None => {}
        }
    }
}

/// The part of the clock's state that is about the label.
pub struct LabelState {
    /// The time of the label that was committed since the server started.
    pub(super) until_ms: AtomicI64,
    /// The same before the commit. Holder of the catalog's lock.
    pub(super) planned_ms: AtomicI64,
    /// The time that the next label must pass.
    pub(super) wanted_ms: AtomicI64,
    /// When the worker was requested, on CLOCK_BOOTTIME in microseconds; negative once that request has failed; 0 if none
    /// is pending.
    pub(super) requested_us: AtomicI64,
    /// The last worker did not write the label, and none has since.
    pub(super) is_failing: AtomicBool,
    /// The mark has passed the label, and the log says so.
    pub(super) is_passed: AtomicBool,
}

/// The newest record that this server has written. Behind the lock of the file.
#[derive(Default)]
pub struct Written {
    /// The number of the newest durable record.
    pub turn: u64,
    /// The data directory was synced with the file in it since the server started. A server that starts does not know: an
    /// earlier one may have failed right before that.
    pub is_name_durable: bool,
}

/// Both clocks. The wall clock last: read late, it is ahead of the boot time, and the effective clock with it.
pub fn read() -> Reading {
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

/// Whole days of a time in nanoseconds.
pub fn days(ns: i64) -> i64 {
    ns / NS_PER_MS / 86_400_000
}
