//! A server with something to see, and the programs that watch it, as docs/monitoring.md sets them up.

use std::process::Command;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, execute, value};
use postgres::Client;
use tempfile::TempDir;

use super::daemon::Daemon;
use super::{changed, file};

/// The role that docs/monitoring.md creates.
const ROLE: &str = "CREATE ROLE prometheus LOGIN; GRANT pg_monitor TO prometheus";

/// A server, the sessions that stay open, and the files of the programs that watch it.
pub struct Server {
    dir: TempDir,
    _sessions: Vec<Client>,
    pub cluster: Cluster,
}

impl Server {
    /// A server with the role that reads metrics, and a worker id from a pool of its own.
    pub fn with_pool() -> Server {
        let builder = Cluster::builder().conf("fsync", "off").conf("idgen.worker_max_lead", "1d");
        let cluster = builder.start_with_extension();
        cluster.execute(ROLE);
        // pg_monitor has grants of its own.
        cluster.execute(
            "REVOKE ALL ON SCHEMA idgen FROM PUBLIC; REVOKE ALL ON ALL TABLES IN SCHEMA idgen FROM PUBLIC;
             REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA idgen FROM PUBLIC",
        );
        // The server is its own coordinator.
        cluster.execute("SELECT worker_pool_define('servers', first => 100, count => 5, ttl => '10 s')");
        cluster.set_conf("idgen.worker_pool", "servers");
        cluster.set_conf("idgen.coordinator", &cluster.conninfo());
        cluster.reload();
        let mut client = cluster.client();
        cluster.wait_for(PATIENCE, "a worker id", || {
            value::<String>(&mut client, "SELECT state FROM idgen.stat_worker") == "leased"
        });
        Server { dir: tempfile::tempdir().expect("a temporary directory"), _sessions: Vec::new(), cluster }
    }

    /// A server with something to see: waits, a layout that ends, a segment near its bound and one that cannot be
    /// refilled, locks and leases that are held and waited for, and a pool of which 80 % are taken.
    pub fn start() -> Server {
        let server = Server::with_pool();
        let cluster = &server.cluster;
        let mut client = cluster.client();
        for owner in ["a", "b", "c"] {
            execute(&mut client, &format!("SELECT worker_acquire('servers', '{owner}')"));
        }
        let statements = [
            "SELECT count(snowflake_next()) FROM generate_series(1, 1000)",
            // 4,000 ids a second: these take a second longer than idgen.max_drift.
            "SELECT count(snowflake_next('time:41 worker:10 sequence:2 unit:1ms epoch:2020-01-01'))
             FROM generate_series(1, 8000)",
            "SELECT segment_create('invoice', upper_bound => 1000)",
            "SELECT count(segment_next('invoice')) FROM generate_series(1, 961)",
            "SELECT segment_create('stuck', min_step => 10, step => 10, max_step => 10)",
            "SELECT count(segment_next('stuck')) FROM generate_series(1, 10)",
        ];
        statements.iter().for_each(|statement| execute(&mut client, statement));
        for _ in 0..20 {
            execute(&mut client, "SELECT count(*) FROM snowflake_next_many(5)");
        }
        let epoch =
            "to_char(now() + '100 days' - make_interval(secs => 2.0 ^ 40 / 1000), 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
        execute(
            &mut client,
            &format!("SELECT snowflake_next('time:40 worker:10 sequence:12 unit:1ms epoch:' || {epoch})"),
        );

        let mut sessions = vec![client, cluster.client(), cluster.client()];
        let locks = "SELECT lock_acquire('a'), lock_acquire('b')";
        execute(&mut sessions[1], &format!("BEGIN; SELECT FROM idgen.segment WHERE tag = 'stuck' FOR UPDATE; {locks}"));
        let draws = "SET idgen.segment_timeout = '300ms'; SELECT segment_next('stuck') FROM generate_series(1, 100)";
        for _ in 0..3 {
            assert!(sessions[0].batch_execute(draws).is_err(), "the segment has values");
        }
        call_leases(&mut sessions[2]);
        let mut waiter = cluster.client();
        // Until the server stops.
        std::thread::spawn(move || waiter.batch_execute("SELECT lock_acquire('a')"));
        let waits = "SELECT count(*) = 1 FROM idgen.locks WHERE NOT granted AND waiting_since IS NOT NULL";
        cluster.wait_for(PATIENCE, "a session to wait", || value(&mut sessions[0], waits));
        Server { _sessions: sessions, ..server }
    }

    pub fn postgres_exporter(&self) -> Daemon {
        self.postgres_exporter_of(&self.cluster, &["postgres"])
    }

    pub fn postgres_exporter_of(&self, cluster: &Cluster, databases: &[&str]) -> Daemon {
        let host = format!("host={} port={}", cluster.host(), cluster.port());
        let queries = file("postgres_exporter.yml");
        let changes = [
            ("host=/run/postgresql", host.as_str()),
            ("/etc/prometheus/idgen/postgres_exporter.yml", queries.to_str().expect("UTF-8")),
        ];
        let defaults = changed("prometheus-postgres-exporter", &changes);
        let default = |name: &str| {
            let line =
                defaults.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("='")?.strip_suffix('\''));
            line.unwrap_or_else(|| panic!("no {name} in {defaults}"))
        };
        self.daemon("prometheus-postgres-exporter", "/metrics", |command, address| {
            command.env("DATA_SOURCE_NAME", default("DATA_SOURCE_NAME")).arg(default("ARGS"));
            if let [_, _, ..] = databases {
                command.arg("--auto-discover-databases").arg(format!("--include-databases={}", databases.join(",")));
            }
            command.arg(format!("--web.listen-address={address}"));
        })
    }

    pub fn sql_exporter(&self) -> Daemon {
        let config = self.dir.path().join("sql_exporter.yml");
        let host = format!("host={}&port={}", self.cluster.host(), self.cluster.port());
        let changed =
            changed("sql_exporter.yml", &[("host=/run/postgresql", &host), ("interval: 15s", "interval: 1s")]);
        std::fs::write(&config, changed).expect("the directory is writable");
        let exporter = self.daemon("prometheus-sql-exporter", "/metrics", |command, address| {
            command.env("LOGLEVEL", "WARN").arg("-config.file").arg(&config).args(["-web.listen-address", address]);
        });
        self.cluster.wait_for(PATIENCE, "the first run of all jobs", || {
            let answer = exporter.get("/metrics");
            ["sql_idgen_worker{", "sql_idgen_lock{"].iter().all(|metric| answer.contains(metric))
        });
        exporter
    }

    /// Prometheus with these changes to the targets of `prometheus.yml`.
    pub fn prometheus(&self, targets: &[(&str, &str)]) -> Daemon {
        let config = changed("prometheus.yml", &[targets, &[("interval: 15s", "interval: 1s")]].concat());
        let dir = self.dir.path();
        std::fs::write(dir.join("prometheus.yml"), config).expect("the directory is writable");
        std::fs::copy(file("alerts.yml"), dir.join("alerts.yml")).expect("the directory is writable");
        self.daemon("prometheus", "/-/ready", |command, address| {
            command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
            command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
            command.arg(format!("--web.listen-address={address}"));
        })
    }

    /// Starts a program and waits until it answers to this path.
    fn daemon(&self, program: &str, path: &str, configure: impl Fn(&mut Command, &str)) -> Daemon {
        let daemon = Daemon::start(program, self.dir.path(), configure);
        self.cluster.wait_for(PATIENCE, program, || daemon.try_get(path).is_some());
        daemon
    }
}

/// Calls each function of leases, each another number of times.
fn call_leases(client: &mut Client) {
    execute(client, "SELECT lease_acquire('job', ttl => '1 hour')");
    let held = |call: &str, times: i32| {
        format!(
            "SELECT count(lease_{call}('job', token)) FROM idgen.leases, generate_series(1, {times}) WHERE name = 'job'"
        )
    };
    execute(client, &held("renew", 40));
    execute(client, &held("fence", 11));
    for _ in 0..7 {
        assert!(client.batch_execute("SELECT lease_renew('job', 1)").is_err(), "1 is no token");
    }
    for _ in 0..4 {
        execute(client, "SELECT lease_acquire('other')");
        execute(client, "SELECT lease_release(name, token) FROM idgen.leases WHERE name = 'other'");
    }
    for _ in 0..3 {
        execute(client, "SELECT lease_acquire('short', ttl => '100 ms')");
    }
}
