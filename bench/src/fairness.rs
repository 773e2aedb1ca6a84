//! Whether everybody gets as much as everybody else.

/// Jain's index: 1 when all have as much, 1/n when one of n has it all.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// What counts as fair. A client that begins a little later has a little less.
pub const FAIR: f64 = 0.99;

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn fairness_is_1_for_equal_shares_and_falls_to_one_nth() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[2.0, 1.0]), 0.9);
    }
}
