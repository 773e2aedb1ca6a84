//! Worker ids from a pool: what many servers cost their coordinator.
//!
//! Each server is a thread that sends the queries of idgen's background worker, each time over a new connection.

use crate::harness::Part;
use crate::harness::comparison::Comparison;
use crate::harness::report::Section;
use crate::harness::scale::Scale;
use crate::harness::server::{self, Server};
use idgen_core::worker::pace::Pace;
use idgen_testkit::Cluster;
use postgres::types::ToSql;
use postgres::{Client, NoTls};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Instant, SystemTime};

pub const PARTS: [Part; 1] = [("a fleet", fleet)];

const SERVERS: usize = 200;

const SESSION: &str =
    "SELECT set_config('statement_timeout', '1min', false), set_config('synchronous_commit', 'local', false)
                       FROM pg_control_system()";
const ACQUIRE: &str =
    "SELECT token, not_after FROM worker_acquire('fleet', $1, $2 * interval '1 s', clock_timestamp())";
const RENEW: &str = "SELECT token, not_after
                     FROM (SELECT $1::bigint AS token) AS lease, worker_renew('fleet', token, $2, clock_timestamp())";
const CONFIRM: &str = "SELECT worker_confirm('fleet', $1)";

/// A server's lease: its token and `not_after`.
type Lease = (i64, SystemTime);

/// All servers start at once, then each renews at its own pace.
fn fleet(_: &Server, scale: &Scale, section: &mut Section) {
    let coordinator = server::builder().conf("max_connections", "300").start_with_extension();
    // Each server renews three times while it is observed.
    let pace = Pace { ttl: scale.fleet };
    let ttl_s = pace.ttl.as_secs();
    coordinator.execute(&format!("SELECT lease_define('fleet', {}, '{ttl_s} s')", 2 * SERVERS));
    let name = format!("{SERVERS} servers");
    let measured = Comparison::measure(scale.rounds, [(&name, ())], |()| {
        let (start, leases) = start_all(&coordinator, pace);
        let steady = renew_all(&coordinator, leases, pace);
        let cpu_percent = steady.cpu / steady.seconds * 100.0;
        [start.seconds, start.cpu, cpu_percent, steady.connections, steady.busiest]
    });
    let [_, _, cpu_percent, ..] = measured.of(&name);
    section.at_most(20.0, format!("% of a core for {SERVERS} servers"), cpu_percent.clone());
    section.add(measured.table(
        format!("{SERVERS} servers on one coordinator"),
        format!(
            "Each server is a thread that connects, sets up the session, acquires or renews, confirms and \
             disconnects. The ttl is {ttl_s} s. First all acquire at once, then each renews at its own pace for \
             {ttl_s} s. CPU time is that of all processes of the coordinator."
        ),
        [
            "s until all have a worker id after a common start",
            "CPU s of the start",
            "% of a core after it",
            "connections per second",
            "connections in the busiest second",
        ],
    ));
}

/// What the servers cost the coordinator in some time.
struct Cost {
    seconds: f64,
    /// CPU time in seconds.
    cpu: f64,
    /// Connections per second, on average and in the busiest second.
    connections: f64,
    busiest: f64,
}

fn start_all(coordinator: &Cluster, pace: Pace) -> (Cost, Vec<Lease>) {
    let barrier = Barrier::new(SERVERS);
    let (leases, start) = (Mutex::new(Vec::new()), Instant::now());
    let cpu = cpu_seconds(coordinator, || {
        thread::scope(|scope| {
            for server in 0..SERVERS {
                let (barrier, leases) = (&barrier, &leases);
                scope.spawn(move || {
                    barrier.wait();
                    let lease = ask(coordinator, ACQUIRE, &[&format!("server {server}"), &pace.ttl.as_secs_f64()]);
                    leases.lock().expect("no thread panics").push(lease);
                });
            }
        });
    });
    let seconds = start.elapsed().as_secs_f64();
    let cost = Cost { seconds, cpu, connections: SERVERS as f64 / seconds, busiest: SERVERS as f64 };
    (cost, leases.into_inner().expect("no thread panics"))
}

/// Each server renews for one ttl.
fn renew_all(coordinator: &Cluster, leases: Vec<Lease>, pace: Pace) -> Cost {
    let (start, tries) = (Instant::now(), Mutex::new(Vec::new()));
    let cpu = cpu_seconds(coordinator, || {
        thread::scope(|scope| {
            for lease in leases {
                let tries = &tries;
                scope.spawn(move || renew(coordinator, lease, pace, start, tries));
            }
        });
    });
    let tries: Vec<u64> = tries.into_inner().expect("no thread panics");
    let in_second = |second| tries.iter().filter(|at| **at == second).count();
    let busiest = (0..pace.ttl.as_secs()).map(in_second).max().unwrap_or(0);
    let seconds = pace.ttl.as_secs_f64();
    Cost { seconds, cpu, connections: tries.len() as f64 / seconds, busiest: busiest as f64 }
}

/// Renews until one ttl after `start`, and adds the second of each try to `tries`.
fn renew(coordinator: &Cluster, mut lease: Lease, pace: Pace, start: Instant, tries: &Mutex<Vec<u64>>) {
    let end = start + pace.ttl;
    loop {
        let due = Instant::now() + pace.renew_after(jitter());
        thread::sleep(due.min(end).saturating_duration_since(Instant::now()));
        if due >= end {
            return;
        }
        tries.lock().expect("no thread panics").push(start.elapsed().as_secs());
        lease = ask(coordinator, RENEW, &[&lease.0, &lease.1]);
    }
}

/// One try: connects, runs the queries and disconnects.
fn ask(coordinator: &Cluster, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Lease {
    let connect_string = coordinator.connect_string("postgres", "postgres");
    let mut client = Client::connect(&connect_string, NoTls).expect("cannot connect to the coordinator");
    client.query_one(SESSION, &[]).expect("cannot set up the session");
    let row = client.query_one(sql, parameters).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let lease: Lease = (row.get(0), row.get(1));
    client.query_one(CONFIRM, &[&lease.0]).expect("worker_confirm failed");
    lease
}

/// A random number in [0, 1).
fn jitter() -> f64 {
    (RandomState::new().hash_one(()) >> 11) as f64 / (1u64 << 53) as f64
}

/// The CPU time, during `work`, of the postmaster and of the processes that ended.
fn cpu_seconds(cluster: &Cluster, work: impl FnOnce()) -> f64 {
    let now = || {
        let path = format!("/proc/{}/stat", cluster.pid_of_postmaster());
        let stat = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let (_, fields) = stat.rsplit_once(')').expect("the process name is in parentheses");
        // utime, stime, cutime and cstime.
        let ticks: u64 =
            fields.split_ascii_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().expect("ticks")).sum();
        ticks as f64 / 100.0
    };
    let before = now();
    work();
    now() - before
}
