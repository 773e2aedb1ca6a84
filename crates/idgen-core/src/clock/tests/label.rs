//! The label's shared state, one call after the other. The models of loom have the interleavings.

use crate::clock::label::{LabelReach, LabelWorker, Labels, PATIENCE, RETRY};

const PATIENCE_US: i64 = PATIENCE.as_micros() as i64;
const RETRY_US: i64 = RETRY.as_micros() as i64;

#[test]
fn worker_is_requested_again_when_it_is_late_and_soon_after_a_failure() {
    let worker = LabelWorker::default();
    assert!(worker.request(10));
    assert!(!worker.request(10 + PATIENCE_US - 1));
    assert!(worker.request(10 + PATIENCE_US));
    worker.fail(20 + PATIENCE_US);
    assert!(!worker.request(20 + PATIENCE_US + RETRY_US - 1));
    assert!(worker.request(20 + PATIENCE_US + RETRY_US));
    worker.succeed();
    assert!(worker.request(21 + PATIENCE_US + RETRY_US));
}

#[test]
fn worker_is_given_up_if_it_fails_for_long_or_the_caller_has_waited() {
    let worker = LabelWorker::default();
    assert!(!worker.is_given_up(10, PATIENCE_US), "it has not failed");
    worker.fail(10);
    assert!(!worker.is_given_up(10 + PATIENCE_US - 1, 0), "the next one may find a slot");
    assert!(worker.is_given_up(11, RETRY_US), "the caller has waited");
    worker.fail(11 + RETRY_US);
    assert!(worker.is_given_up(10 + PATIENCE_US, 0), "they fail since the first");
    let requested_us = 10 + PATIENCE_US;
    assert!(worker.request(requested_us));
    assert!(!worker.is_given_up(requested_us + PATIENCE_US - 1, 0), "one is pending");
    assert!(worker.is_given_up(requested_us + PATIENCE_US, 0), "for too long");
    assert!(!worker.is_given_up(requested_us + RETRY_US - 1, RETRY_US), "it gets a moment");
    assert!(worker.is_given_up(requested_us + RETRY_US, RETRY_US));
    worker.succeed();
    assert!(!worker.is_given_up(requested_us + PATIENCE_US, RETRY_US));
    assert!(worker.request(requested_us));
    worker.time_out(requested_us + 1);
    assert!(!worker.is_given_up(requested_us + 2, 0), "it is pending still");
    assert!(worker.is_given_up(requested_us + RETRY_US, RETRY_US));
}

/// Each time, other processes have used up the slots of workers for a moment.
#[test]
fn two_failures_with_a_lull_between_them_are_no_series() {
    let worker = LabelWorker::default();
    assert!(worker.request(10));
    worker.fail(10);
    let later_us = 10 + PATIENCE_US;
    assert!(worker.request(later_us));
    worker.fail(later_us);
    assert!(!worker.is_given_up(later_us, 0));
    assert!(worker.is_given_up(later_us, RETRY_US), "the caller has waited");
    // A caller has stopped waiting just as the worker succeeded.
    worker.succeed();
    worker.time_out(later_us);
    assert!(worker.request(later_us + 1));
    assert!(!worker.is_given_up(later_us + 1 + RETRY_US, RETRY_US));
}

#[test]
fn mark_that_passes_the_label_is_told_once_and_known_with_the_next_label() {
    let (reach, mut labels) = (LabelReach::new(), Labels::default());
    assert!(!reach.is_passed() && !reach.reaches(0));
    let label = labels.begin(&reach, 10);
    assert!(!labels.commit(&reach, &label), "nothing was passed");
    assert!(reach.reaches(10) && !reach.reaches(11));
    assert!(!reach.follow(10) && !reach.is_passed());
    assert!(reach.follow(11) && reach.is_passed());
    assert!(!reach.follow(12), "told already");
    let label = labels.begin(&reach, 11);
    assert!(!labels.commit(&reach, &label) && reach.is_passed(), "12 is past it");
    let label = labels.begin(&reach, 12);
    assert!(labels.commit(&reach, &label) && !reach.is_passed());
}

#[test]
fn label_that_goes_back_limits_the_mark_from_its_beginning() {
    let (reach, mut labels) = (LabelReach::new(), Labels::default());
    let first = labels.begin(&reach, 10);
    assert!(!first.is_lower && !reach.reaches(10), "it is not in WAL yet");
    labels.commit(&reach, &first);
    let lower = labels.begin(&reach, 5);
    assert!(lower.is_lower && !reach.reaches(6));
    assert_eq!(labels.latest_ms, 10);
    let same = labels.begin(&reach, 10);
    assert!(!same.is_lower);
    labels.commit(&reach, &lower);
    assert_eq!((labels.latest_ms, reach.until_ms()), (10, 5), "another one has begun");
    labels.commit(&reach, &same);
    assert!(reach.reaches(10));
}
