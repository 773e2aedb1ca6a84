//! Everything that is compared is measured side by side: the machine is not the same from one minute to the next.

/// Measures every contender once a round, in an order that rotates, so that none always comes after the same start.
/// Returns the measurements of each contender, in the order the contenders were given, a round after the other.
pub fn rounds<C, T>(rounds: usize, contenders: &[C], mut measure: impl FnMut(&C) -> T) -> Vec<Vec<T>> {
    let mut measured: Vec<Vec<T>> = contenders.iter().map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for place in 0..contenders.len() {
            let index = (round + place) % contenders.len();
            measured[index].push(measure(&contenders[index]));
        }
    }
    measured
}

#[cfg(test)]
mod tests {
    use super::rounds;

    #[test]
    fn the_order_rotates_and_the_results_do_not() {
        let mut order = Vec::new();
        let measured = rounds(2, &["a", "b", "c"], |contender| {
            order.push(*contender);
            (*contender, order.len())
        });
        assert_eq!(order, ["a", "b", "c", "b", "c", "a"]);
        assert_eq!(measured, [[("a", 1), ("a", 6)], [("b", 2), ("b", 4)], [("c", 3), ("c", 5)]]);
    }
}
