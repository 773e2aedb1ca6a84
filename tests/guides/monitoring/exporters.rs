//! The exporters: their metrics are what the views say, and the dashboard and the alerts use metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idgen_testkit::sql::{PATIENCE, execute, in_new_database, value};

use super::alerts::alerts;
use super::daemon::{Daemon, metrics, samples};
use super::dashboard::{dashboard, queries};
use super::server::Server;
use super::{eventually, sorted, text};

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
    ("idgen_pool_slots", "count FROM idgen.worker_pool WHERE name = 'servers'"),
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

    let targets = [("localhost:9187", &*postgres_exporter.address), ("localhost:9237", &*sql_exporter.address)];
    let prometheus = server.prometheus(&targets);

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

    // After a restart it has none.
    server.cluster.restart();
    let series = ["idgen_worker_id{", "sql_idgen_worker{col=\"id\","];
    for (exporter, series) in [exporter, server.sql_exporter()].iter().zip(series) {
        let none = || exporter.get("/metrics").lines().any(|line| line.starts_with(series) && line.ends_with(" NaN"));
        server.cluster.wait_for(PATIENCE, "a worker id that is not a number", none);
    }
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
    // The segment that is near its bound is so on a standby too.
    let failing = answer.lines().filter(|line| line.starts_with("idgen_check_ok{") && line.ends_with(" 0"));
    let failing: Vec<&str> = failing.filter_map(|line| line.split('"').nth(1)).collect();
    assert_eq!(failing, ["segment bounds"], "{answer}");
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
