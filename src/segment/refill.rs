//! The refill worker: a background worker for each database that draws. A session starts it on demand, and it exits
//! when idle.
//!
//! Only the refill worker takes values from rows; the supply worker takes values from a coordinator. [`Port`] has what both do.

use super::fleet::servers::Rows;
use super::state::{self, evict, exhaust, ring, ring_state};
use super::store;
use super::workers::{self, wanted};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::xact::{self, Durability};
use crate::pg::{session, system_clock};
use crate::settings;
use idgen_core::segment::refill::{Filling, Refilling, refill};
use idgen_core::segment::refillers::Duty;
use idgen_core::segment::tag::{NotLocked, TagRow};
use idgen_core::segment::{NewRange, NoValues, RingTenant, TagKey, ValueRun};
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// Long enough to serve slow series without another start, short enough for DROP DATABASE, which waits five seconds.
const IDLE: Duration = Duration::from_secs(2);

/// After a failed refill.
const RETRY: Duration = Duration::from_millis(100);

static MAIN_WAIT: WaitEvent = WaitEvent::new(c"IdgenRefillMain");

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_refill(argument: pg_sys::Datum) {
    if let Some(duty) = workers::begin(argument, false) {
        run(duty);
    }
}

/// The main loop: serves demand until there was none for a while. A refill that fails repeatedly counts as none, so
/// that it does not keep the database from being dropped. A session that waits for it starts another worker.
fn run(duty: Duty) {
    let mut idle_since = Instant::now();
    let mut failing = false;
    loop {
        check_for_interrupts!();
        if session::is_reload_pending() {
            session::reload_configuration();
        }
        let mut refilled = false;
        for (index, tenant) in wanted(duty) {
            let Some(demand) = workers::take_demand(index, tenant.handle).filter(|demand| *demand > 0) else {
                continue;
            };
            let succeeded = serve(index, tenant, demand);
            if succeeded || !failing {
                idle_since = Instant::now();
            }
            failing = !succeeded;
            refilled |= succeeded;
        }
        if refilled {
            // The commit may have waited on the latch, and reset it after a session stored demand and set it.
            continue;
        }
        let pause = IDLE.saturating_sub(idle_since.elapsed());
        if pause.is_zero() {
            if workers::end(duty, failing) {
                return;
            }
            idle_since = Instant::now();
            continue;
        }
        // Resets the latch before demand is read.
        latch::wait(Some(if failing { pause.min(RETRY) } else { pause }), &MAIN_WAIT);
    }
}

/// A worker, with what only its kind has.
pub struct Port<W>(pub W);

pub const BUSY: &str = "A transaction that has not ended holds a lock on the segment's row in idgen.segment.";

/// The reason for users.
pub fn text(missing: NoValues) -> String {
    match missing {
        NoValues::Busy => BUSY.to_owned(),
        // The names come last: a long text is cut.
        NoValues::Unreported { tag, servers } => format!(
            "The history of this server has changed. Run segment_resume() if these servers have not reported the values of \
             segment \"{tag}\" that they have received, and are gone for good: {servers}."
        ),
        // As `errors::exhausted`.
        NoValues::BeyondBound { tag } => format!("segment \"{tag}\" has reached its upper bound"),
        NoValues::Skipped(range) => format!(
            "The wait for the synchronous standby was canceled, so the values {} to {} are skipped.",
            range.first,
            range.last()
        ),
        NoValues::NotAskedFor(ValueRun { first, count, stride }) => {
            format!("The coordinator has granted values that were not asked for: {count} from {first} on, by {stride}.")
        }
        NoValues::Withheld { waits_for } => format!(
            "The coordinator grants nothing, because servers have not reported what they have received: {waits_for}."
        ),
        NoValues::Raised(message) => message,
    }
}

impl<W> Filling for Port<W> {
    fn now_us(&mut self) -> i64 {
        system_clock::boot_us()
    }

    fn transaction<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> Result<R, NoValues> {
        let done = workers::in_transaction(|| work(self)).map_err(NoValues::Raised);
        crate::pg::crash_point!("segment: committed");
        done
    }

    fn require_durability(&mut self) {
        xact::require_durability(Durability::Failover);
    }

    fn was_cancelled(&mut self) -> bool {
        workers::was_cancelled()
    }

    fn lock(&mut self, creation: i64) -> Result<TagRow, NotLocked> {
        let locked = store::lock(creation);
        crate::pg::crash_point!("segment: row locked");
        locked
    }

    fn install(&mut self, key: TagKey, new: NewRange) {
        state::install(key, new);
        crate::pg::crash_point!("segment: installed");
    }
}

struct RefilledRing {
    index: usize,
    tenant: RingTenant,
    rows: Rows<'static>,
}

impl Refilling for Port<RefilledRing> {
    type Rows = Rows<'static>;

    fn rows(&mut self) -> &mut Rows<'static> {
        &mut self.0.rows
    }

    fn has_room(&mut self) -> bool {
        ring(self.0.index).has_room()
    }

    fn low_water(&mut self, count: u64) -> u64 {
        settings::segment_low_water(count)
    }

    fn raise(&mut self, row: &TagRow) {
        store::raise(row.key.creation, row.definition.max_id, Some(row.definition.step), None);
        crate::pg::crash_point!("segment: max_id raised");
    }

    fn exhaust(&mut self, version: i64) {
        exhaust(self.0.index, self.0.tenant.key, version);
    }

    fn evict(&mut self) {
        evict(self.0.index, self.0.tenant);
    }
}

/// Refills one ring, and wakes its waiters. False if it failed.
fn serve(index: usize, tenant: RingTenant, demand: u64) -> bool {
    let mut port = Port(RefilledRing { index, tenant, rows: Rows::default() });
    let failure = refill(&mut port, &tenant, demand).err().map(text);
    if let Some(reason) = &failure
        && workers::keep_error(index, tenant, reason)
    {
        log!("could not refill a segment: {reason}");
    }
    workers::forget_demand();
    ring_state(index).refilled.broadcast();
    failure.is_none()
}
