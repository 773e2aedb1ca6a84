//! `snowflake_next`: issuing from the shared generator of an id space, and waiting where the core says so.

use super::attach::{attach, refuse_outside, warn_of_end};
use super::{layouts, node, stats};
use crate::clock;
use crate::pg::call_site::CallSite;
use idgen_core::generator::{Generator, GeneratorHandle};
use idgen_core::layout::Layout;
use idgen_core::snowflake::{Bounds, IdSpace, Issue, SlotRun};
use idgen_core::tenancy::Ended;
use pgrx::prelude::*;
use std::time::Instant;

/// The next id in the layout of `idgen.layout`. Raises 55000 without preload or without a worker id, 25006 on a standby,
/// and 22003 if the layout has no id for this worker id and time.
#[pg_extern(sql = "CREATE FUNCTION snowflake_next() RETURNS bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    unsafe { CallSite::new(fcinfo, None) }.with(layouts::of_call, next_id)
}

/// The next id in a layout: a preset or a spec. Raises 22004 for NULL, 22023 for an invalid layout, and what
/// `snowflake_next()` raises.
#[pg_extern(sql = "CREATE FUNCTION snowflake_next(layout text) RETURNS bigint VOLATILE PARALLEL SAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn snowflake_next_in(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with one argument as declared.
    unsafe { CallSite::new(fcinfo, Some(0)) }.with(layouts::of_call, next_id)
}

/// An id space and its generator, as this process remembers them.
#[derive(Clone, Copy)]
pub(super) struct Attached {
    pub(super) clock: &'static clock::State,
    pub(super) generator: &'static Generator,
    pub(super) handle: GeneratorHandle,
    pub(super) space: IdSpace,
    pub(super) layout: Layout,
    pub(super) index: usize,
}

impl Attached {
    /// False once the generator belongs to another space, or the worker id has changed.
    pub fn is_current(&self) -> bool {
        self.generator.is_current(self.handle)
    }

    #[inline]
    pub fn id(&self, slot: u64) -> i64 {
        self.space.id(slot)
    }

    #[inline]
    fn try_issue(&self, want: u64, bounds: &Bounds) -> Result<Issue, Ended> {
        self.generator.issue(self.handle, &self.space, want, bounds)
    }
}

/// The next id. The hot path: no lock, no allocation, no logging, and no foreign call but the clock.
#[inline]
fn next_id(attached: &mut Attached) -> i64 {
    let run = issue(attached, 1);
    stats::count(attached.index, run, false);
    attached.id(run.first)
}

/// The next run of ids, at least 1 and at most `want`, as many as the bounds allow at once.
pub(super) fn next_run(attached: &mut Attached, want: u64) -> SlotRun {
    let run = issue(attached, want);
    stats::count(attached.index, run, true);
    run
}

#[inline]
fn issue(attached: &mut Attached, want: u64) -> SlotRun {
    match attached.try_issue(want, &attached.clock.quick_bounds()) {
        Ok(Issue::Issued(run)) => run,
        _ => issue_carefully(attached, want),
    }
}

/// Issues within the careful bounds. Where they stop the issue, waits or moves the mark.
#[cold]
fn issue_carefully(attached: &mut Attached, want: u64) -> SlotRun {
    // A long statement gets here once in each `idgen.clock_window`.
    node::follow_settings();
    loop {
        let bounds = attached.clock.careful_bounds();
        match attached.try_issue(want, &bounds) {
            Ok(Issue::Issued(run)) => {
                attached.clock.issued(&bounds, attached.space.time_ms(run.first + run.count - 1));
                // A session may have attached long before the last year.
                warn_of_end(&attached.layout, bounds.now_ms);
                return run;
            }
            Ok(Issue::Wait { time_ms }) => wait(attached, time_ms),
            Ok(Issue::Reserve { first_ms, last_ms }) => {
                attached.clock.make_room(&bounds, (first_ms, last_ms));
            }
            Ok(answer) => refuse_outside(&attached.space, answer),
            Err(Ended) => *attached = attach(attached.layout),
        }
    }
}

fn wait(attached: &Attached, time_ms: i64) {
    let began = Instant::now();
    // Counted before the wait, so that a cancelled wait counts.
    stats::count_wait(attached.index);
    attached.clock.wait_for_limit(time_ms);
    stats::count_wait_time(attached.index, began.elapsed());
}
