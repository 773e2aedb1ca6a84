//! Worker ids: no id time of a worker id is granted twice. Takes time n log n.

use super::Verdict;
use super::holders::Token;

pub const OVERLAP: &str = "an id time of a worker id is granted twice";
pub const EMPTY: &str = "a grant ends before it begins";

/// A worker id and the id times that a holder was told it may use: `from_us <= time < until_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    pub worker_id: i32,
    pub token: Token,
    pub from_us: i64,
    pub until_us: i64,
}

pub fn judge(rectangles: &[Rectangle]) -> Verdict {
    let mut verdict = Verdict::of(rectangles.len());
    let mut sorted = rectangles.to_vec();
    sorted.sort_unstable_by_key(|rectangle| (rectangle.worker_id, rectangle.from_us, rectangle.until_us));
    let mut furthest: Option<Rectangle> = None;
    for rectangle in sorted {
        if rectangle.until_us < rectangle.from_us {
            verdict.report(EMPTY, || format!("{rectangle:?}"));
        }
        let earlier = furthest.filter(|earlier| earlier.worker_id == rectangle.worker_id);
        if let Some(earlier) = earlier.filter(|earlier| earlier.until_us > rectangle.from_us) {
            verdict.report(OVERLAP, || format!("{earlier:?} and {rectangle:?}"));
        }
        let is_further = earlier.is_none_or(|earlier| earlier.until_us < rectangle.until_us);
        furthest = if is_further { Some(rectangle) } else { earlier };
    }
    verdict
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rectangle(worker_id: i32, from_us: i64, until_us: i64) -> Rectangle {
        Rectangle { worker_id, token: from_us, from_us, until_us }
    }

    proptest! {
        #[test]
        fn rectangles_that_follow_each_other_pass(lengths in prop::collection::vec((0..5_i32, 1..9_i64), 1..50), twice in any::<prop::sample::Index>()) {
            let mut ends = [0; 5];
            let mut all: Vec<Rectangle> = lengths.into_iter().map(|(worker_id, length)| {
                let from_us = ends[worker_id as usize];
                ends[worker_id as usize] += length;
                rectangle(worker_id, from_us, from_us + length)
            }).collect();
            prop_assert_eq!(judge(&all).violations(), 0);
            let again = all[twice.index(all.len())];
            all.push(again);
            prop_assert!(judge(&all).count(OVERLAP) >= 1);
        }
    }

    #[test]
    fn overlap_with_a_distant_rectangle_is_found() {
        assert_eq!(judge(&[rectangle(1, 0, 9), rectangle(1, 2, 3), rectangle(1, 4, 5)]).count(OVERLAP), 2);
        assert_eq!(judge(&[rectangle(1, 5, 4)]).count(EMPTY), 1);
    }
}
