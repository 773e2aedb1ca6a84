//! The server that everything is measured on.

use crate::machine::Machine;
use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;
use std::path::{Path, PathBuf};

/// What a server of this size would have, and nothing that runs by itself in the middle of a measurement.
const SETTINGS: [(&str, &str); 9] = [
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "1h"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("autovacuum", "off"),
    ("jit", "off"),
    // A loop over generate_series stays in memory.
    ("work_mem", "256MB"),
    ("max_parallel_workers_per_gather", "2"),
];

/// What ids are compared with, whatever kind they are.
const SEQUENCES: &str = "
CREATE SEQUENCE seq_1;
CREATE SEQUENCE seq_32 CACHE 32;
CREATE SEQUENCE seq_1000 CACHE 1000";

/// A server with these settings, which a part may want another of beside the one it is given.
pub fn builder() -> Builder {
    SETTINGS.iter().fold(Cluster::builder(), |builder, (name, value)| builder.conf(name, value))
}

pub struct Server {
    pub cluster: Cluster,
}

impl Server {
    /// Starts it, with idgen as it is installed, the no-op from this library, and the sequences.
    pub fn start(noop: &Path) -> Self {
        let cluster = builder().start_with_extension();
        // The server's user need not be able to read where it was built.
        let library = cluster.data_dir().join("idgen_bench_noop.so");
        std::fs::copy(noop, &library).unwrap_or_else(|error| panic!("{}: {error}", noop.display()));
        cluster.execute(&format!(
            "CREATE FUNCTION noop() RETURNS bigint VOLATILE PARALLEL SAFE LANGUAGE c AS '{}', 'noop_wrapper'",
            library.display()
        ));
        cluster.execute(SEQUENCES);
        Self { cluster }
    }

    pub fn client(&self) -> Client {
        self.cluster.client()
    }

    /// Where its programs run.
    pub fn dir(&self) -> PathBuf {
        let data = self.cluster.data_dir();
        data.parent().expect("it is in the directory of the cluster").to_owned()
    }

    pub fn machine(&self) -> Machine {
        let mut client = self.client();
        let postgresql = value(&mut client, "SHOW server_version");
        let idgen = value(&mut client, "SELECT extversion FROM pg_extension WHERE extname = 'idgen'");
        let settings: Vec<String> = SETTINGS.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        Machine::look(&self.cluster.data_dir(), postgresql, settings.join(", "), idgen)
    }

    /// Whether the server has a function that not all versions have.
    pub fn has_function(&self, name: &str) -> bool {
        value(&mut self.client(), &format!("SELECT count(*) > 0 FROM pg_proc WHERE proname = '{name}'"))
    }

    /// A setting that a reload changes.
    pub fn set(&self, name: &str, value: &str) {
        self.cluster.set_conf(name, value);
        self.cluster.reload();
    }
}

/// How many bytes of WAL the server writes during some work.
pub fn wal_bytes(client: &mut Client, work: impl FnOnce(&mut Client)) -> f64 {
    const POSITION: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let before: i64 = value(client, POSITION);
    work(client);
    (value::<i64>(client, POSITION) - before) as f64
}

/// How many seconds a statement takes, for the client that sends it.
pub fn seconds(client: &mut Client, sql: &str) -> f64 {
    let began = std::time::Instant::now();
    execute(client, sql);
    began.elapsed().as_secs_f64()
}
