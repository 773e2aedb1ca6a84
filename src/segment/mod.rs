//! Segment ids: the SQL functions that draw them, and the wait for a refill if a ring is dry. A segment has a row in
//! `idgen.segment`, under its tag, and a ring of values in shared memory.

use crate::args;
use crate::coordinator;
use crate::pg::advisory_lock::limited_or;
use crate::pg::datum::Composite;
use crate::pg::function::{self, CallSite};
use crate::pg::latch::{ConditionVariable, WaitEvent};
use crate::pg::spi::ExtensionTable;
use crate::pg::{shared_objects, system_clock, xact};
use crate::settings;
use crate::shmem;
use attach::{AttachedSegment, ValueSource};
use idgen_core::segment::requests::Requests;
use idgen_core::segment::tag::{MAX_STEP, TagRow};
use idgen_core::segment::{Draw, ValueRun};
use idgen_core::tenancy::Ended;
use pgrx::prelude::*;
use state::{SEGMENTS, SharedRing, ring_state};
use std::borrow::Cow;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

mod attach;
pub mod define;
mod errors;
mod fleet;
mod refill;
mod settled;
mod state;
pub mod status;
mod store;
mod trigger;
mod workers;

pub use status::{TABLES, checks};

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&state::RINGS, &state::RING_STATES, &state::SEGMENTS]);
    shmem::register(&[&settled::DRAWS.processes, &settled::READINGS]);
    // In the postmaster, from which all processes inherit it: it runs after all other callbacks.
    xact::on_xact_event(settled::at_xact_event);
    shared_objects::follow_dropped_databases(fleet::leave_database, state::end_rings_of);
    coordinator::follow(fleet::start_launcher);
    shared_objects::follow_owners_of(shared_objects::OwnedRows {
        exist: || store::SEGMENT.find().is_some(),
        reassign: |owners, heir| store::DRAWERS.reassign(owners, heir),
        drop: |owners| {
            let is_any = store::DRAWERS.drop_owned(owners);
            is_any | (store::has_servers() && store::SERVERS.drop_owned(owners))
        },
    });
}

/// The next value of a segment. Raises 22004 for NULL, 42704 if there is no such segment, 42501 without the privilege,
/// 2200H past the upper bound, 55P03 if no refill comes within `idgen.segment_timeout`, 53400 without a refill worker,
/// 55000 without preload or if this transaction changed the segment, 25006 on a standby.
#[pg_extern(sql = false)]
fn segment_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared.
    let site = unsafe { CallSite::new(fcinfo, Some(0)) };
    settled::enter();
    site.with(attach::of_call, |attached| {
        attached.try_draw_one().unwrap_or_else(|| run(attached, &site, 1, false).first)
    })
}

/// A run of consecutive values. Raises 22004 for NULL, 22023 unless the count is 1 to 1000000000; else as
/// `segment_next`.
#[pg_extern(sql = false)]
fn segment_reserve(fcinfo: pg_sys::FunctionCallInfo) -> Composite<3> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let (site, count) = unsafe { (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<i64>(fcinfo, 1)) };
    let count = args::required(count, "count");
    let counts = 1..=MAX_STEP;
    if !counts.contains(&count) {
        errors::count_out_of_range(count, counts).raise();
    }
    settled::enter();
    let run = site.with(attach::of_call, |attached| run(attached, &site, count as u64, true));
    Composite([run.first.into(), run.last().into(), run.stride.into()])
}

/// A set that is being returned.
struct ValueSet {
    attached: AttachedSegment,
    /// Drawn, but not returned yet.
    run: ValueRun,
    /// Not drawn yet.
    wanted: u64,
    /// The most that the next draw takes. Each takes twice as many as the one before, up to `max_step`: a query that stops
    /// reading leaves no more values unused than it has read.
    step: u64,
}

/// That many values of a segment, increasing, drawn as the rows are read. Raises 22004 for NULL, 22023 if the count is negative; else as
/// `segment_next`.
#[pg_extern(sql = false)]
fn segment_next_many(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared; the site is used for its text only.
    unsafe {
        let site = CallSite::new(fcinfo, Some(0));
        let begin = || {
            let wanted = args::count(pgrx::fcinfo::pg_getarg::<i32>(fcinfo, 1));
            let run = ValueRun { first: 0, count: 0, stride: 1 };
            ValueSet { attached: attach::of_call(&site), run, wanted, step: 1 }
        };
        function::next_row(fcinfo, begin, |set| set.next(&site))
    }
}

impl ValueSet {
    #[inline]
    fn next(&mut self, site: &CallSite) -> Option<i64> {
        if self.run.count == 0 {
            if self.wanted == 0 {
                return None;
            }
            settled::enter();
            self.run = run(&mut self.attached, site, self.wanted.min(self.step), false);
            self.wanted -= self.run.count;
            self.step = (self.step * 2).min(self.attached.max_step);
        }
        Some(self.run.split_first())
    }
}

/// A waiter makes sure after this time that the worker runs that serves its ring. One that ends wakes its waiters; one
/// that never began does not.
const CHECK_EVERY: Duration = Duration::from_millis(500);

static REFILL_WAIT: WaitEvent = WaitEvent::new(c"IdgenSegmentRefill");

/// The next run of values: as many as wanted if `is_block`, otherwise at least one.
#[cold]
fn run(attached: &mut AttachedSegment, site: &CallSite, want: u64, is_block: bool) -> ValueRun {
    let mut drawing = Drawing { attached, site, want, is_block };
    let ended = match drawing.next_run() {
        Ok(run) => return run,
        Err(ended) => ended,
    };
    let tag = drawing.tag();
    if ended.is_detached() {
        errors::detached(&tag).raise();
    } else if ended.link.is_attached() {
        errors::exhausted_at_coordinator(&tag).raise();
    }
    errors::exhausted(&tag, ended.definition.upper_bound).raise();
}

struct Drawing<'a> {
    attached: &'a mut AttachedSegment,
    site: &'a CallSite,
    want: u64,
    /// Exactly as many as wanted, not at most.
    is_block: bool,
}

impl Drawing<'_> {
    /// The next values, or the row if that has too few.
    fn next_run(&mut self) -> Result<ValueRun, Box<TagRow>> {
        self.attached.follow_statement();
        let mut waiting: Option<RefillWait> = None;
        let mut dry_since: Option<Instant> = None;
        loop {
            if !self.attached.is_valid() {
                self.attach_again(waiting.take());
            }
            let ValueSource::Ring { shared, in_turns } = self.attached.source else {
                if let Some(run) = attach::draw_uncommitted(self.attached.row.key.creation, self.want, self.is_block) {
                    return Ok(run);
                }
                self.attach_unless_ended()?;
                continue;
            };
            let index = shared.index;
            match self.draw_from(shared, in_turns) {
                Ok(Draw::Drawn { run, request }) => {
                    if request {
                        workers::prefetch(index);
                    }
                    waiting.into_iter().for_each(RefillWait::end);
                    return Ok(run);
                }
                Ok(Draw::Dry) => {
                    let waited = dry_since.get_or_insert_with(Instant::now).elapsed();
                    match &mut waiting {
                        // Draws again first: the ring may have been refilled before this process prepared to sleep.
                        None => waiting = Some(RefillWait::begin(index, self.want)),
                        Some(wait) if wait.is_exhausted() => {
                            waiting.take().into_iter().for_each(RefillWait::end);
                            self.attach_unless_ended()?;
                        }
                        Some(wait) => wait.go_on(self, waited),
                    }
                }
                Err(Ended) => self.attach_again(waiting.take()),
            }
        }
    }

    fn draw_from(&self, shared: SharedRing, in_turns: bool) -> Result<Draw, Ended> {
        let SharedRing { ring, handle, .. } = shared;
        if in_turns {
            attach::draw_turn(shared, self.is_block)
        } else if self.is_block {
            ring.draw_block(handle, self.want)
        } else {
            ring.draw(handle, self.want)
        }
    }

    /// Attaches to the tag as it is now: its ring may have been given to another tag, or its row may have changed. A
    /// wait goes on at the new ring, by the row: a worker may have ended the old ring because of that.
    fn attach_again(&mut self, waiting: Option<RefillWait>) {
        let tag = self.tag();
        let same = match waiting {
            Some(waiting) => {
                waiting.end();
                None
            }
            None => attach::attach_again(&tag, self.attached),
        };
        *self.attached = same.unwrap_or_else(|| attach::look_up(&tag));
    }

    /// Attaches to the row as it is now, which has no more values unless it has changed since this process attached to it.
    fn attach_unless_ended(&mut self) -> Result<(), Box<TagRow>> {
        let tag = self.tag();
        let row = store::find(&tag).unwrap_or_else(|| errors::missing(&tag).raise()).row;
        if (row.key, row.version) == (self.attached.row.key, self.attached.row.version) {
            return Err(Box::new(row));
        }
        *self.attached = attach::look_up(&tag);
        Ok(())
    }

    fn tag(&self) -> Cow<'_, str> {
        args::required(self.site.text(), "tag")
    }
}

/// A wait for the refill of one ring.
struct RefillWait {
    index: usize,
    began: Instant,
    want: u64,
    requests: Requests,
}

/// Withdraws the values of a request that is still open. A refill stays requested.
impl Drop for RefillWait {
    fn drop(&mut self) {
        if attach::withdraw() {
            return;
        }
        let state = ring_state(self.index);
        if self.requests.is_open(state.refills()) {
            let less = |demand: u64| (demand > 0).then(|| demand.saturating_sub(self.want).max(1));
            // `Err` if the worker has taken the request.
            let _ = state.demand.fetch_update(Relaxed, Relaxed, less);
        }
    }
}

impl RefillWait {
    fn begin(index: usize, want: u64) -> Self {
        let state = ring_state(index);
        // Counted before the wait, so that a cancelled wait counts.
        state.waits.fetch_add(1, Relaxed);
        let _ = state.dry_since_ms.compare_exchange(0, system_clock::wall_ms(), Relaxed, Relaxed);
        state.refilled.prepare_to_sleep();
        Self { index, began: Instant::now(), want, requests: Requests::new(state.refills()) }
    }

    /// True if the worker has found no values for this request.
    fn is_exhausted(&self) -> bool {
        let state = ring_state(self.index);
        self.requests.is_open(state.refills()) && state.exhausted.load(Relaxed)
    }

    /// Requests a refill and sleeps. The caller then draws again. `waited` is the time since the call first found a ring dry,
    /// this or an earlier one.
    fn go_on(&mut self, drawing: &Drawing, waited: Duration) {
        let state = ring_state(self.index);
        let is_new = match drawing.attached.source {
            ValueSource::Ring { shared, in_turns: true } => {
                // A turn needs no room in the ring.
                self.requests.see(state.refills());
                attach::join(shared, self.want)
            }
            _ if !self.requests.is_due() => false,
            _ => {
                // Release: the worker that takes it finds the room that the draw has made.
                state.demand.fetch_add(self.want, Release);
                true
            }
        };
        if is_new {
            self.requests.make();
            self.summon();
        }
        // After the request: a call that may not wait leaves values for later ones.
        let left = settings::segment_timeout().saturating_sub(waited);
        if left.is_zero() {
            self.time_out(drawing);
        }
        let has_failed = SEGMENTS.exclusive(|segments| !segments.errors[self.index].text.is_clear());
        if has_failed && wait_for_obstacle(drawing, left, || self.time_out(drawing)) {
            // The caller draws again once this process has prepared, as at the begin of the wait.
            state.refilled.prepare_to_sleep();
            self.summon();
        } else if !state.refilled.sleep(left.min(CHECK_EVERY), &REFILL_WAIT) {
            // No signal: the worker may be gone.
            self.summon();
        }
        self.requests.see(state.refills());
    }

    fn summon(&self) {
        workers::summon(self.index, true).unwrap_or_else(|failure| {
            ConditionVariable::cancel_sleep();
            failure.raise()
        });
    }

    fn time_out(&self, drawing: &Drawing) -> ! {
        ConditionVariable::cancel_sleep();
        let is_attached = ring_state(self.index).is_attached.load(Relaxed);
        let silence = errors::silence(is_attached);
        let last = SEGMENTS.exclusive(|segments| {
            let error = &mut segments.errors[self.index];
            if error.text.is_clear() {
                error.set(silence);
            }
            *error
        });
        errors::timed_out(&drawing.tag(), last.text.text().unwrap_or_default()).raise()
    }

    fn end(self) {
        ConditionVariable::cancel_sleep();
        let state = ring_state(self.index);
        state.wait_us.fetch_add(self.began.elapsed().as_micros() as u64, Relaxed);
        state.dry_since_ms.store(0, Relaxed);
    }
}

/// The lock that the worker takes to update a row.
const ROW_UPDATE: u32 = pg_sys::RowExclusiveLock;

/// Waits for what keeps the worker from a row: transactions of other sessions that have locked the row, or the table. False if
/// there are none. Where the time is over, calls what raises the error. Raises 55000 if it is this transaction.
///
/// The worker waits for none of them, because it serves other tags too. A session that needs the values waits: one of these
/// transactions may wait for the session in turn, and PostgreSQL sees a deadlock only if both wait in its lock manager.
fn wait_for_obstacle(drawing: &Drawing, left: Duration, time_out: impl FnOnce() -> bool) -> bool {
    let creation = drawing.attached.row.key.creation;
    // Each wait is limited by itself, so there is only one.
    let work = || {
        let Some(table) = store::SEGMENT.try_lock(ROW_UPDATE) else {
            ExtensionTable::unlock(store::SEGMENT.lock(ROW_UPDATE), ROW_UPDATE);
            return true;
        };
        // SAFETY: the table is locked.
        let holders = unsafe { xact::holders_of_row(table, c"segment_creation_key", c"creation", creation) };
        // Not held during the wait: ALTER TABLE would wait for it, and draws for that.
        ExtensionTable::unlock(table, ROW_UPDATE);
        let holders = holders.unwrap_or_else(|| {
            ConditionVariable::cancel_sleep();
            errors::changed_here(&drawing.tag()).raise()
        });
        let Some(holder) = holders.first() else { return false };
        xact::wait_for_end_of(*holder);
        true
    };
    limited_or(left, work, time_out)
}
