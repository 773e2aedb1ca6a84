//! Drawing values from the ring of a tag, and waiting for a refill if the ring is dry.

use super::attach::{self, AttachedSegment, SharedRing, ValueSource};
use super::state::{LastError, SEGMENTS, ring_state};
use super::{demand, errors, fleet, obstacle, store, turns, uncommitted};
use crate::args;
use crate::pg::function::CallSite;
use crate::pg::latch::{ConditionVariable, WaitEvent};
use crate::pg::system_clock;
use crate::settings;
use idgen_core::segment::{Draw, ValueRun};
use idgen_core::tenancy::Ended;
use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A waiter makes sure after this time that the worker runs that serves its ring. One that ends wakes its waiters; one
/// that never began does not.
const CHECK_EVERY: Duration = Duration::from_millis(500);

static REFILL_WAIT: WaitEvent = WaitEvent::new(c"IdgenSegmentRefill");

/// The next run of values, at least 1 and at most `want`.
#[cold]
pub fn run(attached: &mut AttachedSegment, site: &CallSite, want: u64) -> ValueRun {
    Drawing { attached, site, want, whole: false }.draw()
}

/// A run of exactly `want` values.
pub fn block(attached: &mut AttachedSegment, site: &CallSite, want: u64) -> ValueRun {
    Drawing { attached, site, want, whole: true }.draw()
}

struct Drawing<'a> {
    attached: &'a mut AttachedSegment,
    site: &'a CallSite,
    want: u64,
    whole: bool,
}

impl Drawing<'_> {
    fn draw(mut self) -> ValueRun {
        self.attached.follow_statement();
        let mut waiting: Option<RefillWait> = None;
        let mut dry_since: Option<Instant> = None;
        loop {
            if !self.attached.is_valid() {
                self.attach_again(waiting.take());
            }
            let (ValueSource::Shared(shared) | ValueSource::InOrder(shared)) = self.attached.source else {
                if let Some(run) = uncommitted::draw(self.attached.row.key.creation, self.want, self.whole) {
                    return run;
                }
                self.refuse_or_attach_again();
                continue;
            };
            let index = shared.index;
            match self.draw_from(shared) {
                Ok(Draw::Drawn { run, request }) => {
                    if request {
                        demand::prefetch(index);
                    }
                    if let Some(waiting) = waiting {
                        waiting.end();
                    }
                    return run;
                }
                Ok(Draw::Dry) => {
                    let waited = dry_since.map(|since| since.elapsed());
                    dry_since.get_or_insert_with(Instant::now);
                    let wait = waiting.get_or_insert_with(|| RefillWait::begin(index, self.want));
                    if wait.is_exhausted() {
                        waiting.take().into_iter().for_each(RefillWait::end);
                        self.refuse_or_attach_again();
                    } else {
                        wait.go_on(&self, waited);
                    }
                }
                Err(Ended) => self.attach_again(waiting.take()),
            }
        }
    }

    fn draw_from(&self, shared: SharedRing) -> Result<Draw, Ended> {
        let SharedRing { ring, handle, .. } = shared;
        if let ValueSource::InOrder(_) = self.attached.source {
            turns::draw(shared, self.whole)
        } else if self.whole {
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

    /// The row has no more values, unless it has changed since this process attached to it.
    fn refuse_or_attach_again(&mut self) {
        let tag = self.tag();
        let row = store::find(&tag).unwrap_or_else(|| errors::unknown(&tag).raise());
        if (row.key, row.version) != (self.attached.row.key, self.attached.row.version) {
            *self.attached = attach::look_up(&tag);
        } else if row.is_detached() {
            fleet::errors::detached(&tag).raise();
        } else if row.link.is_attached() {
            fleet::errors::exhausted(&tag).raise();
        } else {
            errors::exhausted(&tag, row.definition.upper_bound).raise();
        }
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
    /// The number of refills at the last request. A refill that brings too few values needs another request.
    requested_at: Option<u64>,
    /// The caller has drawn again since this process prepared to sleep.
    has_looked: bool,
}

/// Withdraws the values of a request that is still open. A refill stays requested.
impl Drop for RefillWait {
    fn drop(&mut self) {
        if turns::withdraw() {
            return;
        }
        let state = ring_state(self.index);
        if self.requested_at == Some(state.refills.load(Relaxed)) {
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
        Self { index, began: Instant::now(), want, requested_at: None, has_looked: false }
    }

    /// True if the worker has found no values for this request.
    fn is_exhausted(&self) -> bool {
        let state = ring_state(self.index);
        self.requested_at == Some(state.refills.load(Relaxed)) && state.exhausted.load(Relaxed)
    }

    /// Requests a refill and sleeps. The caller then draws again. The first time it does that at once: the ring may have
    /// been refilled before this process prepared to sleep. `waited` is the time since the call first found a ring dry, this
    /// or an earlier one.
    fn go_on(&mut self, drawing: &Drawing, waited: Option<Duration>) {
        if !std::mem::replace(&mut self.has_looked, true) {
            return;
        }
        let state = ring_state(self.index);
        let refills = state.refills.load(Relaxed);
        let is_new = match drawing.attached.source {
            ValueSource::InOrder(shared) => turns::join(shared, self.want),
            _ => self.requested_at != Some(refills),
        };
        if is_new {
            self.requested_at = Some(refills);
            if !matches!(drawing.attached.source, ValueSource::InOrder(_)) {
                state.demand.fetch_add(self.want, Relaxed);
            }
            self.summon();
        }
        // After the request: a call that may not wait leaves values for later ones.
        let left = settings::segment_timeout().saturating_sub(waited.unwrap_or_default());
        if left.is_zero() {
            self.time_out(drawing);
        }
        if self.has_failed() && obstacle::wait(drawing.attached.row.key.creation, left, || self.time_out(drawing)) {
            // The caller draws again once this process has prepared, as at the begin of the wait.
            state.refilled.prepare_to_sleep();
            self.has_looked = false;
            return self.summon();
        }
        let is_signalled = state.refilled.sleep(left.min(CHECK_EVERY), &REFILL_WAIT);
        if !is_signalled {
            // The worker may be gone.
            self.summon();
        }
    }

    /// True if the last refill has.
    fn has_failed(&self) -> bool {
        SEGMENTS.exclusive(|segments| !segments.errors[self.index].is_clear())
    }

    fn summon(&self) {
        demand::summon(self.index).unwrap_or_else(|failure| {
            ConditionVariable::cancel_sleep();
            failure.raise()
        });
    }

    fn time_out(&self, drawing: &Drawing) -> ! {
        ConditionVariable::cancel_sleep();
        let is_attached = ring_state(self.index).is_attached.load(Relaxed);
        let silence = errors::silence(is_attached);
        let mut last = LastError::default();
        SEGMENTS.exclusive(|segments| {
            let error = &mut segments.errors[self.index];
            if error.is_clear() {
                error.set(silence);
            }
            last = *error;
        });
        errors::timed_out(&drawing.tag(), last.text().unwrap_or_default()).raise()
    }

    fn end(self) {
        ConditionVariable::cancel_sleep();
        let state = ring_state(self.index);
        state.wait_us.fetch_add(self.began.elapsed().as_micros() as u64, Relaxed);
        state.dry_since_ms.store(0, Relaxed);
    }
}
