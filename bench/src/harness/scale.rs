//! How much is measured.

use std::time::Duration;

pub struct Scale {
    /// Rounds of a comparison. Noisy measurements take a multiple.
    pub rounds: usize,
    /// Calls in one statement.
    pub calls: u64,
    /// Rows of one INSERT.
    pub rows: u64,
    /// Duration of one load. pgbench takes whole seconds.
    pub seconds: u32,
    /// The numbers of clients that draw ids.
    pub clients: &'static [u32],
    /// How many pauses are measured.
    pub pauses: usize,
    /// How long a segment adapts to a load before it is measured.
    pub warm_up: Duration,
    /// A load that spans several windows of the high-water mark.
    pub long: Duration,
    /// A load that spans several ranges of a segment.
    pub ranges: Duration,
    /// How long a fleet is observed, in whole seconds.
    pub fleet: Duration,
    /// How many latency histograms are taken of each load.
    pub histograms: usize,
}

impl Scale {
    /// For the figures of the README: about ten minutes a subject.
    pub fn full() -> Self {
        Self {
            rounds: 3,
            calls: 1_000_000,
            rows: 1_000_000,
            seconds: 1,
            clients: &[1, 2, 4, 8, 64],
            pauses: 6,
            warm_up: Duration::from_secs(4),
            long: Duration::from_secs(10),
            ranges: Duration::from_secs(5),
            fleet: Duration::from_secs(30),
            histograms: 9,
        }
    }

    /// Only checks that everything runs.
    pub fn quick() -> Self {
        Self {
            rounds: 1,
            calls: 10_000,
            rows: 10_000,
            seconds: 1,
            clients: &[2],
            pauses: 1,
            warm_up: Duration::from_secs(1),
            long: Duration::from_secs(4),
            ranges: Duration::from_secs(2),
            fleet: Duration::from_secs(2),
            histograms: 1,
        }
    }
}
