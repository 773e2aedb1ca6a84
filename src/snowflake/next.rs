//! `snowflake_next` and `snowflake_next_many`: issuing from the shared generator of an id space, waiting where the core
//! says so, and counting.
//!
//! An issue counts in this process only. The sums go to shared memory at the end of the transaction, after some
//! thousand calls, and when the process changes to another generator. An atomic add on a shared cache line for each id
//! would cost as much as the id.

use super::layouts::{self, AttachedGenerator, attach, refuse_outside};
use super::node;
use super::settled::DRAWS;
use crate::args;
use crate::clock;
use crate::pg::function::{self, CallSite};
use crate::pg::system_clock;
use crate::settings;
use crate::shmem::Part;
use idgen_core::snowflake::{Bounds, Issue, SlotRun};
use idgen_core::tenancy::Ended;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// The next id in the layout of `idgen.layout`. Raises 55000 without preload or without a worker id, 25006 on a standby,
/// and 22003 if the layout has no id for this worker id and time.
#[pg_extern(sql = false)]
fn snowflake_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    unsafe { CallSite::new(fcinfo, None) }.with(layouts::of_call, next_id)
}

/// The next id in a layout: a preset or a spec. Raises 22004 for NULL, 22023 for an invalid layout, and what
/// `snowflake_next()` raises.
#[pg_extern(sql = false)]
fn snowflake_next_in(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared.
    unsafe { CallSite::new(fcinfo, Some(0)) }.with(layouts::of_call, next_id)
}

/// `count` increasing ids in the layout of `idgen.layout`. Raises 22004 for NULL, 22023 for a negative count, and what
/// `snowflake_next()` raises.
#[pg_extern(sql = false)]
fn snowflake_next_many(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { next_row(fcinfo, None) }
}

/// `count` increasing ids in a layout. Raises 22004 for NULL, 22023 for a negative count or an invalid layout, and what
/// `snowflake_next()` raises.
#[pg_extern(sql = false)]
fn snowflake_next_many_in(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    unsafe { next_row(fcinfo, Some(1)) }
}

/// The next id. The hot path: no lock, no allocation, no logging, and no foreign call but the clock.
#[inline]
pub fn next_id(attached: &mut AttachedGenerator) -> i64 {
    let run = issue(attached, 1);
    count(attached.index, run, false);
    attached.space.id(run.first)
}

/// A set that is being returned.
pub struct IdSet {
    pub attached: AttachedGenerator,
    /// Slots that are reserved and not returned yet.
    run: SlotRun,
    /// The number of ids that are not reserved yet.
    unreserved: u64,
    /// The most that the next reservation takes.
    step: u64,
}

/// The first reservation of a set. Each later one is twice as large: a caller that stops reading leaves not many more ids
/// unused than it has read, and a set of n ids takes O(log n) reservations.
const FIRST_STEP: u64 = 16;

/// # Safety
/// `fcinfo` is that of a running call whose arguments are a count and, at `layout_arg`, a text.
unsafe fn next_row(fcinfo: pg_sys::FunctionCallInfo, layout_arg: Option<usize>) -> Option<i64> {
    let begin = || {
        // SAFETY: by the above.
        let (count, site) = unsafe { (pgrx::fcinfo::pg_getarg::<i32>(fcinfo, 0), CallSite::new(fcinfo, layout_arg)) };
        let count = args::count(count);
        IdSet::new(layouts::of_call(&site), count)
    };
    // SAFETY: the functions return sets, and keep nothing else. A set needs no drop.
    unsafe { function::next_row(fcinfo, begin, IdSet::next) }
}

impl IdSet {
    pub fn new(attached: AttachedGenerator, count: u64) -> Self {
        Self { attached, run: SlotRun { first: 0, count: 0, borrowed: 0 }, unreserved: count, step: FIRST_STEP }
    }

    #[inline]
    pub fn next(&mut self) -> Option<i64> {
        if self.run.count == 0 {
            if self.unreserved == 0 {
                return None;
            }
            self.run = issue(&mut self.attached, self.unreserved.min(self.step));
            count(self.attached.index, self.run, true);
            self.unreserved -= self.run.count;
            self.step = self.step.saturating_mul(2);
        }
        let id = self.attached.space.id(self.run.first);
        self.run.first += 1;
        self.run.count -= 1;
        Some(id)
    }
}

/// Issues at least 1 and at most `want` slots, as many as the bounds allow at once.
#[inline]
fn issue(attached: &mut AttachedGenerator, want: u64) -> SlotRun {
    let bounds = attached.clock.quick_bounds();
    if ENTERED.load(Relaxed) != attached.index {
        enter_generator(attached, &bounds);
    }
    match attached.generator.issue(attached.handle, &attached.space, want, &bounds) {
        Ok(Issue::Issued(run)) => run,
        _ => issue_carefully(attached, want),
    }
}

/// Short compared with a tick, long compared with a draw.
const FIRST_PAUSE_US: i64 = 100;

/// Issues within the careful bounds. Where they stop the issue, waits or moves the mark.
#[cold]
fn issue_carefully(attached: &mut AttachedGenerator, want: u64) -> SlotRun {
    // The next draw enters the generator. After an error it may have an earlier time than this one would have had.
    leave_generator();
    // A long statement gets here once in each `idgen.clock_window`.
    node::follow_settings();
    // Ids ahead of the limit may begin the tick of this time.
    let mut opened_ms = i64::MIN;
    // Another process may have opened a tick and not drawn from it yet: ask again at once, then more and more slowly.
    let mut pause_us = 0;
    loop {
        let mut bounds = attached.clock.careful_bounds();
        bounds.limit_ms = bounds.limit_ms.max(opened_ms);
        announce_draw(attached, &bounds);
        match attached.generator.issue(attached.handle, &attached.space, want, &bounds) {
            Ok(Issue::Issued(run)) => {
                attached.clock.issued(&bounds, attached.space.time_ms(run.first + run.count - 1));
                return run;
            }
            Ok(Issue::Wait { time_ms }) => {
                // At most a tick, and by the clock alone: it may step back, or others may use up the tick that was opened.
                // Then the ids are ahead.
                opened_ms = i64::MIN;
                wait(attached, time_ms, system_clock::boot_us() + attached.tick_us());
            }
            Ok(Issue::Ahead { time_ms }) => {
                match attached.generator.open_tick(attached.tick_us(), system_clock::boot_us()) {
                    Ok(()) => opened_ms = time_ms,
                    Err(again_us) => {
                        if pause_us > 0 {
                            wait(attached, time_ms, again_us.min(system_clock::boot_us() + pause_us));
                        }
                        pause_us = (2 * pause_us).max(FIRST_PAUSE_US);
                    }
                }
            }
            Ok(Issue::Reserve { first_ms, last_ms }) => attached.clock.raise_ceiling(&bounds, (first_ms, last_ms)),
            Ok(answer) => refuse_outside(&attached.layout, answer),
            Err(Ended) => *attached = attach(attached.layout),
        }
    }
}

/// Waits for the limit to be at this time, or for this time of CLOCK_BOOTTIME in microseconds.
fn wait(attached: &AttachedGenerator, limit_ms: i64, until_us: i64) {
    let counters = &COUNTERS.require()[attached.index];
    let began = Instant::now();
    // Counted before the wait, so that a cancelled wait counts.
    counters.waits.fetch_add(1, Relaxed);
    clock::wait_for_limit(limit_ms, until_us);
    counters.wait_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
}

/// Counters of one generator, in cache lines of their own. No code depends on their order, so every access is relaxed.
#[repr(align(128))]
#[derive(Default)]
pub struct GeneratorCounters {
    pub issued: AtomicU64,
    pub batches: AtomicU64,
    pub borrowed: AtomicU64,
    pub waits: AtomicU64,
    pub wait_us: AtomicU64,
}

pub static COUNTERS: Part<&'static [GeneratorCounters]> =
    Part::new(c"idgen snowflake counters", |block| block.array(settings::max_generators(), GeneratorCounters::default));

impl GeneratorCounters {
    pub fn reset(&self) {
        for counter in [&self.issued, &self.batches, &self.borrowed, &self.waits, &self.wait_us] {
            counter.store(0, Relaxed);
        }
    }
}

/// A long statement flushes after this many calls.
const FLUSH_EVERY: u64 = 4096;

/// Counts of this process for one generator since the last flush. A process has one thread, so loads and stores suffice;
/// the fields are atomics only because this is a static.
struct Pending {
    index: AtomicUsize,
    calls: AtomicU64,
    issued: AtomicU64,
    batches: AtomicU64,
    borrowed: AtomicU64,
}

static PENDING: Pending = Pending {
    index: AtomicUsize::new(0),
    calls: AtomicU64::new(0),
    issued: AtomicU64::new(0),
    batches: AtomicU64::new(0),
    borrowed: AtomicU64::new(0),
};

/// Counts a run that was issued from the generator at `index`.
#[inline]
fn count(index: usize, run: SlotRun, batch: bool) {
    if PENDING.index.load(Relaxed) != index || PENDING.calls.load(Relaxed) >= FLUSH_EVERY {
        flush();
        // A long transaction too must hear of the end of the layout.
        leave_generator();
        PENDING.index.store(index, Relaxed);
    }
    let add = |counter: &AtomicU64, n| counter.store(counter.load(Relaxed) + n, Relaxed);
    add(&PENDING.calls, 1);
    add(&PENDING.issued, run.count);
    add(&PENDING.borrowed, run.borrowed);
    add(&PENDING.batches, u64::from(batch));
}

/// Adds the pending counts to shared memory, which exists only with preload. If the generator was given to another space,
/// the new space gets a few calls of the old one. A check at each id would cost more than that is worth.
#[cold]
pub fn flush() {
    let Some(counters) = COUNTERS.get() else {
        return;
    };
    let counters = &counters[PENDING.index.load(Relaxed)];
    counters.issued.fetch_add(PENDING.issued.swap(0, Relaxed), Relaxed);
    counters.batches.fetch_add(PENDING.batches.swap(0, Relaxed), Relaxed);
    counters.borrowed.fetch_add(PENDING.borrowed.swap(0, Relaxed), Relaxed);
    PENDING.calls.store(0, Relaxed);
}

/// The index of the generator that the transaction draws from: an earlier draw from it was announced, and has succeeded. Or
/// `NO_GENERATOR`.
static ENTERED: AtomicUsize = AtomicUsize::new(NO_GENERATOR);

const NO_GENERATOR: usize = usize::MAX;

/// Before the first draw of a transaction from a generator, and now and then before a later one. Draws after this one have
/// later ids, if it succeeds.
#[inline(never)]
fn enter_generator(attached: &mut AttachedGenerator, bounds: &Bounds) {
    attached.warn_of_end(bounds.now_ms);
    announce_draw(attached, bounds);
    ENTERED.store(attached.index, Relaxed);
}

/// Tells other processes how early an id within these bounds can be.
fn announce_draw(attached: &AttachedGenerator, bounds: &Bounds) {
    let free = attached.generator.free_slot(attached.handle);
    DRAWS.lower_to(attached.space.earliest_ms(free, bounds));
}

/// The next draw enters its generator again.
pub fn leave_generator() {
    ENTERED.store(NO_GENERATOR, Relaxed);
}

/// At each event of a transaction of this process.
pub fn at_xact_event(event: pg_sys::XactEvent::Type) {
    leave_generator();
    if PENDING.calls.load(Relaxed) > 0 {
        flush();
    }
    DRAWS.at_xact_event(event);
}
