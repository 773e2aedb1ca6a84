//! Segment ids: the SQL functions that draw them. A segment has a row in `idgen.segment`, under its tag, and a ring of
//! values in shared memory.

use crate::args;
use crate::coordinator;
use crate::pg::datum::{Composite, form_row};
use crate::pg::function::{self, CallSite};
use crate::pg::shared_objects;
use crate::shmem;
use attach::AttachedSegment;
use idgen_core::segment::ValueRun;
use idgen_core::segment::tag::MAX_STEP;
use pgrx::prelude::*;

mod attach;
pub mod define;
mod demand;
mod draw;
mod errors;
mod fleet;
mod obstacle;
mod refill;
mod refill_worker;
mod state;
pub mod stats;
mod status;
mod store;
mod trigger;
mod turns;
mod uncommitted;
mod worker_process;

pub use status::{TABLES, checks};

/// The next value of a segment. Raises 22004 for NULL, 42704 if there is no such segment, 42501 without the privilege,
/// 2200H past the upper bound, 55P03 if no refill comes within `idgen.segment_timeout`, 53400 without a refill worker,
/// 55000 without preload or if this transaction changed the segment, 25006 on a standby.
#[pg_extern(sql = false)]
fn segment_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared.
    let site = unsafe { CallSite::new(fcinfo, Some(0)) };
    site.with(attach::of_call, |attached| {
        attached.try_draw_one().unwrap_or_else(|| draw::run(attached, &site, 1).first)
    })
}

/// A run of consecutive values. Raises 22004 for NULL, 22023 unless the count is 1 to 1000000000; else as
/// `segment_next`.
#[pg_extern(sql = false)]
fn segment_reserve(fcinfo: pg_sys::FunctionCallInfo) -> Composite {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let (site, count) = unsafe { (CallSite::new(fcinfo, Some(0)), pgrx::fcinfo::pg_getarg::<i64>(fcinfo, 1)) };
    let count = args::required(count, "count");
    let counts = 1..=MAX_STEP;
    if !counts.contains(&count) {
        errors::count_out_of_range(count, counts).raise();
    }
    let run = site.with(attach::of_call, |attached| draw::block(attached, &site, count as u64));
    // SAFETY: three columns, all bigint, as declared.
    unsafe { form_row(fcinfo, [run.first.into_datum(), run.last().into_datum(), run.stride.into_datum()]) }
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
            self.run = draw::run(&mut self.attached, site, self.wanted.min(self.step));
            self.wanted -= self.run.count;
            self.step = (self.step * 2).min(self.attached.max_step);
        }
        Some(self.run.split_first())
    }
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&state::RINGS, &state::RING_STATES, &state::SEGMENTS]);
    shared_objects::follow_dropped_databases(fleet::supply_worker::leave_database, state::end_rings_of);
    coordinator::follow(fleet::launcher::start);
    shared_objects::follow_owners_of(shared_objects::OwnedRows {
        exist: || store::SEGMENT.find().is_some(),
        reassign: |owners, heir| store::DRAWERS.reassign(owners, heir),
        drop: |owners| {
            let is_any = store::DRAWERS.drop_owned(owners);
            is_any | (store::has_servers() && store::SERVERS.drop_owned(owners))
        },
    });
}
