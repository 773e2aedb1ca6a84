//! One knob between a quick test and a soak.

/// How many rounds a test runs: `small` by default, and `big` times n when the environment variable
/// `IDGEN_SOAK_ROUNDS` is n.
pub fn rounds(small: usize, big: usize) -> usize {
    rounds_from(std::env::var("IDGEN_SOAK_ROUNDS").ok().as_deref(), small, big)
}

/// Apart from the environment, which tests that run side by side cannot change.
fn rounds_from(soak: Option<&str>, small: usize, big: usize) -> usize {
    let Some(text) = soak else { return small };
    // A soak that quietly ran the small number would be reported as a soak.
    let times: usize = text.parse().unwrap_or_else(|_| panic!("IDGEN_SOAK_ROUNDS is not a number: \"{text}\""));
    big * times
}

#[cfg(test)]
mod tests {
    use super::rounds_from;

    #[test]
    fn small_without_a_soak_and_big_times_n_in_one() {
        assert_eq!(rounds_from(None, 3, 100), 3);
        assert_eq!(rounds_from(Some("1"), 3, 100), 100);
        assert_eq!(rounds_from(Some("20"), 3, 100), 2000);
    }

    #[test]
    #[should_panic(expected = "not a number: \"many\"")]
    fn a_soak_of_unknown_length_is_refused() {
        rounds_from(Some("many"), 3, 100);
    }
}
