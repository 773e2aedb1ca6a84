//! The server that is measured, and the cost of a statement on it.

use super::machine::Machine;
use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Sized for this load, without background activity that would disturb a measurement.
const SETTINGS: [(&str, &str); 9] = [
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "1h"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("autovacuum", "off"),
    ("jit", "off"),
    // Keeps a loop over generate_series in memory.
    ("work_mem", "256MB"),
    ("max_parallel_workers_per_gather", "2"),
];

/// For parts that need a second server with the same settings.
pub fn builder() -> Builder {
    SETTINGS.iter().fold(Cluster::builder(), |builder, (name, value)| builder.conf(name, value))
}

pub struct Server {
    pub cluster: Cluster,
    /// The library of `noop()`.
    noop: PathBuf,
}

impl Server {
    /// Starts a server with the installed idgen and with `noop()` from the library at `noop`.
    pub fn start(noop: PathBuf) -> Self {
        Self::start_with(builder(), noop)
    }

    /// Starts another server, with a setting of its own.
    pub fn start_another(&self, name: &str, value: &str) -> Self {
        Self::start_with(builder().conf(name, value), self.noop.clone())
    }

    fn start_with(builder: Builder, noop: PathBuf) -> Self {
        let server = Self { cluster: builder.start_with_extension(), noop };
        server.cluster.execute(&format!(
            "CREATE FUNCTION noop() RETURNS bigint VOLATILE PARALLEL SAFE LANGUAGE c AS '{}', 'noop_wrapper'",
            server.copied(&server.noop).display()
        ));
        server
    }

    /// A copy of a library: the server may run as a user that cannot read the build directory.
    pub fn copied(&self, library: &Path) -> PathBuf {
        let copy = self.cluster.data_dir().join(library.file_name().expect("a file"));
        std::fs::copy(library, &copy).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
        copy
    }

    pub fn client(&self) -> Client {
        self.cluster.client()
    }

    /// The directory in which its programs run.
    pub fn dir(&self) -> PathBuf {
        let data = self.cluster.data_dir();
        data.parent().expect("the data directory has a parent").to_owned()
    }

    pub fn machine(&self) -> Machine {
        let mut client = self.client();
        let postgresql = value(&mut client, "SHOW server_version");
        let idgen = value(&mut client, "SELECT extversion FROM pg_extension WHERE extname = 'idgen'");
        let settings: Vec<String> = SETTINGS.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        Machine::current(&self.cluster.data_dir(), postgresql, settings.join(", "), idgen)
    }

    /// Whether this version of PostgreSQL has the function.
    pub fn has_function(&self, name: &str) -> bool {
        value(&mut self.client(), &format!("SELECT count(*) > 0 FROM pg_proc WHERE proname = '{name}'"))
    }

    /// Changes a setting and reloads.
    pub fn set(&self, name: &str, value: &str) {
        self.cluster.set_conf(name, value);
        self.cluster.reload();
    }
}

/// The result of `work`, and how many bytes of WAL the server wrote during it.
pub fn wal_bytes<T>(client: &mut Client, work: impl FnOnce(&mut Client) -> T) -> (T, f64) {
    const POSITION: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let before: i64 = value(client, POSITION);
    let result = work(client);
    (result, (value::<i64>(client, POSITION) - before) as f64)
}

/// The duration of a statement, as its client sees it.
pub fn seconds(client: &mut Client, sql: &str) -> f64 {
    let start = Instant::now();
    execute(client, sql);
    start.elapsed().as_secs_f64()
}

/// The CPU time that a process has used, in nanoseconds.
pub fn cpu_ns(pid: i32) -> f64 {
    let path = format!("/proc/{pid}/schedstat");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.unwrap_or_else(|| panic!("{path} does not begin with a number"))
}
