//! Drawing: from the ring of a tag, waiting for a refill where it is dry.

use super::attach::{self, Attached, Source};
use super::errors;
use super::slot::{SEGMENTS, slot};
use super::{private, refill, row, slot};
use crate::args;
use crate::pg::call_site::CallSite;
use crate::pg::condition_variable::ConditionVariable;
use crate::pg::wait_event::WaitEvent;
use crate::settings;
use idgen_core::segment::{Answer, Ended, Run};
use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often somebody who waits makes sure that there is a worker. One that ends says so, unless it never began.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// The next value. This is the hot path: no lock, no allocation, no logging, and no foreign call but for the user.
#[inline]
pub fn one(attached: &mut Attached, site: &CallSite) -> i64 {
    if attached.is_good()
        && let Source::Shared { ring, handle, index } = *attached.source()
        && let Ok(Answer::Drawn { run, ask }) = ring.draw(handle, 1)
    {
        if ask {
            prefetch(index);
        }
        return run.first;
    }
    run(attached, site, 1).first
}

/// Asks for a refill while there still is something. That goes on being served, with or without a worker.
#[cold]
fn prefetch(index: usize) {
    let _ = refill::ask(index);
}

/// The next run of values, at least 1 and at most `want`.
#[cold]
pub fn run(attached: &mut Attached, site: &CallSite, want: u64) -> Run {
    Drawing { attached, site, want, whole: false }.draw()
}

/// As many values as wanted, in one piece.
pub fn block(attached: &mut Attached, site: &CallSite, want: u64) -> Run {
    Drawing { attached, site, want, whole: true }.draw()
}

/// One call that draws, with all that may come in its way.
struct Drawing<'a> {
    attached: &'a mut Attached,
    site: &'a CallSite,
    want: u64,
    whole: bool,
}

impl Drawing<'_> {
    fn draw(mut self) -> Run {
        let mut waiting: Option<Waiting> = None;
        let mut dry_since: Option<Instant> = None;
        loop {
            if !self.attached.is_good() {
                self.attach_again(waiting.take());
            }
            let Source::Shared { ring, handle, index } = *self.attached.source() else {
                return self.draw_private();
            };
            let answer = if self.whole { ring.draw_block(handle, self.want) } else { ring.draw(handle, self.want) };
            match answer {
                Ok(Answer::Drawn { run, ask }) => {
                    if ask {
                        prefetch(index);
                    }
                    if let Some(waiting) = waiting {
                        waiting.end();
                    }
                    return run;
                }
                Ok(Answer::Dry) => {
                    let waited = dry_since.map(|since| since.elapsed());
                    dry_since.get_or_insert_with(Instant::now);
                    waiting.get_or_insert_with(|| Waiting::begin(index, self.want)).go_on(&self, waited);
                }
                Err(Ended) => self.attach_again(waiting.take()),
            }
        }
    }

    /// Attaches to what the tag is now, and where it lives: the ring may have been given to another tag, or the row be
    /// changed or gone. What is waited for is another ring from here on.
    fn attach_again(&mut self, waiting: Option<Waiting>) {
        if let Some(waiting) = waiting {
            waiting.end();
        }
        *self.attached = attach::look_up(&self.tag());
    }

    fn draw_private(&self) -> Run {
        match private::draw(self.attached.creation(), self.want, self.whole) {
            Some((range, stride)) => Run { first: range.first, count: range.count, stride },
            None => self.exhausted(),
        }
    }

    fn exhausted(&self) -> ! {
        let bound = row::find(&self.tag()).map_or(i64::MAX, |row| row.allocation.upper_bound);
        errors::exhausted(&self.tag(), bound).raise()
    }

    fn tag(&self) -> Cow<'_, str> {
        args::required(self.site.text(), "tag")
    }
}

/// A wait for the refill of one ring.
/// As `pg_stat_activity` shows the wait for a refill.
const REFILL_WAIT: WaitEvent = WaitEvent::named(c"IdgenSegmentRefill");

struct Waiting {
    index: usize,
    began: Instant,
    want: u64,
    /// The number of refills when values were last asked for; each that leaves too little is asked anew.
    asked_at: Option<u64>,
}

/// However the wait ends: what was asked for and has not come is no longer wanted by this call. A refill still is.
impl Drop for Waiting {
    fn drop(&mut self) {
        let slot = slot(self.index);
        if self.asked_at == Some(slot.refills.load(Relaxed)) {
            let less = |demand: u64| (demand > 0).then(|| demand.saturating_sub(self.want).max(1));
            // `Err` says that the worker has taken it.
            let _ = slot.demand.fetch_update(Relaxed, Relaxed, less);
        }
    }
}

impl Waiting {
    fn begin(index: usize, want: u64) -> Self {
        let slot = slot(index);
        // Counted before the wait, so that a wait which is cancelled shows too.
        slot.waits.fetch_add(1, Relaxed);
        slot.refilled.prepare_to_sleep();
        Self { index, began: Instant::now(), want, asked_at: None }
    }

    /// Asks for a refill, or if that is done, sleeps until there is news. After each the ring is looked at again: it may
    /// have been refilled before this process was on the list of those to be woken. `waited` is the time since the call
    /// first found a ring dry, be it this one or one that the tag has had to leave.
    fn go_on(&mut self, drawing: &Drawing, waited: Option<Duration>) {
        let slot = slot(self.index);
        let refills = slot.refills.load(Relaxed);
        let is_asked = self.asked_at == Some(refills);
        if is_asked && slot.exhausted.load(Relaxed) {
            ConditionVariable::cancel_sleep();
            drawing.exhausted();
        }
        let timeout = settings::segment_timeout();
        if waited.is_some_and(|waited| waited >= timeout) {
            self.time_out(drawing);
        }
        if !is_asked {
            self.asked_at = Some(refills);
            slot.demand.fetch_add(self.want, Relaxed);
        } else if slot.refilled.sleep((timeout - waited.unwrap_or_default()).min(CHECK_EVERY), REFILL_WAIT) {
            return;
        }
        // Asked for the first time, or the worker may be gone.
        refill::summon().unwrap_or_else(|failure| {
            ConditionVariable::cancel_sleep();
            failure.raise()
        });
    }

    fn time_out(&self, drawing: &Drawing) -> ! {
        ConditionVariable::cancel_sleep();
        let mut last = slot::LastError::default();
        SEGMENTS.exclusive(|segments| last = segments.errors[self.index]);
        errors::timed_out(&drawing.tag(), last.text()).raise()
    }

    fn end(self) {
        ConditionVariable::cancel_sleep();
        slot(self.index).wait_us.fetch_add(self.began.elapsed().as_micros() as u64, Relaxed);
    }
}
