//! The clock's state in shared memory, reading the clocks, and the bounds of an issue.
//!
//! On the hot path, reading the wall clock costs as much as the rest of an issue. So one reading serves for about a
//! microsecond, counted by the processor's own counter, which is cheaper to read. An issue tolerates a time that old: a
//! process can be interrupted between reading the clock and taking its id anyway.

use crate::pg::latch::ConditionVariable;
use crate::pg::system_clock;
use crate::settings;
use crate::shmem::{Locked, Part};
use idgen_core::clock::port::{HighWater, Written};
use idgen_core::clock::{ClockStep, ClockSteps, Reading, US_PER_MS};
use idgen_core::generator::{FLOORS, Floor, Generator, GeneratorTable};
use idgen_core::snowflake::Bounds;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, Ordering::Relaxed};

pub static STATE: Part<State> = Part::new(c"idgen clock", |_| State {
    steps: ClockSteps::new(read()),
    high_water: HighWater::new(),
    is_layout_changed: AtomicBool::new(false),
    writes: AtomicU64::new(0),
    write_us: AtomicU64::new(0),
    last_error: AtomicI32::new(0),
    moved: ConditionVariable::default(),
});

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
    pub(super) high_water: HighWater,
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
    /// Samples both clocks, and logs when the wall clock has stepped back, or far forward.
    #[cold]
    fn sample(&self) {
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

    /// The bounds of an issue by one reading of the wall clock. They may be too narrow, never too wide. If they stop an
    /// issue, ask for [`State::careful_bounds`].
    #[inline]
    pub fn quick_bounds(&self) -> Bounds {
        // The early ceiling is before the mark, so that the mark moves before it stops an issue.
        bounds(now_ms(self), self.high_water.mark.early_ceiling_ms())
    }

    /// The bounds of an issue by the clock and the mark as they are now. Moves nothing: the clock may be outside of the
    /// layout's time, and a mark that was moved there would outlive the correction of the clock.
    pub fn careful_bounds(&self) -> Bounds {
        bounds(self.read_wall_ms(), self.high_water.mark.ceiling_ms())
    }

    fn read_wall_ms(&self) -> i64 {
        let now_ms = system_clock::wall_ms();
        if self.steps.is_stale(now_ms) {
            self.sample();
        }
        now_ms
    }
}

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

#[inline]
fn bounds(now_ms: i64, ceiling_ms: i64) -> Bounds {
    Bounds { now_ms, limit_ms: now_ms + settings::max_drift_ms(), ceiling_ms }
}

/// The last reading of this process. One thread; atomics only because they are statics.
static READ_AT: AtomicU64 = AtomicU64::new(0);
static NOW_MS: AtomicI64 = AtomicI64::new(0);

/// Milliseconds since 1970.
#[inline]
fn now_ms(state: &State) -> i64 {
    let counter = counter();
    // A counter that was set back, for example by a live migration, differs by a huge number too.
    if counter.is_none_or(|(count, serves)| count.wrapping_sub(READ_AT.load(Relaxed)) > serves) {
        NOW_MS.store(state.read_wall_ms(), Relaxed);
        READ_AT.store(counter.map_or(0, |(count, _)| count), Relaxed);
    }
    NOW_MS.load(Relaxed)
}

/// The processor's counter, where one counts at all times, and how long a reading serves: about a microsecond. A session needs
/// longer between two statements of a client, so an id's time is not before the start of its statement.
#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> Option<(u64, u64)> {
    // SAFETY: every processor of this architecture has the instruction, and Linux lets processes use it.
    let count = unsafe { std::arch::x86_64::_rdtsc() };
    // Cycles, at two gigahertz.
    Some((count, 2048))
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> Option<(u64, u64)> {
    use std::arch::asm;
    let (count, per_second): (u64, u64);
    // SAFETY: every processor of this architecture has the registers, and Linux lets processes read them, as its own vDSO does.
    // Reading them changes nothing.
    unsafe {
        asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags));
        asm!("mrs {}, cntfrq_el0", out(reg) per_second, options(pure, nomem, nostack, preserves_flags));
    }
    // The frequency differs between machines: 24 MHz or 1 GHz. The upper half is reserved. If the firmware reports 0, each
    // change of the counter reads the clock.
    Some((count, (per_second & 0xffff_ffff) / 1_000_000))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn counter() -> Option<(u64, u64)> {
    None
}
