use super::*;
use crate::layout::tests::any_layout;
use crate::layout::{Layout, Node, NodeError};
use proptest::prelude::*;

/// 2026-01-01.
const NOW_MS: i64 = 1_767_225_600_000;

fn bounds(now_ms: i64, drift_ms: i64) -> Bounds {
    Bounds { now_ms, limit_ms: now_ms.saturating_add(drift_ms), ceiling_ms: i64::MAX }
}

fn node(datacenter: u32, worker: u32) -> Node {
    Node { datacenter: Some(datacenter), worker }
}

fn space_of(text: &str, node: Node) -> Result<IdSpace, NodeError> {
    Layout::parse(text).unwrap().id_space(node)
}

/// `snowflake` and `twitter` divide the same bits differently.
#[test]
fn layouts_with_the_same_bits_have_one_space() {
    assert_eq!(space_of("snowflake", node(0, 7)), space_of("twitter", node(0, 7)));
    assert_eq!(space_of("snowflake", node(0, 33)), space_of("twitter", node(1, 1)));
    assert_ne!(space_of("snowflake", node(0, 7)), space_of("snowflake", node(0, 8)));
    assert_ne!(space_of("snowflake", node(0, 7)), space_of("pgedge", node(0, 7)));
}

#[test]
fn node_must_fit_the_fields_that_the_layout_has() {
    assert!(space_of("js53", node(0, 7)).is_ok());
    assert_eq!(space_of("js53", node(0, 8)), Err(NodeError { field: "worker", value: 8, max: 7 }));
    assert_eq!(space_of("twitter", node(32, 0)), Err(NodeError { field: "datacenter", value: 32, max: 31 }));
    assert_eq!(space_of("js53", node(1, 7)), space_of("js53", node(0, 7)));
    assert_eq!(space_of("seconds", node(0, 1)), space_of("seconds", node(0, 0)));
}

/// A generator without the atomics, as one thread sees it.
struct Line {
    space: IdSpace,
    free: u64,
}

impl Line {
    fn new(text: &str) -> Self {
        let space = space_of(text, Node::default()).unwrap();
        Self { space, free: space.first_slot_from(NOW_MS - 1000) }
    }

    fn next(&mut self, want: u64, bounds: &Bounds) -> Issue {
        let answer = self.space.next(self.free, want, bounds);
        if let Issue::Issued(run) = answer {
            assert!(run.first >= self.free, "slots never repeat");
            assert!((1..=want).contains(&run.count));
            self.free = run.first + run.count;
        }
        answer
    }

    fn run(&mut self, want: u64, bounds: &Bounds) -> SlotRun {
        match self.next(want, bounds) {
            Issue::Issued(run) => run,
            other => panic!("{other:?}"),
        }
    }
}

const SMALL: &str = "time:41 sequence:2 epoch:2020-01-01";

#[test]
fn full_tick_borrows_up_to_the_drift_and_then_waits() {
    let mut line = Line::new(SMALL);
    line.free = line.space.first_slot_from(NOW_MS);
    for ahead_ms in 0..=2 {
        let run = line.run(4, &bounds(NOW_MS, 2));
        assert_eq!(line.space.time_ms(run.first), NOW_MS + ahead_ms);
        assert_eq!((run.count, run.borrowed), (4, if ahead_ms == 0 { 0 } else { 4 }));
    }
    assert_eq!(line.next(1, &bounds(NOW_MS, 2)), Issue::Wait { time_ms: NOW_MS + 3 });
    // Asked again when the limit is at that time, it issues.
    let run = line.run(1, &bounds(NOW_MS + 1, 2));
    assert_eq!(line.space.time_ms(run.first), NOW_MS + 3);
}

#[test]
fn full_tick_without_drift_issues_its_own_slots_only() {
    let mut line = Line::new(SMALL);
    line.free = line.space.first_slot_from(NOW_MS);
    assert_eq!(line.run(3, &bounds(NOW_MS, 0)).count, 3);
    assert_eq!(line.run(3, &bounds(NOW_MS, 0)).count, 1);
    assert_eq!(line.next(3, &bounds(NOW_MS, 0)), Issue::Wait { time_ms: NOW_MS + 1 });
}

#[test]
fn batch_is_one_run_if_it_fits_and_counts_what_it_borrows() {
    let mut line = Line::new(SMALL);
    line.free = line.space.first_slot_from(NOW_MS);
    let run = line.run(1000, &bounds(NOW_MS, 1000));
    assert_eq!((run.count, run.borrowed), (1000, 996));
    assert_eq!(line.run(u64::from(u32::MAX), &bounds(NOW_MS, 1000)).count, 4 * 1001 - 1000);
}

#[test]
fn issue_stays_below_the_ceiling() {
    let mut line = Line::new(SMALL);
    line.free = line.space.first_slot_from(NOW_MS);
    let below = |ceiling_ms| Bounds { ceiling_ms, ..bounds(NOW_MS, 1000) };
    // As many as fit below the ceiling.
    assert_eq!(line.run(100, &below(NOW_MS + 3)).count, 12);
    assert_eq!(line.next(100, &below(NOW_MS + 3)), Issue::Reserve { first_ms: NOW_MS + 3, last_ms: NOW_MS + 3 + 24 });
    assert_eq!(line.run(1, &below(NOW_MS + 4)).count, 1);
    // A ceiling behind the clock: nothing is issued.
    let mut behind = Line::new(SMALL);
    assert_eq!(behind.next(1, &below(NOW_MS)), Issue::Reserve { first_ms: NOW_MS, last_ms: NOW_MS });
}

#[test]
fn ceiling_inside_a_tick_excludes_later_ticks_only() {
    let mut line = Line::new("time:39 sequence:8 unit:10ms epoch:2020-01-01");
    line.free = line.space.first_slot_from(NOW_MS);
    let run = line.run(1000, &Bounds { ceiling_ms: NOW_MS + 15, ..bounds(NOW_MS, 1000) });
    assert_eq!(run.count, 512);
    assert_eq!(line.space.time_ms(run.first + run.count - 1), NOW_MS + 10);
}

#[test]
fn ids_keep_rising_within_the_drift_after_a_backward_step() {
    let mut line = Line::new(SMALL);
    let before = line.run(1, &bounds(NOW_MS, 10));
    let after = line.run(1, &bounds(NOW_MS - 5, 10));
    assert!(after.first > before.first);
    assert_eq!(line.space.time_ms(after.first), NOW_MS);
    assert_eq!(after.borrowed, 1);
}

/// However far the clock is set back, or the drift lowered: the tick that ids are in is used up, the next one beyond the
/// limit is that of drawing at the full rate, and those after it are opened one by one.
#[test]
fn space_ahead_of_the_limit_uses_up_its_tick_and_then_opens_one_at_a_time() {
    for back_ms in [11, 12, 1000, NOW_MS] {
        let mut line = Line::new(SMALL);
        let limited = |limit_ms| Bounds { limit_ms, ..bounds(NOW_MS - back_ms, 0) };
        let first = line.run(1, &bounds(NOW_MS, 10)).first;
        let rest = line.run(100, &limited(NOW_MS - back_ms));
        assert_eq!((rest.first, line.space.time_ms(rest.first + rest.count - 1)), (first + 1, NOW_MS));
        let answer = line.next(1, &limited(NOW_MS - back_ms));
        assert_eq!(answer, Issue::Ahead { time_ms: NOW_MS + 1 }, "back by {back_ms} ms");
        assert_eq!(line.next(1, &limited(NOW_MS)), Issue::Wait { time_ms: NOW_MS + 1 });
        let opened = line.run(100, &limited(NOW_MS + 1));
        assert_eq!((opened.count, line.space.time_ms(opened.first)), (4, NOW_MS + 1));
    }
}

#[test]
fn last_tick_is_used_up_and_then_the_space_is_exhausted() {
    let text = "time:20 sequence:2 epoch:2025-12-31T23:50:00Z";
    let (mut line, end_ms) = (Line::new(text), Layout::parse(text).unwrap().ends_at_ms());
    let run = line.run(1, &bounds(end_ms - 1, 1000));
    assert_eq!(line.space.time_ms(run.first), end_ms - 1);
    // The rest of the last tick, and nothing borrowed past it.
    let rest = line.run(100, &bounds(end_ms - 1, 1000));
    assert_eq!(line.space.time_ms(rest.first + rest.count - 1), end_ms - 1);
    assert_eq!(line.space.id(rest.first + rest.count - 1), (1 << 22) - 1);
    assert_eq!(line.next(1, &bounds(end_ms - 1, 1000)), Issue::Exhausted);
    assert_eq!(line.next(1, &bounds(end_ms, 1000)), Issue::Exhausted);
    assert_eq!(line.next(1, &bounds(i64::MAX, 1000)), Issue::Exhausted);
}

#[test]
fn clock_before_the_epoch_issues_nothing_unless_ids_are_past_it() {
    let mut line = Line::new(SMALL);
    line.free = 0;
    assert_eq!(line.next(1, &bounds(line.space.ticks.epoch_ms - 1, 0)), Issue::BeforeEpoch);
    assert_eq!(line.next(1, &bounds(i64::MIN, 1000)), Issue::BeforeEpoch);
    // Ids go on where they are, beyond the epoch.
    line = Line::new(SMALL);
    assert!(matches!(line.next(1, &bounds(0, 0)), Issue::Ahead { .. }));
    line.run(1, &Bounds { limit_ms: NOW_MS, ..bounds(0, 0) });
    assert_eq!(line.run(9, &bounds(0, 0)).borrowed, 3, "the rest of the tick");
    line.free = 0;
    assert!(matches!(line.next(1, &bounds(line.space.ticks.epoch_ms, 0)), Issue::Issued(_)));
}

#[test]
fn busy_space_issues_every_slot_of_every_tick() {
    for drift_ms in [0, 1000] {
        let mut line = Line::new("snowflake");
        line.free = line.space.first_slot_from(NOW_MS);
        let mut issued = 0;
        for ms in 0..2000 {
            while let Issue::Issued(run) = line.next(7, &bounds(NOW_MS + ms, drift_ms)) {
                issued += run.count;
            }
        }
        assert_eq!(issued, 4096 * (2000 + drift_ms as u64), "drift {drift_ms}");
    }
}

/// Ids drawn slowly spread evenly over `id % n`: no residue deviates by 5 %, for any n from 2 to 16.
#[test]
fn slow_ids_spread_evenly_over_every_small_modulus() {
    for (text, unit_ms) in [("snowflake", 1), ("js53", 1), ("instagram", 1), ("seconds", 1000i64)] {
        for every in [1i64, 2, 7] {
            let mut line = Line::new(text);
            let draw = |n| {
                let run = line.run(1, &bounds(NOW_MS + n * every * unit_ms, 1000));
                line.space.id(run.first)
            };
            let ids: Vec<i64> = (0i64..400_000).map(draw).collect();
            for n in 2..=16 {
                let mut counts = vec![0u32; n];
                ids.iter().for_each(|id| counts[*id as usize % n] += 1);
                let even = ids.len() as f64 / n as f64;
                let worst = counts.iter().map(|count| (f64::from(*count) / even - 1.0).abs()).fold(0.0, f64::max);
                assert!(worst < 0.05, "{text}, one in {every}: a residue of {n} deviates by {:.1} %", worst * 100.0);
            }
        }
    }
}

/// Steps of a clock between issues: mostly small, sometimes large, also backward.
fn any_walk() -> impl Strategy<Value = Vec<(i64, u64)>> {
    let step = prop_oneof![8 => 0i64..3, 2 => -2000i64..2000, 1 => -4_000_000i64..4_000_000];
    prop::collection::vec((step, prop_oneof![4 => Just(1u64), 1 => 1u64..5000]), 1..200)
}

proptest! {
    /// S1, S2: under any steps of the clock, every id is greater than the one before. S3: no tick is begun further ahead
    /// of the clock than the drift. With the limit that the answer names, the space issues.
    #[test]
    fn ids_rise_and_stay_within_the_drift(layout in any_layout(), walk in any_walk(), drift_ms in 0i64..2000) {
        let space = layout.id_space(Node::default()).unwrap();
        let mut line = Line { space, free: space.first_slot_from(NOW_MS) };
        let mut now_ms = NOW_MS;
        let mut last_id = -1;
        for (step, want) in walk {
            now_ms += step;
            let begun_ms = space.time_ms(line.free - 1);
            match line.next(want, &bounds(now_ms, drift_ms)) {
                Issue::Issued(run) => {
                    let last = run.first + run.count - 1;
                    prop_assert!(space.id(run.first) > last_id);
                    prop_assert!(space.time_ms(last) <= (now_ms + drift_ms).max(begun_ms));
                    prop_assert_eq!(layout.unpack(space.id(last)).unwrap().time_ms, space.time_ms(last));
                    last_id = space.id(last);
                }
                Issue::Wait { time_ms } => {
                    let left_ms = time_ms - now_ms - drift_ms;
                    prop_assert!((1..=i64::from(layout.unit_ms())).contains(&left_ms), "{}", left_ms);
                    let then = bounds(time_ms - drift_ms, drift_ms);
                    prop_assert!(matches!(space.next(line.free, want, &then), Issue::Issued(_)));
                }
                Issue::Ahead { time_ms } => {
                    prop_assert!(time_ms > now_ms + drift_ms);
                    let opened = Bounds { limit_ms: time_ms, ..bounds(now_ms, drift_ms) };
                    prop_assert!(matches!(space.next(line.free, 1, &opened), Issue::Issued(_)));
                }
                Issue::Exhausted => prop_assert!(now_ms + drift_ms >= layout.ends_at_ms() - i64::from(layout.unit_ms())),
                Issue::BeforeEpoch => prop_assert!(now_ms + drift_ms < layout.epoch_ms()),
                Issue::Reserve { .. } => prop_assert!(false, "there is no ceiling"),
            }
        }
    }

    #[test]
    fn ids_rise_with_their_slots_and_fit_the_layout(
        layout in any_layout(), free in 0u64..1 << 40, step in 1u64..1 << 20,
    ) {
        let space = layout.id_space(Node::default()).unwrap();
        let last = space.first_slot_from(i64::MAX) - 1;
        let slot = free % (last - step);
        prop_assert!(space.id(slot) < space.id(slot + step));
        prop_assert!((space.id(slot)..space.id(slot + 1)).contains(&space.id_before(slot + 1)));
        // Whatever worker id, and whatever tag: all ids of the ticks before.
        let first_of_tick = slot & !space.sequence.max();
        let begin_of_tick = space.time.put(slot >> space.sequence.bits) as i64;
        prop_assert_eq!(space.id_before(first_of_tick) + 1, begin_of_tick);
        prop_assert!(layout.unpack(space.id(last)).is_ok());
    }

    /// The tick that begins at the instant is included.
    #[test]
    fn first_slot_from_an_instant_is_not_before_it(layout in any_layout(), after in 0i64..10_000_000) {
        let space = layout.id_space(Node::default()).unwrap();
        let start_ms = NOW_MS + after;
        let first = space.first_slot_from(start_ms);
        prop_assert!(space.time_ms(first) >= start_ms.min(layout.ends_at_ms()));
        prop_assert!(first == 0 || space.time_ms(first - 1) < start_ms);
        // A space that goes on from there begins at the same slot.
        prop_assert_eq!(space.first_slot_from(space.unused_from_ms(first)), first);
    }
}
