//! How a server asks the coordinator for its number: how often, how long, and which host first.

use std::time::Duration;

/// How often the holder of a number asks, for a lease that lasts `ttl` from each renewal on.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub ttl: Duration,
}

/// Two tries fit into what a lease has left when it is due to be renewed, whatever its ttl.
const RENEWALS: u32 = 3;

impl Pace {
    /// From one renewal to the next.
    pub fn renew_after(self) -> Duration {
        self.ttl / RENEWALS
    }

    /// From a try that has failed, after so many others in a row, to the next: soon, while an outage is likely to be short,
    /// then seldom enough to be no burden.
    pub fn retry_after(self, failures_before: u32) -> Duration {
        let doubled = Duration::from_millis(50) * 2u32.pow(failures_before.min(10));
        doubled.min(self.renew_after() / 2).min(Duration::from_secs(5))
    }

    /// How long one try may take before another host is asked.
    pub fn patience(self) -> Duration {
        (self.ttl / (2 * RENEWALS)).clamp(Duration::from_millis(500), Duration::from_secs(10))
    }
}

/// A comma-separated list that begins with its element number `by`, counted round and round. libpq asks hosts in order, and
/// stays with one that does not answer at all: the next try has to begin with another.
pub fn rotated(list: &str, by: usize) -> String {
    let mut elements: Vec<&str> = list.split(',').collect();
    let first = by % elements.len();
    elements.rotate_left(first);
    elements.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_and_tried_again_long_before_it_ends() {
        for ttl_ms in [100, 1_000, 30_000, 86_400_000] {
            let pace = Pace { ttl: Duration::from_millis(ttl_ms) };
            assert!(pace.renew_after() * 2 < pace.ttl);
            for failures in [0, 1, 5, u32::MAX] {
                assert!(pace.retry_after(failures) <= pace.ttl / 6, "{ttl_ms} {failures}");
            }
        }
    }

    #[test]
    fn a_silent_host_and_the_one_after_it_are_both_asked_within_a_lease() {
        let pace = Pace { ttl: Duration::from_secs(30) };
        assert!(pace.renew_after() + pace.patience() * 2 + pace.retry_after(1) < pace.ttl);
    }

    #[test]
    fn tries_become_rarer_up_to_a_limit() {
        let pace = Pace { ttl: Duration::from_secs(60) };
        let pauses = [0, 1, 2, 9, 100].map(|failures| pace.retry_after(failures).as_millis());
        assert_eq!(pauses, [50, 100, 200, 5_000, 5_000]);
    }

    #[test]
    fn each_element_of_a_list_is_first_once_in_a_round() {
        assert_eq!(rotated("a,b,c", 0), "a,b,c");
        assert_eq!(rotated("a,b,c", 4), "b,c,a");
        assert_eq!(rotated("a,,c", 1), ",c,a");
        assert_eq!(rotated("5432", 7), "5432");
        assert_eq!(rotated("", 3), "");
    }
}
