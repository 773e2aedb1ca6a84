//! `contrib/monitoring` with the real exporters, as a role that is a member of pg_monitor and nothing else: the metrics
//! say what the views say, the dashboard and the alerts use metrics that exist, and each alert fires when it should.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use idgen_testkit::sql::{PATIENCE, execute, in_new_database, value};
use idgen_testkit::{Cluster, run};
use postgres::Client;
use serde_json::Value;
use tempfile::TempDir;

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/monitoring");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/monitoring.md");
/// The role that docs/monitoring.md creates.
const ROLE: &str = "CREATE ROLE prometheus LOGIN; GRANT pg_monitor TO prometheus";
/// What a view says, for each metric as the sum of its series.
const VIEWS: &[(&str, &str)] = &[
    (
        "idgen_check_ok",
        "count(*) FILTER (WHERE (c->>'ok')::bool) FROM jsonb_array_elements(idgen.status()->'checks') c",
    ),
    ("idgen_clock_lead_seconds", "extract(epoch FROM lead) FROM idgen.stat_clock"),
    ("idgen_clock_backward_steps_total", "backward_steps FROM idgen.stat_clock"),
    ("idgen_clock_largest_step_seconds", "extract(epoch FROM largest_step) FROM idgen.stat_clock"),
    ("idgen_clock_mark_writes_total", "mark_writes FROM idgen.stat_clock"),
    ("idgen_clock_mark_write_seconds_total", "extract(epoch FROM mark_write_time) FROM idgen.stat_clock"),
    ("idgen_clock_stats_reset_seconds", "extract(epoch FROM stats_reset) FROM idgen.stat_lease"),
    ("idgen_snowflake_issued_total", "sum(issued) FROM idgen.stat_snowflake"),
    ("idgen_snowflake_batches_total", "sum(batches) FROM idgen.stat_snowflake"),
    ("idgen_snowflake_borrowed_total", "sum(borrowed) FROM idgen.stat_snowflake"),
    ("idgen_snowflake_waits_total", "sum(waits) FROM idgen.stat_snowflake"),
    ("idgen_snowflake_wait_seconds_total", "extract(epoch FROM sum(wait_time)) FROM idgen.stat_snowflake"),
    ("idgen_snowflake_ends_at_seconds", "sum(extract(epoch FROM ends_at)) FROM idgen.stat_snowflake"),
    ("idgen_segment_issued_total", "sum(issued) FROM idgen.stat_segment"),
    ("idgen_segment_refills_total", "sum(refills) FROM idgen.stat_segment"),
    ("idgen_segment_last_refill_seconds", "extract(epoch FROM sum(last_refill_time)) FROM idgen.stat_segment"),
    ("idgen_segment_waits_total", "sum(waits) FROM idgen.stat_segment"),
    ("idgen_segment_wait_seconds_total", "extract(epoch FROM sum(wait_time)) FROM idgen.stat_segment"),
    ("idgen_segment_remaining", "sum(remaining) FROM idgen.stat_segment"),
    // Of "invoice" the values up to 961 are drawn, those up to 1000 are in memory. Nearly nothing of "stuck" is used.
    ("idgen_segment_used_ratio", "962 / 1001.0"),
    ("idgen_segment_failing", "count(last_error) FROM idgen.stat_segment"),
    ("idgen_lease_grants_total", "grants FROM idgen.stat_lease"),
    ("idgen_lease_take_overs_total", "take_overs FROM idgen.stat_lease"),
    ("idgen_lease_renewals_total", "renewals FROM idgen.stat_lease"),
    ("idgen_lease_releases_total", "releases FROM idgen.stat_lease"),
    ("idgen_lease_fences_total", "fences FROM idgen.stat_lease"),
    ("idgen_lease_refused_total", "refused FROM idgen.stat_lease"),
    ("idgen_lease_probes_total", "probes FROM idgen.stat_lease"),
    ("idgen_lease_wait_seconds_total", "extract(epoch FROM wait_time) FROM idgen.stat_lease"),
    ("idgen_leases_held", "count(*) FROM idgen.leases WHERE state = 'held'"),
    ("idgen_leases_expired", "count(*) FROM idgen.leases WHERE state = 'expired'"),
    ("idgen_leases_resting", "count(*) FROM idgen.leases WHERE state = 'resting'"),
    ("idgen_pool_slots", "slots FROM idgen.lease_definition WHERE name = 'servers'"),
    ("idgen_pool_used", "count(*) FROM idgen.workers WHERE pool = 'servers' AND state = 'held'"),
    ("idgen_pool_used_ratio", "count(*) / 5.0 FROM idgen.workers WHERE pool = 'servers' AND state = 'held'"),
    ("idgen_worker_id", "worker_id FROM idgen.stat_worker"),
    ("idgen_worker_waiting", "count(*) FROM idgen.stat_worker WHERE state = 'waiting'"),
    ("idgen_worker_failing", "count(*) FROM idgen.stat_worker WHERE state = 'failing'"),
    ("idgen_worker_ended", "count(*) FROM idgen.stat_worker WHERE state = 'ended'"),
    ("idgen_worker_lease_left_seconds", "extract(epoch FROM not_after - clock_timestamp()) FROM idgen.stat_worker"),
    ("idgen_worker_renewals_total", "renewals FROM idgen.stat_worker"),
    ("idgen_worker_failures_total", "failures FROM idgen.stat_worker"),
    ("idgen_worker_changes_total", "changes FROM idgen.stat_worker"),
    ("idgen_lock_held", "count(*) FROM idgen.locks WHERE granted"),
    ("idgen_lock_waiting", "count(*) FROM idgen.locks WHERE NOT granted"),
    ("idgen_lock_longest_wait_seconds", "extract(epoch FROM clock_timestamp() - min(waiting_since)) FROM idgen.locks"),
];
/// Metrics that change from one moment to the next. They may differ by the time between two reads.
const MOVING: &[&str] =
    &["idgen_clock_lead_seconds", "idgen_worker_lease_left_seconds", "idgen_lock_longest_wait_seconds"];
/// The alerts that the server of these tests deserves.
const DESERVED: &[&str] = &[
    "IdgenCheckFailed",
    "IdgenLayoutEnds",
    "IdgenLead",
    "IdgenPoolNearlyUsed",
    "IdgenSegmentNearBound",
    "IdgenSegmentRefillFailing",
];

#[test]
fn exporters_show_what_the_views_show_and_feed_dashboard_and_alerts() {
    let server = Server::start();
    server.cluster.execute("SELECT snowflake_observe(snowflake_floor(now() + '10 min'))");
    let [postgres_exporter, sql_exporter] = [server.postgres_exporter(), server.sql_exporter()];
    let shown = || samples(&postgres_exporter.get("/metrics"));

    // The table above knows all metrics, and the views have their values.
    let names: BTreeSet<String> = shown().into_iter().map(|sample| sample.name).collect();
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), sorted(VIEWS.iter().map(|(name, _)| *name)));
    server.cluster.wait_for(PATIENCE, "a second renewal", || {
        value::<i64>(&mut server.cluster.client(), "SELECT renewals FROM idgen.stat_worker") >= 2
    });
    let mut monitor = server.cluster.client_as("postgres", "prometheus");
    for (name, view) in VIEWS {
        let mut last = (f64::NAN, f64::NAN);
        let agree = eventually(Duration::from_secs(20), || {
            let shown: f64 = shown().iter().filter(|sample| sample.name == *name).map(|sample| sample.value).sum();
            last = (shown, value(&mut monitor, &format!("SELECT (SELECT {view})::float8")));
            let tolerance = if MOVING.contains(name) { 10.0 } else { 1e-9 * last.1.abs() };
            (last.0 - last.1).abs() <= tolerance
        });
        assert!(agree, "{name} is {}, and the view has {}", last.0, last.1);
    }

    // A query that takes another counter of the view would not go unnoticed.
    for view in ["snowflake", "segment", "lease", "worker", "lock"].map(|view| format!("idgen_{view}_")) {
        let samples = samples(&postgres_exporter.get("/metrics"));
        let counters =
            samples.iter().filter(|sample| sample.name.starts_with(&view) && sample.name.ends_with("_total"));
        let mut sums = BTreeMap::new();
        counters.for_each(|sample| *sums.entry(&sample.name).or_insert(0.0) += sample.value);
        // The number of probes and of borrowed ids depends on how fast the machine is.
        sums.retain(|name, _| !name.contains("probes") && !name.contains("seconds"));
        let different: BTreeSet<String> = sums.values().map(f64::to_string).collect();
        assert_eq!(different.len(), sums.len(), "{sums:?}");
    }

    let prometheus = server.prometheus(&postgres_exporter, &sql_exporter);

    // Both exporters show the same.
    let mut difference = String::new();
    let same = eventually(PATIENCE, || {
        let [one, other] = ["postgres_exporter", "sql_exporter"].map(|job| prometheus.series_of(job));
        difference = compare(&one, &other);
        difference.is_empty() && !one.is_empty()
    });
    assert!(same, "{difference}");

    // Each query of the dashboard has a result, by the metrics of either exporter.
    let dashboard = dashboard();
    let metrics = metrics(&postgres_exporter, &sql_exporter);
    for instance in [&postgres_exporter.address, &sql_exporter.address] {
        for query in queries(&dashboard) {
            assert_known(&query, &metrics);
            let query = query.replace("$instance", instance).replace("$__rate_interval", "1m");
            let found = eventually(PATIENCE, || !prometheus.query(&query).is_empty());
            assert!(found, "no result: {query}");
        }
    }

    // Prometheus has the rules, their metrics exist, and the alerts are those that this server deserves.
    let rules = prometheus.api("rules");
    let rules = rules["groups"][0]["rules"].as_array().expect("the group has rules");
    assert_eq!(rules.len(), alerts().len());
    for rule in rules {
        assert_known(text(&rule["query"]), &metrics);
    }
    let mut active = Vec::new();
    let as_deserved = eventually(PATIENCE, || {
        let result = prometheus.query("count by (alertname) (ALERTS)");
        active = sorted(result.iter().map(|series| text(&series["metric"]["alertname"]).to_owned()));
        active == DESERVED
    });
    assert!(as_deserved, "{active:?}");
    let rules = prometheus.api("rules");
    let rules = rules["groups"][0]["rules"].as_array().expect("the group has rules");
    assert!(rules.iter().all(|rule| rule["health"] == "ok"), "{rules:#?}");
}

#[test]
fn exporters_report_a_worker_id_whose_lease_fails_and_ends() {
    let server = Server::start();
    let exporter = server.postgres_exporter();
    let shows = |name: &str, wanted: f64| {
        let shown = samples(&exporter.get("/metrics"));
        shown.iter().any(|sample| sample.name == name && sample.value == wanted)
    };
    assert!(shows("idgen_worker_failing", 0.0) && shows("idgen_worker_ended", 0.0));
    server.cluster.set_conf("idgen.coordinator", "host=/nowhere");
    server.cluster.reload();
    server.cluster.wait_for(PATIENCE, "a failing lease", || shows("idgen_worker_failing", 1.0));
    server.cluster.wait_for(PATIENCE, "an ended lease", || shows("idgen_worker_ended", 1.0));
    assert!(shows("idgen_worker_failing", 0.0));
}

#[test]
fn exporters_report_that_they_cannot_read_the_views() {
    let server = Server::start();
    let [postgres_exporter, sql_exporter] = [server.postgres_exporter(), server.sql_exporter()];
    let failures = |exporter: &Daemon, name: &str| {
        let answer = exporter.get("/metrics");
        let failed = answer.lines().filter(|line| line.starts_with(name) && line.ends_with(" 1"));
        failed.count()
    };
    assert_eq!(failures(&postgres_exporter, "pg_exporter_last_scrape_error"), 0);
    assert_eq!(failures(&sql_exporter, "sql_exporter_last_scrape_failed"), 0);
    server.cluster.execute("REVOKE pg_monitor FROM prometheus");
    let fail = || {
        let _scrape = postgres_exporter.get("/metrics");
        failures(&postgres_exporter, "pg_exporter_last_scrape_error") == 1
            && failures(&sql_exporter, "sql_exporter_last_scrape_failed") > 0
    };
    server.cluster.wait_for(PATIENCE, "both exporters to report failures", fail);
}

#[test]
fn postgres_exporter_reads_a_standby_without_complaint() {
    let server = Server::start();
    let standby = server.cluster.standby();
    let exporter = server.postgres_exporter_of(&standby, &["postgres"]);
    let answer = exporter.get("/metrics");
    assert!(answer.contains("\npg_exporter_last_scrape_error 0\n"), "{}", exporter.log());
    let shown = samples(&answer);
    assert!(shown.iter().any(|sample| sample.name == "idgen_pool_slots"));
    for bad in shown.iter().filter(|sample| ["idgen_worker_waiting", "idgen_worker_ended"].contains(&&*sample.name)) {
        assert_eq!(bad.value, 0.0, "{}", bad.name);
    }
    assert!(shown.iter().filter(|sample| sample.name == "idgen_check_ok").all(|check| check.value == 1.0), "{answer}");
}

#[test]
fn postgres_exporter_reads_several_databases_of_a_server() {
    let server = Server::start();
    let mut client = in_new_database(&server.cluster, "app");
    execute(&mut client, "SELECT segment_create('orders')");
    execute(&mut client, "SELECT segment_next('orders')");
    let exporter = server.postgres_exporter_of(&server.cluster, &["postgres", "app"]);
    let answer = exporter.get("/metrics");
    let count = |start: &str| answer.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("idgen_segment_issued_total{datname=\"app\""), 1);
    assert_eq!(count("idgen_segment_issued_total{datname=\"postgres\""), 2);
    assert_eq!((count("idgen_clock_lead_seconds"), count("idgen_check_ok{check=\"mark\"")), (1, 2));
}

#[test]
fn each_alert_fires_when_it_should_and_only_then() {
    run(Command::new("promtool").args(["check", "rules", "alerts.yml"]).current_dir(FILES));
    run(Command::new("promtool").args(["test", "rules", "alerts_test.yml"]).current_dir(FILES));
    // With a condition that never holds, with one that always holds, or without its delay, an alert fails its test.
    let without_delay = |rule: &str| -> String {
        rule.split_inclusive('\n').filter(|line| !line.starts_with("        for:")).collect()
    };
    type Mutation<'a> = (&'a str, &'a dyn Fn(&str) -> String);
    let mutations: [Mutation; 3] = [
        ("never", &|rule| with_expression(rule, "vector(1) > 2")),
        ("always", &|rule| with_expression(rule, "vector(1)")),
        ("at once", &without_delay),
    ];
    for (when, mutate) in mutations {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mutant = alerts().iter().fold(read("alerts.yml"), |text, (_, rule)| text.replace(rule, &mutate(rule)));
        std::fs::write(dir.path().join("alerts.yml"), mutant).expect("the directory is writable");
        std::fs::copy(file("alerts_test.yml"), dir.path().join("alerts_test.yml")).expect("the directory is writable");
        let output =
            Command::new("promtool").args(["test", "rules", "alerts_test.yml"]).current_dir(dir.path()).output();
        let output = output.expect("make guide-deps installs promtool");
        let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        for (name, _) in alerts().iter().filter(|(_, rule)| mutate(rule) != *rule) {
            let noticed = report.contains(&format!("alertname: {name}, time:"));
            assert!(noticed, "the test of {name} passes if it fires {when}\n{report}");
        }
    }
}

#[test]
fn page_names_each_alert() {
    let page = std::fs::read_to_string(PAGE).expect("the page is readable");
    for (name, _) in alerts() {
        assert!(page.contains(&format!("| `{name}`: ")), "no row for {name}");
    }
}

#[test]
fn dashboard_has_panels_that_do_not_overlap_and_a_data_source_to_choose() {
    let dashboard = dashboard();
    let mut cells = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = text(&panel["title"]);
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id is not its own");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().expect("a position"));
        assert!(x + w <= 24, "{title} is beyond the 24 columns");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            let other = cells.insert(cell, title);
            assert_eq!(other, None, "{title} covers a cell of another panel");
        }
        let kind = text(&panel["type"]);
        assert!(["row", "stat", "timeseries", "bargauge", "state-timeline"].contains(&kind), "{title}: {kind}");
        if kind == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().expect("targets");
        let letters: BTreeSet<&str> = targets.iter().map(|target| text(&target["refId"])).collect();
        assert!(!targets.is_empty() && letters.len() == targets.len(), "{title}: targets need letters of their own");
        for source in targets.iter().chain([panel]).map(|has| &has["datasource"]) {
            assert_eq!((text(&source["type"]), text(&source["uid"])), ("prometheus", "${datasource}"), "{title}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = variables.iter().map(|variable| text(&variable["name"])).collect();
    assert_eq!(names, ["datasource", "instance"]);
}

/// A server with something to see: waits, a layout that ends, a segment near its bound and one
/// that cannot be refilled, locks and leases that are held and waited for, and a pool of which 80 % are taken.
struct Server {
    dir: TempDir,
    _sessions: Vec<Client>,
    cluster: Cluster,
}

impl Server {
    fn start() -> Server {
        let builder = Cluster::builder().conf("fsync", "off").conf("idgen.worker_max_lead", "1d");
        let cluster = builder.start_with_extension();
        cluster.execute(ROLE);
        // pg_monitor has grants of its own.
        cluster.execute(
            "REVOKE ALL ON SCHEMA idgen FROM PUBLIC; REVOKE ALL ON ALL TABLES IN SCHEMA idgen FROM PUBLIC;
             REVOKE EXECUTE ON FUNCTION idgen.status() FROM PUBLIC",
        );
        // The server is its own coordinator.
        cluster.execute("SELECT lease_define('servers', slots => 5, first_slot => 100, ttl => '10 s')");
        cluster.set_conf("idgen.worker_pool", "servers");
        cluster.set_conf("idgen.coordinator", &cluster.conninfo());
        cluster.reload();
        let mut client = cluster.client();
        cluster.wait_for(PATIENCE, "a worker id", || {
            value::<String>(&mut client, "SELECT state FROM idgen.stat_worker") == "leased"
        });
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
        Server { dir: tempfile::tempdir().expect("a temporary directory"), _sessions: sessions, cluster }
    }

    fn postgres_exporter(&self) -> Daemon {
        self.postgres_exporter_of(&self.cluster, &["postgres"])
    }

    fn postgres_exporter_of(&self, cluster: &Cluster, databases: &[&str]) -> Daemon {
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

    fn sql_exporter(&self) -> Daemon {
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

    fn prometheus(&self, postgres_exporter: &Daemon, sql_exporter: &Daemon) -> Daemon {
        let config = changed(
            "prometheus.yml",
            &[
                ("localhost:9187", &postgres_exporter.address),
                ("localhost:9237", &sql_exporter.address),
                ("interval: 15s", "interval: 1s"),
            ],
        );
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

/// An HTTP server on a port of its own. Killed when dropped.
struct Daemon {
    process: Child,
    address: String,
    log: PathBuf,
}

impl Daemon {
    fn start(program: &str, dir: &Path, configure: impl Fn(&mut Command, &str)) -> Daemon {
        // Free now. If another process takes it first, the daemon exits, and the test fails with its log.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let log = dir.join(format!("{program}.log"));
        let file = File::create(&log).expect("the directory is writable");
        let mut command = Command::new(program);
        configure(&mut command, &address);
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a file")).stderr(file);
        let process = command.spawn().unwrap_or_else(|error| panic!("make guide-deps installs {program}: {error}"));
        Daemon { process, address, log }
    }

    fn get(&self, path: &str) -> String {
        self.try_get(path).unwrap_or_else(|| panic!("no answer to {path}\n{}", self.log()))
    }

    /// The body of a successful answer.
    fn try_get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        // Version 1.0: the answer ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.0 200").then(|| body.to_owned())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Of Prometheus: the data of an answer.
    fn api(&self, path: &str) -> Value {
        let answer: Value = serde_json::from_str(&self.get(&format!("/api/v1/{path}"))).expect("JSON");
        answer["data"].clone()
    }

    /// Of Prometheus: the result of a query now.
    fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        self.api(&format!("query?query={encoded}"))["result"].as_array().expect("a result").clone()
    }

    /// Of Prometheus: the metrics of idgen that an exporter shows, without labels that say where they come from.
    fn series_of(&self, job: &str) -> BTreeMap<String, f64> {
        let found = self.query(&format!("{{__name__=~'idgen_.+',job='{job}'}}"));
        let origin = ["job", "instance", "server", "driver", "host", "database", "user", "sql_job"];
        let series = found.iter().map(|series| {
            let labels = series["metric"].as_object().expect("labels");
            let own = labels.iter().filter(|(name, _)| !origin.contains(&name.as_str()));
            let own: Vec<String> = own.map(|(name, value)| format!("{name}={value}")).collect();
            (own.join(" "), text(&series["value"][1]).parse().expect("a number"))
        });
        series.collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One series of an exporter's answer.
struct Sample {
    name: String,
    value: f64,
}

/// The series of idgen in an answer of postgres_exporter.
fn samples(answer: &str) -> Vec<Sample> {
    let lines = answer.lines().filter(|line| line.starts_with("idgen_"));
    let parsed = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let name = series.split('{').next().expect("a name").to_owned();
        Sample { name, value: value.parse().expect("a number") }
    });
    parsed.collect()
}

/// The names of all metrics of both exporters, as Prometheus has them.
fn metrics(postgres_exporter: &Daemon, sql_exporter: &Daemon) -> BTreeSet<String> {
    let answers = [postgres_exporter.get("/metrics"), sql_exporter.get("/metrics")];
    let lines = answers.iter().flat_map(|answer| answer.lines()).filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(['{', ' ']).next().expect("a name").to_owned()).collect()
}

/// Each metric of a query is known.
fn assert_known(query: &str, metrics: &BTreeSet<String>) {
    let unquoted: String = query.split('"').step_by(2).collect();
    let words = unquoted.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let used: Vec<&str> = words.filter(|word| ["idgen_", "pg_", "sql_"].iter().any(|p| word.starts_with(p))).collect();
    assert!(!used.is_empty(), "no metric in {query}");
    for metric in used {
        assert!(metrics.contains(metric), "no metric {metric}, used by {query}");
    }
}

/// What differs between the series of two exporters; empty if nothing does.
fn compare(one: &BTreeMap<String, f64>, other: &BTreeMap<String, f64>) -> String {
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differ = keys.into_iter().filter(|key| match (one.get(*key), other.get(*key)) {
        (Some(a), Some(b)) => {
            let tolerance = if MOVING.iter().any(|name| key.contains(name)) { 10.0 } else { 0.0 };
            a != b && (a - b).abs() > tolerance
        }
        _ => true,
    });
    differ.map(|key| format!("{key}: {:?} and {:?}\n", one.get(key), other.get(key))).collect()
}

/// The names and texts of the alerts.
fn alerts() -> Vec<(String, String)> {
    let text = read("alerts.yml");
    let rules = text.split("      - alert: ").skip(1);
    rules.map(|rule| (rule.lines().next().expect("a name").to_owned(), rule.to_owned())).collect()
}

/// A rule with another expression.
fn with_expression(rule: &str, expression: &str) -> String {
    let from = rule.find("        expr: ").expect("a rule has an expression");
    let key = |line: &&str| line.starts_with("        ") && !line.starts_with("         ");
    let next = rule[from..].lines().skip(1).find(key).expect("a rule has more than an expression");
    let to = from + rule[from..].find(next).expect("a line of the rule");
    format!("{}        expr: {expression}\n{}", &rule[..from], &rule[to..])
}

fn dashboard() -> Value {
    serde_json::from_str(&read("dashboard.json")).expect("JSON")
}

fn panels(dashboard: &Value) -> &[Value] {
    dashboard["panels"].as_array().expect("panels")
}

/// The queries of all panels, and of the variable `instance`.
fn queries(dashboard: &Value) -> Vec<String> {
    let targets = panels(dashboard).iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut queries: Vec<String> = targets.map(|target| text(&target["expr"]).to_owned()).collect();
    let variable = text(&dashboard["templating"]["list"][1]["query"]["query"]);
    let metric = variable.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(", instance)"));
    queries.push(metric.expect("label_values of a metric").to_owned());
    queries
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn file(name: &str) -> PathBuf {
    Path::new(FILES).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A file with other addresses and intervals.
fn changed(name: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(read(name), |text, (from, to)| {
        assert!(text.contains(from), "{name} has no {from}");
        text.replace(from, to)
    })
}

/// Tests a condition until it holds. False if it does not by the deadline.
fn eventually(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + deadline;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}
