//! Telling replicas how far ids may go: when a label is requested, the wait of the mark for it, and the worker that writes it.
//!
//! The worker starts when the mark comes near the label. The mark moves under the lock of the high-water file, and waits for the
//! label. If no worker can write it, the mark passes it: generation never stops.

use super::label::{MarkLabel, PATIENCE, RETRY};
use super::moves::{allow, known_mark_ms};
use super::port::{Event, Port, WaitFor, Written};
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// Requests a worker that writes a label past this time, unless one is pending. `allow` runs before it starts. Not under
/// a lock: starting a process takes one.
pub(super) fn request<P: Port>(port: &P, mark_ms: i64, allow: impl FnOnce()) {
    let label = &port.high_water().label;
    if !label.worker.request(port.boot_us()) {
        label.wanted_ms.fetch_max(mark_ms, Release);
        return;
    }
    // Not the maximum: what was wanted earlier may be given up. Other sessions ask again when they wake.
    label.wanted_ms.store(mark_ms, Release);
    allow();
    if !port.start_label_worker() {
        label.worker.fail(port.boot_us());
    }
}

/// Waits until a label lets the mark move to this time, or no worker can write one: true if the mark may pass the label.
/// The wait can be canceled. Not under a lock. Call [`keep_ahead`] when the mark has moved.
pub(super) fn wait_for<P: Port>(port: &P, mark_ms: i64) -> Result<bool, P::Error> {
    let label = &port.high_water().label;
    let began_us = port.boot_us();
    while !label.reach.reaches(mark_ms) {
        // First: where a cancel ends the wait, the end of the transaction or the rollback to a savepoint requests a label, because
        // that of an earlier start may be as far ahead as a wrong clock.
        port.is_waiting().store(true, Relaxed);
        // In each turn, also in one that does not sleep: the caller asks again.
        port.check_interrupts();
        allow(port, mark_ms)?;
        port.prepare_to_wait();
        request(port, mark_ms, || ());
        let now_us = port.boot_us();
        let is_late = !label.reach.reaches(mark_ms);
        if is_late && now_us - began_us >= PATIENCE.as_micros() as i64 {
            label.worker.time_out(now_us);
        }
        let is_given_up = label.worker.is_given_up(now_us, now_us - began_us);
        if is_late && !is_given_up {
            port.wait(WaitFor::Label, RETRY);
        }
        port.end_wait();
        if is_late && is_given_up {
            return Ok(true);
        }
    }
    Ok(false)
}

/// At the end of each transaction, and where a savepoint is rolled back. Where it waited for a label, and ended in an error, no
/// id needs that label: it may be as far ahead as a wrong clock, and a standby that is promoted would begin past it.
pub fn end_wait_of_transaction<P: Port>(port: &P) {
    if port.is_waiting().swap(false, Relaxed) {
        // Also what other sessions want: they ask again when they wake.
        port.high_water().label.wanted_ms.store(i64::MIN, Release);
        request_if_due(port);
    }
}

/// After the mark has moved: requests the next label in time, and tells when the mark has passed the label.
pub(super) fn keep_ahead<P: Port>(port: &P) {
    port.is_waiting().store(false, Relaxed);
    request_if_due(port);
    let state = port.high_water();
    if state.label.reach.follow(state.mark.mark_ms()) {
        port.tell(Event::LabelPassed);
    }
}

/// Requests a label if the one in WAL does not cover the next move of the mark, or reaches further than ids need it.
fn request_if_due<P: Port>(port: &P) {
    let label = &port.high_water().label;
    // The same as what the worker goes by: otherwise its label could be due again as soon as it is written.
    let needed_ms = known_mark_ms(port).max(label.wanted_ms.load(Acquire));
    let (until_ms, allowed_ms) = (label.reach.until_ms(), label.allowed_ms.load(Acquire));
    let (drift_ms, window_ms) = port.drift_and_window_ms();
    if MarkLabel::is_due(until_ms, needed_ms, allowed_ms, drift_ms, window_ms) {
        request(port, needed_ms, || ());
    }
}

/// What the worker does. Its label may be before that of an earlier start: the mark that was read then covers the
/// difference.
pub fn write_label<P: Port>(port: &P) {
    let label = &port.high_water().label;
    let choose = |written: &mut Written| {
        let (wanted_ms, allowed_ms) = (label.wanted_ms.load(Acquire), label.allowed_ms.load(Acquire));
        let (drift_ms, window_ms) = port.drift_and_window_ms();
        let until_ms = MarkLabel::next_ms(known_mark_ms(port), wanted_ms, allowed_ms, drift_ms, window_ms);
        written.labels.begin(&label.reach, until_ms)
    };
    let next = port.commit_label(|| port.file(choose));
    let is_known_again = port.file(|written| written.labels.commit(&label.reach, &next));
    label.worker.succeed();
    port.signal();
    // While this process wrote the label, the mark may have passed it, or the ids that wanted it may have been given up.
    request_if_due(port);
    if is_known_again {
        port.tell(Event::LabelKnownAgain);
    }
}

/// The worker has ended without a label.
pub fn fail_label<P: Port>(port: &P) {
    port.high_water().label.worker.fail(port.boot_us());
    port.signal();
}
