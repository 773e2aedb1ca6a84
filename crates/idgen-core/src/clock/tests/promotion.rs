//! The floor of a promoted server, compared with the ids that its primary may have issued.

use super::*;
use crate::clock::label::MarkLabel;

#[test]
fn label_reads_back_and_other_texts_are_none() {
    let label = MarkLabel { timeline: 7, until_ms: NOW_MS };
    assert_eq!(label.to_string(), format!("1 timeline 7 until {NOW_MS}"));
    assert_eq!(MarkLabel::parse(&label.to_string()), Some(label));
    for text in [
        "",
        "1",
        "2 timeline 7 until 5",
        "1 timeline 7 until",
        "1 timeline 7 until 5 ",
        "1 timeline -7 until 5",
        "1 timeline 7 until 5x",
        "1 timeline 7  until 5",
    ] {
        assert_eq!(MarkLabel::parse(text), None, "{text:?}");
    }
}

#[test]
fn label_is_due_again_once_the_mark_has_moved() {
    for window_ms in [100, 3000, 60_000] {
        let until_ms = MarkLabel::reach_ms(NOW_MS, DRIFT_MS, window_ms);
        assert!(!MarkLabel::is_due(until_ms, NOW_MS, i64::MAX, DRIFT_MS, window_ms));
        assert!(
            !MarkLabel::is_due(until_ms, NOW_MS + window_ms / 10, i64::MAX, DRIFT_MS, window_ms),
            "a slightly later mark"
        );
        let moved_ms = Target::past(NOW_MS - window_ms / 2 + DRIFT_MS, window_ms).mark_ms;
        assert!(moved_ms <= until_ms, "the mark need not wait for a label");
        if window_ms >= 1000 {
            assert!(MarkLabel::is_due(until_ms, moved_ms, i64::MAX, DRIFT_MS, window_ms));
        }
    }
}

/// The old primary may have written it, and used it for ids, without replicating it.
#[test]
fn floor_is_past_the_label_after_the_replicated_one() {
    for window_ms in [100, 999, 3000, 60_000] {
        let next_ms = MarkLabel::next_ms(NOW_MS, i64::MIN, i64::MAX, DRIFT_MS, window_ms);
        let promoted = Evidence { life: REPLAYED, label_ms: Some(NOW_MS), window_ms, ..evidence(NOW_MS) };
        let floor_ms = promoted.floor_ms(None);
        assert!(floor_ms >= next_ms, "window {window_ms} ms: {} ms below", next_ms - floor_ms);
    }
}

/// Whatever the worker reads, the label that it writes is not due at once, or a worker would follow another for ever.
#[test]
fn label_is_not_due_right_after_it_was_written() {
    for (mark_ms, wanted_ms, allowed_ms) in [
        (NOW_MS, i64::MIN, i64::MAX),
        (NOW_MS, NOW_MS + 100_000, i64::MAX),
        (NOW_MS, NOW_MS + 100_000, NOW_MS + 5),
        (NOW_MS, i64::MIN, NOW_MS),
        (NOW_MS, NOW_MS + 100_000, i64::MIN),
    ] {
        for (drift_ms, window_ms) in [(DRIFT_MS, WINDOW_MS), (0, 100), (60_000, 60_000)] {
            let needed_ms = mark_ms.max(wanted_ms);
            let until_ms = MarkLabel::next_ms(mark_ms, wanted_ms, allowed_ms, drift_ms, window_ms);
            assert!(until_ms >= mark_ms);
            assert!(!MarkLabel::is_due(until_ms, needed_ms, allowed_ms, drift_ms, window_ms));
        }
    }
    // Taken back, and before the first file.
    assert!(MarkLabel::is_due(NOW_MS + 100_000, NOW_MS, i64::MAX, DRIFT_MS, WINDOW_MS));
    assert!(!MarkLabel::is_due(i64::MIN, NOW_MS, i64::MIN, DRIFT_MS, WINDOW_MS));
}

/// A primary, and what its standby has replayed.
struct Primary {
    drift_ms: i64,
    window_ms: i64,
    wall_ms: i64,
    /// The next id is not before this time.
    next_ms: i64,
    mark: Target,
    label_ms: i64,
    replicated: Replicated,
    crashes: u32,
    /// Ids may be ahead by a lead that no rule bounds.
    is_taken_ahead: bool,
}

#[derive(Clone, Copy)]
struct Replicated {
    last_id_ms: i64,
    commit_ms: i64,
    label_ms: i64,
}

#[derive(Clone, Debug)]
enum Event {
    Pass(i64),
    /// One id: at the clock, or at the limit.
    Draw {
        at_full_rate: bool,
    },
    Replicate,
    Crash,
    Observe(i64),
    Step(i64),
}

impl Primary {
    fn new(drift_ms: i64, window_ms: i64) -> Self {
        let replicated = Replicated { last_id_ms: i64::MIN, commit_ms: NOW_MS, label_ms: i64::MIN };
        let mark = Target { mark_ms: i64::MIN, due_ms: i64::MIN };
        Self {
            drift_ms,
            window_ms,
            wall_ms: NOW_MS,
            next_ms: NOW_MS,
            mark,
            label_ms: i64::MIN,
            replicated,
            crashes: 0,
            is_taken_ahead: false,
        }
    }

    /// Ids that are ahead continue from where they are.
    fn limit_ms(&self) -> i64 {
        (self.wall_ms + self.drift_ms).max(self.next_ms)
    }

    fn publish(&mut self, target: Target) {
        // The label first.
        if self.label_ms < target.mark_ms {
            self.label_ms = MarkLabel::reach_ms(target.mark_ms, self.drift_ms, self.window_ms);
        }
        self.mark = target;
        if MarkLabel::is_due(self.label_ms, target.mark_ms, i64::MAX, self.drift_ms, self.window_ms) {
            self.label_ms = MarkLabel::reach_ms(target.mark_ms, self.drift_ms, self.window_ms);
        }
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Pass(ms) => self.wall_ms += ms,
            Event::Step(ms) => {
                self.wall_ms += ms;
                self.is_taken_ahead |= ms < 0;
            }
            Event::Draw { at_full_rate } => {
                let limit_ms = self.limit_ms();
                let id_ms = if at_full_rate { limit_ms } else { self.wall_ms.max(self.next_ms) };
                if id_ms >= self.mark.due_ms {
                    self.publish(Target::past(limit_ms, self.window_ms));
                }
                assert!(id_ms < self.mark.mark_ms && self.mark.mark_ms <= self.label_ms);
                self.next_ms = id_ms;
            }
            Event::Replicate => {
                self.replicated =
                    Replicated { last_id_ms: self.next_ms, commit_ms: self.wall_ms, label_ms: self.label_ms };
            }
            Event::Crash => {
                self.next_ms = self.next_ms.max(self.mark.mark_ms);
                self.mark = Target { mark_ms: i64::MIN, due_ms: i64::MIN };
                self.crashes += 1;
            }
            Event::Observe(ms) => {
                self.next_ms = self.next_ms.max(self.wall_ms + ms);
                let target = Target::past(self.next_ms + self.drift_ms, self.window_ms);
                if target.mark_ms > self.mark.mark_ms {
                    self.publish(target);
                }
                self.is_taken_ahead = true;
            }
        }
    }

    /// The floor of the standby if it is promoted now, with a clock that is an hour behind.
    fn floor_ms(&self, label_ms: Option<i64>) -> i64 {
        let promoted = Evidence {
            wall_ms: self.wall_ms - 3_600_000,
            life: REPLAYED,
            is_promoted: false,
            label_ms,
            checkpoint_ms: NOW_MS - 3_600_000,
            replayed_ms: Some(self.replicated.commit_ms),
            prepared_ms: None,
            drift_ms: self.drift_ms,
            window_ms: self.window_ms,
        };
        promoted.floor_ms(None)
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0i64..2000).prop_map(Event::Pass),
        1 => (0i64..200_000).prop_map(Event::Pass),
        10 => any::<bool>().prop_map(|at_full_rate| Event::Draw { at_full_rate }),
        5 => Just(Event::Replicate),
        1 => Just(Event::Crash),
        1 => (-100_000i64..1_000_000).prop_map(Event::Observe),
        1 => (-1_000_000i64..1_000_000).prop_map(Event::Step),
    ]
}

proptest! {
    /// S4: with a label, whatever happened. Without one, as from a primary of an older release, after at most one
    /// crash.
    #[test]
    fn every_replicated_id_is_below_the_floor(
        events in prop::collection::vec(any_event(), 1..100),
        drift_ms in 0i64..5000,
        window_ms in 100i64..600_000,
    ) {
        let mut primary = Primary::new(drift_ms, window_ms);
        for event in &events {
            primary.happen(event);
            let Replicated { last_id_ms, label_ms, .. } = primary.replicated;
            prop_assert!(label_ms == i64::MIN || last_id_ms < label_ms, "after {:?}", event);
            prop_assert!(label_ms == i64::MIN || last_id_ms < primary.floor_ms(Some(label_ms)), "after {:?}", event);
            if primary.crashes < 2 && !primary.is_taken_ahead {
                prop_assert!(last_id_ms < primary.floor_ms(None), "without a label, after {:?}", event);
            }
        }
    }

    /// Ids issued after the last replicated label are below the floor too, if only one later label was lost: the server
    /// that issued them may be promoted again.
    #[test]
    fn ids_under_one_lost_label_are_below_the_floor(
        drift_ms in 0i64..5000, window_ms in 1000i64..600_000, at_full_rate in any::<bool>(), steps in 1i64..50,
    ) {
        let mut primary = Primary::new(drift_ms, window_ms);
        primary.happen(&Event::Draw { at_full_rate });
        primary.happen(&Event::Replicate);
        let first_ms = primary.label_ms;
        let mut labels = 1;
        while labels < 3 {
            primary.happen(&Event::Pass((window_ms / 4 / steps).max(1)));
            let before_ms = primary.label_ms;
            primary.happen(&Event::Draw { at_full_rate });
            labels += i32::from(primary.label_ms != before_ms);
            if labels < 3 {
                // Ids reach it before the third label is written.
                prop_assert!(primary.label_ms <= primary.floor_ms(Some(first_ms)));
            }
        }
    }
}
