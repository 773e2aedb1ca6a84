//! The clock's state in shared memory, and reading the clocks.

use crate::pg::condition_variable::ConditionVariable;
use crate::pg::system_clock;
use crate::settings;
use crate::shmem::{Locked, Part};
use idgen_core::clock::{ClockStep, ClockSteps, Mark, Reading, US_PER_MS};
use idgen_core::generator::{FLOORS, Floor, Generator, GeneratorTable};
use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64};

pub static STATE: Part<State> = Part::new(c"idgen clock", |_| State::new());

/// The high-water file. Under the lock: file I/O, which raises nothing. A session that does not get it waits on
/// [`State::moved`], because a wait for an LWLock cannot be cancelled.
pub static FILE: Locked<Written> = Locked::new(c"idgen clock file", 10, |_| Written::default());

/// The generators of all id spaces. Here, because one lock guards their floors and the mark. Issuing does not take it.
pub static GENERATORS: Locked<GeneratorTable<'static>> = Locked::new(c"idgen generators", 20, |block| {
    let count = settings::max_generators();
    GeneratorTable::new(
        block.array(count, Generator::new),
        block.array(count, || None),
        block.array(FLOORS, Floor::new),
    )
});

pub struct State {
    pub(super) steps: ClockSteps,
    pub(super) mark: Mark,
    /// How far replicas know that ids may go.
    pub(super) label: LabelState,
    /// The file was read since the server started, and ids begin at its floor. Holder of the file's lock.
    pub(super) is_begun: AtomicBool,
    /// The file promises that floor.
    pub(super) is_ready: AtomicBool,
    /// The server started from another server's WAL: its data may be newer than its file.
    pub(super) is_replayed: AtomicBool,
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
            steps: ClockSteps::new(read()),
            mark: Mark::unknown(),
            label: LabelState {
                until_ms: AtomicI64::new(i64::MIN),
                allowed_ms: AtomicI64::new(i64::MIN),
                wanted_ms: AtomicI64::new(i64::MIN),
                requested_us: AtomicI64::new(0),
                is_failing: AtomicBool::new(false),
                is_passed: AtomicBool::new(false),
            },
            is_begun: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            is_replayed: AtomicBool::new(false),
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
        match self.steps.sample(read_together) {
            Some(ClockStep::Back(step_us)) => {
                let step_ms = step_us / US_PER_MS;
                log!(
                    "the clock has stepped back by {step_ms} ms; ids go on from where they were, no faster than time passes"
                );
            }
            Some(ClockStep::FarForward(step_us)) => {
                let days = days(step_us);
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
    /// The time of the label that was committed since the server started. Holder of the file's lock, under which the
    /// mark moves: so it can be lowered, to a time that the mark has not reached.
    pub(super) until_ms: AtomicI64,
    /// The latest label that the newest record of the file allows. Holder of the file's lock.
    pub(super) allowed_ms: AtomicI64,
    /// The time that the next label must reach, for ids that wait for it.
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
    /// No label in the catalog, and none that a worker is writing, is later.
    pub latest_label_ms: i64,
    /// Counts the labels, so that a worker sees whether its own is still the newest.
    pub labels: u64,
}

/// Both clocks.
pub fn read() -> Reading {
    let boot_us = system_clock::boot_us();
    Reading { wall_us: system_clock::wall_us(), boot_us }
}

/// Both clocks at one instant, to a fifth of a millisecond; `None` if the process was interrupted at each try.
fn read_together() -> Option<Reading> {
    (0..3).find_map(|_| {
        let reading = read();
        let after_us = system_clock::boot_us();
        (after_us - reading.boot_us < US_PER_MS / 5).then_some(reading)
    })
}

/// Whole days of a time in microseconds.
pub fn days(us: i64) -> i64 {
    us / US_PER_MS / 86_400_000
}
