//! The coordinator: the database that several servers ask for what they must not share.

use std::time::Duration;

/// Identifies a coordinator's database among all servers: a token means nothing to another one, or names another lease
/// there. Copies of a database have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorId {
    pub system_identifier: u64,
    pub database: u32,
}

/// The pause after the first failure of requests that sessions may wait for.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Short enough that a session which waits for some seconds finds a coordinator that has returned.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The pause after a failed request that sessions may wait for. It doubles with each failure in a row. A random part of
/// it, at least half, so that servers do not return together; `jitter` is random in [0, 1).
pub fn retry_pause(failures_before: u32, jitter: f64) -> Duration {
    let doubled = FIRST_PAUSE * 2u32.pow(failures_before.min(10));
    doubled.min(LONGEST_PAUSE).mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_up_to_a_limit_and_is_half_random() {
        let pauses = |jitter| [0, 1, 4, 5, u32::MAX].map(|failures| retry_pause(failures, jitter).as_millis());
        assert_eq!(pauses(1.0), [100, 200, 1_600, 3_000, 3_000]);
        assert_eq!(pauses(0.0), [50, 100, 800, 1_500, 1_500]);
    }
}
