//! The picture of the dashboard on docs/monitoring.md, drawn with what a real Prometheus answers to its queries.
//!
//! With `IDGEN_WRITE_PICTURE=1`, which `make picture` sets, the test writes `docs/images/dashboard.png`. This takes
//! three minutes. Otherwise it draws a shorter time into a temporary directory.

use std::f64::consts::TAU;
use std::process::Command;
use std::time::{Duration, Instant};

use idgen_testkit::sql::{execute, expect_error};
use idgen_testkit::{Cluster, run};
use postgres::Client;

use super::server::Server;
use crate::{repository, tools};

/// What the picture may weigh.
const MAX_BYTES: u64 = 250_000;

#[test]
fn picture_of_the_dashboard_has_data_in_each_panel() {
    let writes = std::env::var_os("IDGEN_WRITE_PICTURE").is_some();
    let length = Duration::from_secs(if writes { 170 } else { 20 });
    let dir = tempfile::tempdir().expect("a temporary directory");
    let picture = if writes { repository("docs/images") } else { dir.path().to_owned() }.join("dashboard.png");

    let server = Server::with_pool();
    let exporter = server.postgres_exporter();
    let target = format!("[{}]\n        labels: {{ instance: db1 }}", exporter.address);
    let prometheus = server.prometheus(&[("[localhost:9187]", &target)]);
    run_load(&server.cluster, length);
    let mut draw = Command::new(tools().join("python/bin/python"));
    draw.arg(repository("tests/guides/monitoring/picture.py")).arg(&prometheus.address).arg("db1");
    let report = run(draw.arg((length.as_secs() - 10).to_string()).arg(&picture));
    let panels: Vec<&str> = report.lines().collect();
    assert!(panels.len() > 20, "{report}");
    for panel in panels {
        assert!(!panel.ends_with("\t0"), "no data: {panel}");
    }
    let size = picture.metadata().expect("a picture").len();
    assert!(size < MAX_BYTES, "the picture has {size} bytes");
}

/// Calls of all functions that the dashboard shows, in sessions at the same time. The load varies, and for a while the
/// coordinator cannot be reached.
fn run_load(cluster: &Cluster, length: Duration) {
    let mut client = cluster.client();
    let setup = [
        "SELECT segment_create('order', max_step => 2000)",
        "SELECT segment_create('invoice', start => 1790000000, upper_bound => 2147483647)",
        "SELECT segment_create('seat', start => 41000, upper_bound => 100000)",
        "SELECT lease_define('crawler', slots => 6, ttl => '12 s', lock_delay => '5 s')",
        // Longer than the time without a coordinator.
        "SELECT worker_pool_alter('servers', ttl => '40 s')",
        "SELECT worker_acquire('servers', 'db2'), worker_acquire('servers', 'db3')",
    ];
    setup.iter().for_each(|statement| execute(&mut client, statement));
    std::thread::scope(|scope| {
        let start = |step: fn(&mut Client, f64)| {
            scope.spawn(move || {
                let mut client = cluster.client();
                repeat(length, |progress| step(&mut client, progress));
            });
        };
        start(draw_ids);
        (0..2).for_each(|_| start(draw_ids_of_a_narrow_layout));
        start(draw_values);
        (0..3).for_each(|_| start(hold_a_lock));
        start(call_leases);
        scope.spawn(|| lose_the_coordinator(cluster, length));
    });
}

/// Calls a step again and again, with the part of the time that is over, from 0 to 1.
fn repeat(length: Duration, mut step: impl FnMut(f64)) {
    let start = Instant::now();
    while start.elapsed() < length {
        step(start.elapsed().as_secs_f64() / length.as_secs_f64());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn wave(progress: f64, waves: f64) -> f64 {
    0.5 - 0.5 * (progress * waves * TAU).cos()
}

fn draw_ids(client: &mut Client, progress: f64) {
    let count = 300.0 + 1200.0 * wave(progress, 2.0) + 500.0 * wave(progress, 9.0);
    execute(client, &format!("SELECT count(snowflake_next()) FROM generate_series(1, {count:.0})"));
}

/// The layout has 4,000 ids a second. In the peak, sessions want more.
fn draw_ids_of_a_narrow_layout(client: &mut Client, progress: f64) {
    let count = if (0.35..0.5).contains(&progress) { 600.0 } else { 60.0 + 60.0 * wave(progress, 5.0) };
    let layout = "time:41 worker:10 sequence:2 unit:1ms epoch:2020-01-01";
    execute(client, &format!("SELECT count(snowflake_next('{layout}')) FROM generate_series(1, {count:.0})"));
}

fn draw_values(client: &mut Client, progress: f64) {
    let count = if (0.7..0.8).contains(&progress) { 5000.0 } else { 100.0 + 500.0 * wave(progress, 3.0) };
    execute(client, &format!("SELECT count(segment_next('order')) FROM generate_series(1, {count:.0})"));
    execute(client, "SELECT count(segment_next('invoice')) FROM generate_series(1, 60)");
    execute(client, "SELECT segment_next('seat')");
}

/// Three sessions want the same lock: one holds it, the others wait. Now and then none wants it.
fn hold_a_lock(client: &mut Client, progress: f64) {
    let seconds = 4.0 * wave(progress, 2.0);
    if seconds > 0.5 {
        execute(client, &format!("BEGIN; SELECT lock_acquire_xact('report'), pg_sleep({seconds:.1}); COMMIT"));
    }
}

/// A lease that is renewed and released, others that end and rest, and calls that are refused.
fn call_leases(client: &mut Client, progress: f64) {
    let held = "FROM idgen.leases WHERE name = 'job' AND state = 'held' AND random() <";
    execute(client, &format!("SELECT lease_renew(name, token) {held} 0.8"));
    execute(client, &format!("SELECT lease_release(name, token) {held} 0.2"));
    execute(client, "SELECT lease_try_acquire('job', ttl => '1 s')");
    execute(client, &format!("SELECT lease_fence(name, token) {held} 0.5"));
    execute(client, "SELECT lease_try_acquire('crawler') WHERE random() < 0.03");
    if (0.5..0.6).contains(&progress) && wave(progress, 40.0) > 0.7 {
        expect_error(client, "SELECT lease_renew('job', 1)", "55000");
    }
}

fn lose_the_coordinator(cluster: &Cluster, length: Duration) {
    let change = |conninfo: &str| {
        cluster.set_conf("idgen.coordinator", conninfo);
        cluster.reload();
    };
    std::thread::sleep(length.mul_f64(0.6));
    change("host=/nowhere");
    std::thread::sleep(length.mul_f64(0.1));
    change(&cluster.conninfo());
}
