//! Controls the faults of `shim.c` and reads the calls that it logs.

use std::path::PathBuf;

use idgen_core::clock::record::Record;
use idgen_testkit::{Cluster, Stop, compile_shim};

use super::start;

/// The mark is due half a window ahead, which is longer than the pauses of a busy machine.
pub const WINDOW_MS: i64 = 400;

pub fn with_shim(window_ms: i64) -> (Cluster, Shim) {
    let builder = Cluster::builder().conf("idgen.max_drift", "0");
    let cluster = start(builder.conf("idgen.clock_window", &format!("{window_ms}ms")));
    let shim = Shim::install(&cluster);
    (cluster, shim)
}

/// The shim of one server.
pub struct Shim {
    control: PathBuf,
    log: PathBuf,
}

/// One system call of the server for the high-water file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Open {
        outcome: String,
    },
    Write {
        offset: u64,
        outcome: String,
        record: Option<Record>,
    },
    /// A held call has the outcome `held` at its beginning and another one at its end.
    Sync {
        outcome: String,
    },
    /// A sync of the data directory, also by PostgreSQL itself.
    SyncDirectory {
        outcome: String,
    },
}

impl Shim {
    /// Restarts the server under the shim.
    pub fn install(cluster: &Cluster) -> Shim {
        let dir = cluster.data_dir().parent().expect("the data directory is in the cluster's").to_owned();
        let library = dir.join("shim.so");
        compile_shim("clock/file/shim.c", &library);
        let shim = Shim { control: dir.join("shim.control"), log: dir.join("shim.log") };
        shim.order("none");
        cluster.stop(Stop::Fast);
        cluster.set_env("LD_PRELOAD", &library);
        cluster.set_env("IDGEN_SHIM_CONTROL", &shim.control);
        cluster.set_env("IDGEN_SHIM_LOG", &shim.log);
        cluster.start_again();
        shim
    }

    /// Sets the fault from the next call on: see `shim.c`.
    pub fn order(&self, order: &str) {
        // Renamed into place, so that it is never read half-written.
        let next = self.control.with_extension("next");
        std::fs::write(&next, order).expect("the cluster's directory is writable");
        std::fs::rename(&next, &self.control).expect("the cluster's directory is writable");
    }

    /// All calls since the installation. The server's processes make one call at a time.
    pub fn calls(&self) -> Vec<Call> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().map(parse).collect()
    }

    pub fn is_held(&self) -> bool {
        matches!(self.calls().last(), Some(Call::Sync { outcome }) if outcome == "held")
    }

    pub fn failures(&self) -> usize {
        self.calls().iter().filter(|call| call.failed()).count()
    }

    /// The mark of the last record that was written and synced, which survives a crash of the machine.
    pub fn durable_mark_ms(&self) -> i64 {
        let mut written = None;
        let mut durable = None;
        for call in self.calls() {
            match call {
                Call::Write { outcome, record, .. } => written = record.filter(|_| outcome == "ok"),
                Call::Sync { outcome } if outcome == "ok" => durable = written.take().or(durable),
                Call::Sync { .. } | Call::SyncDirectory { .. } | Call::Open { .. } => {}
            }
        }
        durable.expect("a record was written and synced").mark_ms
    }

    /// After every failed sync from the call `since` on, the record is written again before the next sync.
    pub fn assert_rewritten_after_failed_sync(&self, since: usize) {
        let calls = self.calls().split_off(since);
        let mut place = None;
        let mut owed = None;
        let mut failed = 0;
        for (i, call) in calls.iter().enumerate() {
            match call {
                Call::Write { offset, .. } => {
                    place = Some(*offset);
                    owed = owed.filter(|owed| owed != offset);
                }
                Call::Sync { outcome } if outcome == "held" => {}
                Call::Sync { .. } => {
                    assert_eq!(owed, None, "call {i} syncs before the record is written again");
                    if call.failed() {
                        failed += 1;
                        owed = place;
                    }
                }
                Call::SyncDirectory { .. } | Call::Open { .. } => {}
            }
        }
        assert!(failed > 1, "{failed} failed syncs are too few");
    }
}

impl Call {
    fn failed(&self) -> bool {
        let (Call::Open { outcome }
        | Call::Write { outcome, .. }
        | Call::Sync { outcome }
        | Call::SyncDirectory { outcome }) = self;
        outcome.starts_with('E')
    }
}

fn parse(line: &str) -> Call {
    let words: Vec<&str> = line.split(' ').collect();
    let outcome = words[2].to_owned();
    match words[0] {
        "open" => Call::Open { outcome },
        "fsync" => Call::Sync { outcome },
        "syncdir" => Call::SyncDirectory { outcome },
        "write" | "tear" => {
            let record = words.get(3).and_then(|hex| Record::decode(&from_hex(hex)));
            Call::Write { offset: words[1].parse().expect("an offset"), outcome, record }
        }
        other => panic!("unexpected log line \"{other}\""),
    }
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().map(|digit| digit.to_digit(16).expect("a hex digit")).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}
