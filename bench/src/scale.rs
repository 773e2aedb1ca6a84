//! How much of everything.

use std::time::Duration;

pub struct Scale {
    /// How often each contender is measured.
    pub rounds: usize,
    /// Calls in one statement.
    pub calls: u64,
    /// Rows of one INSERT.
    pub rows: u64,
    /// How long one load lasts, in whole seconds, as pgbench has it.
    pub seconds: u32,
    /// Which numbers of clients bring a load.
    pub clients: &'static [u32],
    /// How many pauses are measured.
    pub pauses: usize,
    /// How long a load lasts before it is measured, where something adapts to it.
    pub warm_up: Duration,
    /// A load over several windows of the mark.
    pub long: Duration,
    /// A load over several ranges of a segment.
    pub ranges: Duration,
    /// How long a fleet is watched, in whole seconds.
    pub fleet: Duration,
    /// How many histograms are made of each contender.
    pub histograms: usize,
}

impl Scale {
    /// What the README quotes: about ten minutes for each subject.
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

    /// Proves that everything runs.
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
