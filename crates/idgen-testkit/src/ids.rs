//! Assertions about ids: numbers, or UUIDs as the numbers that their bytes are.

use std::collections::HashSet;
use std::fmt::Display;

/// Each id is above the one before it.
pub fn assert_increasing<T: Ord + Display>(ids: &[T]) {
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] >= pair[1]) {
        panic!("{} after {} in {} ids", pair[1], pair[0], ids.len());
    }
}

/// No id occurs twice. Returns the ids in order.
pub fn assert_distinct<T: Ord + Display>(mut ids: Vec<T>) -> Vec<T> {
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        panic!("{} twice in {} ids", pair[0], ids.len());
    }
    ids
}

/// The number of new ids that were seen before.
pub fn count_repeated(seen: &[i64], new: &[i64]) -> usize {
    let seen: HashSet<i64> = seen.iter().copied().collect();
    new.iter().filter(|id| seen.contains(id)).count()
}

/// The last of the ids, which must not be empty.
pub fn last<T: Copy>(ids: &[T]) -> T {
    *ids.last().expect("ids were drawn")
}

#[cfg(test)]
mod tests {
    use super::{assert_distinct, assert_increasing, count_repeated};

    #[test]
    fn increasing_and_distinct_ids_pass() {
        assert_increasing::<i64>(&[]);
        assert_increasing(&[1, 2, 9]);
        assert_eq!(assert_distinct(vec![3, 1, 2]), [1, 2, 3]);
        assert_eq!(count_repeated(&[1, 2, 3], &[3, 4, 1]), 2);
    }

    #[test]
    #[should_panic(expected = "2 after 2 in 3 ids")]
    fn assert_increasing_rejects_equal_neighbours() {
        assert_increasing(&[1, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "1 twice in 3 ids")]
    fn assert_distinct_finds_a_repeat_of_a_distant_id() {
        assert_distinct(vec![1, 2, 1]);
    }
}
