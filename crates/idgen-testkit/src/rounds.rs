//! The switch between a quick test and a soak, and the seed of random events.

use std::hash::{BuildHasher, RandomState};

/// The number of rounds of a test: `small` by default, `big` times n if the environment variable `IDGEN_SOAK_ROUNDS` is n.
pub fn rounds(small: usize, big: usize) -> usize {
    rounds_from(std::env::var("IDGEN_SOAK_ROUNDS").ok().as_deref(), small, big)
}

/// Separate from the environment, which concurrent tests cannot change.
fn rounds_from(soak: Option<&str>, small: usize, big: usize) -> usize {
    let Some(text) = soak else { return small };
    // A typing error must not turn a soak into a quick test.
    let times: usize = text.parse().unwrap_or_else(|_| panic!("IDGEN_SOAK_ROUNDS is not a number: \"{text}\""));
    big * times
}

/// The seed of a test: from the environment variable `IDGEN_SEED`, or else another one each time. Prints it.
pub fn seed() -> u64 {
    let given = std::env::var("IDGEN_SEED").ok();
    let seed = given.map_or_else(|| RandomState::new().hash_one(()), |text| text.parse().expect("a number"));
    println!("IDGEN_SEED={seed}");
    seed
}

#[cfg(test)]
mod tests {
    use super::rounds_from;

    #[test]
    fn rounds_are_small_by_default_and_big_times_n_in_a_soak() {
        assert_eq!(rounds_from(None, 3, 100), 3);
        assert_eq!(rounds_from(Some("1"), 3, 100), 100);
        assert_eq!(rounds_from(Some("20"), 3, 100), 2000);
    }

    #[test]
    #[should_panic(expected = "not a number: \"many\"")]
    fn soak_of_unknown_length_panics() {
        rounds_from(Some("many"), 3, 100);
    }
}
