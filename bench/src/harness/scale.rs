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
    /// The numbers of clients that acquire leases, each its own.
    pub lease_clients: &'static [u32],
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
    /// The sizes that costs are measured against: slots of pools, names of leases, tags, names of locks, and units of
    /// work in a transaction.
    pub pools: &'static [u32],
    pub names: &'static [u32],
    pub tags: &'static [u32],
    pub lock_names: &'static [u32],
    pub units: &'static [u32],
    /// Sessions that hold a lock each while others are measured.
    pub idle_sessions: u32,
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
            lease_clients: &[1, 8, 64],
            pauses: 6,
            warm_up: Duration::from_secs(4),
            long: Duration::from_secs(10),
            ranges: Duration::from_secs(5),
            fleet: Duration::from_secs(30),
            histograms: 9,
            pools: &[64, 1024, 16_384, 65_536],
            names: &[100, 10_000, 100_000],
            tags: &[10, 100, 1000, 10_000, 100_000],
            lock_names: &[100, 10_000, 1_000_000],
            units: &[10, 100, 1000],
            idle_sessions: 500,
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
            lease_clients: &[8],
            pauses: 1,
            warm_up: Duration::from_secs(1),
            long: Duration::from_secs(4),
            ranges: Duration::from_secs(2),
            fleet: Duration::from_secs(2),
            histograms: 1,
            pools: &[64, 1024],
            names: &[100, 1000],
            tags: &[10, 100],
            lock_names: &[1_000_000],
            units: &[10, 100],
            idle_sessions: 50,
        }
    }
}
