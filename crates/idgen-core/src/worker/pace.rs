//! How often a server renews its worker id, and how long it waits for the coordinator's answer.

use crate::coordinator::link::retry_pause;
use std::time::Duration;

/// For a lease that lasts `ttl` from each renewal.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub ttl: Duration,
}

/// Renewals in a ttl. Two tries fit into the time left when a renewal is due, whatever the ttl.
const RENEWALS: u32 = 3;

/// After this many failures in a row, the outage counts as long.
const SOON: u32 = 6;

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Pace {
    /// From one renewal to the next: a third of the ttl, 10 % more or less, so that servers that renew together drift
    /// apart. `jitter` is random in [0, 1), here and below.
    pub fn renew_after(self, jitter: f64) -> Duration {
        (self.ttl / RENEWALS).mul_f64(0.9 + 0.2 * jitter)
    }

    /// From a grant, or the end of an outage, to the next renewal: random within a third of the ttl. So the renewals of
    /// servers that began together are spread evenly from then on.
    pub fn first_renewal_after(self, jitter: f64) -> Duration {
        (self.ttl / RENEWALS).mul_f64(jitter)
    }

    /// From the end of a failed try to the next one. Short at first, because the lease may still be saved. Then longer,
    /// but within a ttl of the coordinator's return.
    pub fn retry_after(self, failures_before: u32, jitter: f64) -> Duration {
        let at_most = if failures_before < SOON { self.ttl / (2 * RENEWALS) } else { self.ttl };
        retry_pause(failures_before, at_most.min(LONGEST_PAUSE), jitter)
    }

    /// How long one call may take, after this many failures in a row. `connected_in` is the time that the last connection
    /// took, which needs several answers: a slow link is not a silent one. In a long outage there is no lease to save, and
    /// the link may be too slow for the first connection.
    pub fn patience(self, failures_before: u32, connected_in: Duration) -> Duration {
        let shortest = (self.ttl / (2 * RENEWALS)).clamp(Duration::from_millis(500), Duration::from_secs(10));
        let doublings = failures_before.saturating_sub(SOON - 1).div_ceil(2).min(10);
        (shortest.max(connected_in * 2) * 2u32.pow(doublings)).min(self.ttl.max(shortest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pace(ttl_ms: u64) -> Pace {
        Pace { ttl: Duration::from_millis(ttl_ms) }
    }

    #[test]
    fn lease_has_time_to_try_a_silent_host_and_the_next_one() {
        let pace = pace(30_000);
        // Half of the patience is for the connection of the attempt before.
        assert!(pace.renew_after(1.0) + pace.patience(1, Duration::ZERO) * 5 / 2 + pace.retry_after(1, 1.0) < pace.ttl);
    }

    #[test]
    fn patience_grows_with_a_slow_link_and_in_a_long_outage_up_to_the_ttl() {
        let patience =
            |failures, connected_ms| pace(30_000).patience(failures, Duration::from_millis(connected_ms)).as_millis();
        assert_eq!(
            [0, 5, 6, 7, 8, 10, u32::MAX].map(|failures| patience(failures, 3)),
            [5_000, 5_000, 10_000, 10_000, 20_000, 30_000, 30_000]
        );
        assert_eq!([2_500, 6_000, 24_000].map(|connected_ms| patience(0, connected_ms)), [5_000, 12_000, 30_000]);
        assert_eq!(pace(1_000).patience(u32::MAX, Duration::ZERO), Duration::from_secs(1));
        assert_eq!(pace(100).patience(u32::MAX, Duration::ZERO), Duration::from_millis(500));
    }

    #[test]
    fn pause_between_tries_grows_up_to_a_limit() {
        let pauses = |ttl_ms, jitter| {
            [0, 1, 2, 5, 6, 9, u32::MAX].map(|failures| pace(ttl_ms).retry_after(failures, jitter).as_millis())
        };
        assert_eq!(pauses(60_000, 1.0), [50, 100, 200, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(pauses(60_000, 0.0), [25, 50, 100, 800, 1_600, 2_500, 2_500]);
        assert_eq!(pauses(3_000, 1.0), [50, 100, 200, 500, 3_000, 3_000, 3_000]);
    }

    /// There would be 118 tries a minute if the pause began with the try.
    #[test]
    fn silent_coordinator_gets_few_tries() {
        let pace = pace(3_000);
        let (mut tries, mut passed) = (0, Duration::ZERO);
        while passed < Duration::from_secs(60) {
            passed += pace.patience(tries, Duration::ZERO) + pace.retry_after(tries, 0.5);
            tries += 1;
        }
        assert!((15..=20).contains(&tries), "{tries} in a minute");
    }

    proptest! {
        #[test]
        fn lease_is_renewed_and_retried_before_it_ends(
            ttl_ms in 100u64..86_400_000, failures in 0..SOON, jitter in 0.0..1.0f64,
        ) {
            let pace = pace(ttl_ms);
            prop_assert!(pace.renew_after(jitter) * 5 < pace.ttl * 2);
            prop_assert!(pace.retry_after(failures, jitter) <= pace.ttl / 6);
        }

        #[test]
        fn first_renewals_are_spread_over_the_first_third(ttl_ms in 100u64..86_400_000, jitter in 0.0..1.0f64) {
            let (pace, third) = (pace(ttl_ms), Duration::from_millis(ttl_ms) / 3);
            prop_assert!(pace.first_renewal_after(jitter) <= third);
            let half = pace.first_renewal_after(0.5);
            prop_assert_eq!(jitter < 0.5, pace.first_renewal_after(jitter) < half);
        }

        #[test]
        fn jitter_spreads_renewals_by_a_tenth_and_retries_by_half(
            ttl_ms in 100u64..86_400_000, failures: u32, jitter in 0.0..1.0f64,
        ) {
            let pace = pace(ttl_ms);
            let third = pace.ttl / 3;
            let renewal = pace.renew_after(jitter);
            prop_assert!(third.mul_f64(0.9) <= renewal && renewal <= third.mul_f64(1.1));
            let (shortest, longest) = (pace.retry_after(failures, 0.0), pace.retry_after(failures, 1.0));
            let pause = pace.retry_after(failures, jitter);
            prop_assert!(shortest <= pause && pause <= longest);
            prop_assert!(longest <= shortest * 2 + Duration::from_nanos(1));
            prop_assert!(longest <= pace.ttl && longest <= LONGEST_PAUSE);
        }
    }
}
