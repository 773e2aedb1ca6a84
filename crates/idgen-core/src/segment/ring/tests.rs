use super::*;
use crate::tenancy::Ended;
use proptest::prelude::*;
use std::collections::VecDeque;

fn ring(stride: i64) -> (Ring, RingHandle) {
    let ring = Ring::new();
    let handle = ring.begin(stride);
    (ring, handle)
}

fn drawn(answer: Result<Draw, Ended>) -> ValueRun {
    match answer {
        Ok(Draw::Drawn { run, .. }) => run,
        other => panic!("{other:?}"),
    }
}

fn requests(answer: Result<Draw, Ended>) -> bool {
    matches!(answer, Ok(Draw::Drawn { request: true, .. }))
}

fn values(mut run: ValueRun) -> Vec<i64> {
    std::iter::from_fn(|| (run.count > 0).then(|| run.split_first())).collect()
}

#[test]
fn new_ring_is_dry() {
    let (ring, handle) = ring(1);
    assert_eq!(ring.draw(handle, 1), Ok(Draw::Dry));
    assert_eq!(ring.draw_block(handle, 1), Ok(Draw::Dry));
    assert_eq!(ring.remaining(handle), Remaining::default());
}

#[test]
fn ring_is_dry_after_all_values_of_its_range() {
    let (ring, handle) = ring(3);
    ring.install(handle, 10, 4, None);
    assert_eq!(values(drawn(ring.draw(handle, 1))), [10]);
    assert_eq!(values(drawn(ring.draw(handle, 2))), [13, 16]);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [19]);
    assert_eq!(ring.draw(handle, 1), Ok(Draw::Dry));
}

#[test]
fn ranges_that_continue_each_other_are_drawn_as_one() {
    let (ring, handle) = ring(2);
    ring.install(handle, 1, 3, None);
    ring.install(handle, 7, 3, None);
    ring.install(handle, 13, 1, None);
    assert_eq!(drawn(ring.draw_block(handle, 7)), ValueRun { first: 1, count: 7, stride: 2 });
}

#[test]
fn draws_stop_at_skipped_values() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, None);
    ring.install(handle, 100, 3, None);
    let (current, next) = (ValueRun { first: 1, count: 3, stride: 1 }, ValueRun { first: 100, count: 3, stride: 1 });
    assert_eq!(ring.remaining(handle), Remaining { current: Some(current), next: Some(next), count: 6 });
    assert_eq!(values(drawn(ring.draw(handle, 9))), [1, 2, 3]);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [100, 101, 102]);
    assert_eq!(ring.draw(handle, 1), Ok(Draw::Dry));
}

/// A ring full of ranges of two values, which begin at 100, 200 and so on.
fn full() -> (Ring, RingHandle) {
    let (ring, handle) = ring(1);
    for index in 1..=RANGES as i64 {
        assert!(ring.has_room());
        ring.install(handle, index * 100, 2, None);
    }
    (ring, handle)
}

#[test]
fn full_ring_has_room_once_its_first_range_is_used_up() {
    let (ring, handle) = full();
    assert!(!ring.has_room());
    assert_eq!(values(drawn(ring.draw(handle, 1))), [100]);
    assert!(!ring.has_room());
    assert_eq!(values(drawn(ring.draw(handle, 1))), [101]);
    assert!(ring.has_room());
    ring.install(handle, 9000, 3, None);
    assert!(!ring.has_room());
    for index in 2..=RANGES as i64 {
        assert_eq!(values(drawn(ring.draw(handle, 9))), [index * 100, index * 100 + 1]);
    }
    assert_eq!(values(drawn(ring.draw(handle, 9))), [9000, 9001, 9002]);
}

#[test]
fn draw_looks_first_at_the_range_of_the_last_one() {
    let (ring, handle) = full();
    for _ in 0..RANGES {
        let first = drawn(ring.draw(handle, 1)).first;
        let hint = ring.hint.load(Ordering::Relaxed);
        assert_eq!(ring.ranges[hint].first.load(Ordering::Relaxed), first);
        assert_eq!(drawn(ring.draw(handle, 1)).first, first + 1);
        assert_eq!(ring.hint.load(Ordering::Relaxed), hint);
    }
}

#[test]
fn block_is_complete_or_not_drawn() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, None);
    assert_eq!(ring.draw_block(handle, 4), Ok(Draw::Dry));
    assert_eq!(drawn(ring.draw(handle, 1)).first, 1);
    ring.install(handle, 4, 2, None);
    assert_eq!(drawn(ring.draw_block(handle, 4)), ValueRun { first: 2, count: 4, stride: 1 });
}

#[test]
fn block_passes_over_ranges_that_are_too_short() {
    let (ring, handle) = ring(1);
    for (first, count) in [(100, 3), (200, 2), (300, 5), (400, 9)] {
        ring.install(handle, first, count, None);
    }
    assert_eq!(drawn(ring.draw_block(handle, 4)), ValueRun { first: 300, count: 4, stride: 1 });
    assert_eq!(values(drawn(ring.draw(handle, 9))), [304]);
}

#[test]
fn block_longer_than_every_range_discards_nothing_while_there_is_room() {
    let (ring, handle) = ring(1);
    ring.install(handle, 100, 3, None);
    ring.install(handle, 200, 3, None);
    assert_eq!(ring.draw_block(handle, 5), Ok(Draw::Dry));
    ring.install(handle, 300, 5, None);
    assert_eq!(values(drawn(ring.draw(handle, 1))), [100]);
    assert_eq!(drawn(ring.draw_block(handle, 5)).first, 300);
}

#[test]
fn block_longer_than_every_range_makes_room_in_a_full_ring() {
    let (ring, handle) = full();
    assert_eq!(ring.draw_block(handle, 3), Ok(Draw::Dry));
    assert!(ring.has_room());
    assert_eq!(values(drawn(ring.draw(handle, 9))), [200, 201]);
}

#[test]
fn block_discards_a_rest_that_is_too_short() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, Some(2));
    ring.install(handle, 100, 8, Some(9));
    let answer = ring.draw_block(handle, 5);
    assert_eq!(drawn(answer), ValueRun { first: 100, count: 5, stride: 1 });
    assert_eq!(ring.draw_block(handle, 5), Ok(Draw::Dry));
    assert_eq!(drawn(ring.draw(handle, 9)), ValueRun { first: 105, count: 3, stride: 1 });
}

#[test]
fn refill_is_requested_once_at_low_water() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 10, Some(4));
    assert!(!requests(ring.draw(handle, 5)));
    assert!(requests(ring.draw(handle, 1)));
    assert!(!requests(ring.draw(handle, 1)));
    ring.install(handle, 11, 10, Some(4));
    assert!(!requests(ring.draw(handle, 8)));
    assert!(requests(ring.draw(handle, 2)));
}

#[test]
fn refill_without_low_water_is_requested_by_no_draw() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 1, None);
    assert!(!requests(ring.draw(handle, 1)));
    ring.install(handle, 2, 1, Some(0));
    assert!(requests(ring.draw(handle, 1)));
}

#[test]
fn block_that_discards_values_still_requests_a_refill() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, None);
    ring.install(handle, 100, 8, Some(8));
    assert!(requests(ring.draw_block(handle, 5)));
}

#[test]
fn ended_tenancy_draws_nothing_and_leaves_no_values() {
    let (ring, old) = ring(1);
    ring.install(old, 1, 10, None);
    ring.install(old, 50, 10, None);
    ring.end(old);
    let new = ring.begin(1);
    assert_eq!(ring.draw(old, 1), Err(Ended));
    assert_eq!(ring.draw(new, 1), Ok(Draw::Dry));
    ring.install(new, 60, 2, None);
    assert_eq!(ring.draw(old, 1), Err(Ended));
    assert_eq!(values(drawn(ring.draw(new, 9))), [60, 61]);
}

#[test]
fn largest_bigint_can_be_drawn() {
    let (ring, handle) = ring(1);
    ring.install(handle, i64::MAX - 1, 2, None);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [i64::MAX - 1, i64::MAX]);
    assert_eq!(ring.draw(handle, 1), Ok(Draw::Dry));
}

#[derive(Clone, Debug)]
enum Step {
    Draw(u64),
    Block(u64),
    Install { skip: i64, count: u64, low_water: u64 },
    Change,
}

fn step() -> impl Strategy<Value = Step> {
    // Often enough without a change for the ring to fill up.
    prop_oneof![
        6 => (1..20u64).prop_map(Step::Draw),
        3 => (1..20u64).prop_map(Step::Block),
        14 => (prop_oneof![1 => Just(0i64), 3 => 0..50i64], 1..20u64, 0..20u64)
            .prop_map(|(skip, count, low_water)| Step::Install { skip, count, low_water }),
        1 => Just(Step::Change),
    ]
}

proptest! {
    /// G1, G3: compared with a plain queue of runs.
    #[test]
    fn ring_behaves_as_a_queue(steps in prop::collection::vec(step(), 1..300), stride in 1..4i64) {
        let (ring, mut handle) = ring(stride);
        let mut queue = Queue { runs: VecDeque::new(), stride };
        let (mut next, mut last_drawn) = (1i64, 0i64);
        for step in steps {
            match step {
                Step::Draw(want) => {
                    let expected = queue.draw(want);
                    prop_assert_eq!(run(ring.draw(handle, want)), expected);
                    prop_assert!(expected.is_none_or(|run| run.first > last_drawn));
                    last_drawn = expected.map_or(last_drawn, |run| run.last());
                }
                Step::Block(want) => {
                    let expected = queue.block(want);
                    prop_assert_eq!(run(ring.draw_block(handle, want)), expected);
                    prop_assert!(expected.is_none_or(|run| run.count == want && run.first > last_drawn));
                    last_drawn = expected.map_or(last_drawn, |run| run.last());
                }
                Step::Install { skip, count, low_water } => {
                    prop_assert_eq!(ring.has_room(), queue.runs.len() < RANGES);
                    if ring.has_room() {
                        next += skip * stride;
                        ring.install(handle, next, count, Some(low_water));
                        queue.push(ValueRun { first: next, count, stride });
                        next += count as i64 * stride;
                    }
                }
                Step::Change => {
                    ring.end(handle);
                    prop_assert_eq!(ring.draw(handle, 1), Err(Ended));
                    handle = ring.begin(stride);
                    queue.runs.clear();
                }
            }
            prop_assert_eq!(left(&ring, handle), queue.runs.iter().copied().collect::<Vec<_>>());
            let count = queue.runs.iter().map(|run| run.count).sum();
            let (current, next) = (queue.runs.front().copied(), queue.runs.get(1).copied());
            prop_assert_eq!(ring.remaining(handle), Remaining { current, next, count });
        }
    }

    /// One of the draws at or below low water requests the refill, whatever ranges the values are in.
    #[test]
    fn refill_is_requested_once_by_the_values_left_over_all_ranges(
        counts in prop::collection::vec(1..9u64, 1..=RANGES), low_water in 0..80u64, want in 1..9u64,
    ) {
        let (ring, handle) = ring(1);
        for (index, count) in (0..).zip(&counts) {
            ring.install(handle, index * 100, *count, Some(low_water));
        }
        let mut left = counts.iter().sum::<u64>();
        let mut is_requested = false;
        while left > 0 {
            let Ok(Draw::Drawn { run, request }) = ring.draw(handle, want) else { panic!("{left} values are left") };
            left -= run.count;
            prop_assert_eq!(request, left <= low_water && !is_requested);
            is_requested |= request;
        }
        prop_assert!(is_requested);
    }
}

/// The values that a ring has left, without drawing them.
fn left(ring: &Ring, handle: RingHandle) -> Vec<ValueRun> {
    let mut rests: Vec<Rest> = ring.rests(ring.position(), handle.stride).collect();
    rests.sort_by_key(|rest| rest.begin);
    rests.iter().map(|rest| ValueRun { first: rest.first, count: rest.count, stride: handle.stride }).collect()
}

fn run(answer: Result<Draw, Ended>) -> Option<ValueRun> {
    match answer {
        Ok(Draw::Drawn { run, .. }) => Some(run),
        Ok(Draw::Dry) => None,
        Err(Ended) => panic!("the tenancy has ended"),
    }
}

/// What a ring has to do, as simply as it can be said.
struct Queue {
    runs: VecDeque<ValueRun>,
    stride: i64,
}

impl Queue {
    fn push(&mut self, run: ValueRun) {
        match self.runs.back_mut() {
            Some(last) if last.last() + self.stride == run.first => last.count += run.count,
            _ => self.runs.push_back(run),
        }
    }

    fn draw(&mut self, want: u64) -> Option<ValueRun> {
        let run = self.runs.front_mut()?;
        let count = want.min(run.count);
        let drawn = ValueRun { count, ..*run };
        run.first += count as i64 * self.stride;
        run.count -= count;
        self.runs.retain(|run| run.count > 0);
        Some(drawn)
    }

    fn block(&mut self, want: u64) -> Option<ValueRun> {
        let Some(index) = self.runs.iter().position(|run| run.count >= want) else {
            if self.runs.len() == RANGES {
                self.runs.pop_front();
            }
            return None;
        };
        self.runs.drain(..index);
        self.draw(want)
    }
}
