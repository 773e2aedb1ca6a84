//! What must be true of ids.

use std::collections::HashSet;

/// Each is above the one before it.
pub fn assert_increasing(ids: &[i64]) {
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] >= pair[1]) {
        panic!("{} after {} in {} ids", pair[1], pair[0], ids.len());
    }
}

/// None is there twice; returns them in order.
pub fn assert_distinct(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        panic!("{} twice in {} ids", pair[0], ids.len());
    }
    ids
}

/// How many of the new ids were seen before.
pub fn count_repeated(seen: &[i64], new: &[i64]) -> usize {
    let seen: HashSet<i64> = seen.iter().copied().collect();
    new.iter().filter(|id| seen.contains(id)).count()
}

/// The last of ids, of which there must be some.
pub fn last(ids: &[i64]) -> i64 {
    *ids.last().expect("ids were drawn")
}

#[cfg(test)]
mod tests {
    use super::{assert_distinct, assert_increasing, count_repeated};

    #[test]
    fn what_is_as_it_should_be_passes() {
        assert_increasing(&[]);
        assert_increasing(&[1, 2, 9]);
        assert_eq!(assert_distinct(vec![3, 1, 2]), [1, 2, 3]);
        assert_eq!(count_repeated(&[1, 2, 3], &[3, 4, 1]), 2);
    }

    #[test]
    #[should_panic(expected = "2 after 2 in 3 ids")]
    fn an_equal_neighbour_is_no_increase() {
        assert_increasing(&[1, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "1 twice in 3 ids")]
    fn a_repeat_is_found_wherever_it_is() {
        assert_distinct(vec![1, 2, 1]);
    }
}
