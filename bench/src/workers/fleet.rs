//! Many servers that lease their worker ids from one coordinator, first all at once, then each at its own pace.
//!
//! The servers are threads that send what a keeper sends: a connection for each try, and three queries over it.

use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{self, Server};
use idgen_core::worker::coordinator::Pace;
use idgen_testkit::Cluster;
use postgres::{Client, NoTls};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Instant, SystemTime};

const SERVERS: usize = 200;

const SESSION: &str =
    "SELECT set_config('statement_timeout', '1min', false), set_config('synchronous_commit', 'local', false)
                       FROM pg_control_system()";
const ACQUIRE: &str =
    "SELECT token, not_after FROM worker_acquire('fleet', $1, $2 * interval '1 s', clock_timestamp())";
const RENEW: &str = "SELECT token, not_after
                     FROM (SELECT $1::bigint AS token) AS own, worker_renew('fleet', token, $2, clock_timestamp())";
const CONFIRM: &str = "SELECT worker_confirm('fleet', $1)";

/// What a server knows of its lease.
type Lease = (i64, SystemTime);

pub fn measure(_: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let coordinator = server::builder().conf("max_connections", "300").start_with_extension();
    // As long as it is watched, so that each server renews three times.
    let pace = Pace { ttl: scale.fleet };
    coordinator.execute(&format!("SELECT lease_define('fleet', {}, '{} s')", 2 * SERVERS, pace.ttl.as_secs()));
    let measured = rounds(scale.rounds, &[()], |()| {
        let (restart, leases) = restart(&coordinator, pace);
        let steady = run(&coordinator, leases, pace);
        [restart.seconds, restart.cpu, steady.cpu / steady.seconds * 100.0, steady.connections, steady.busiest]
    });
    let part = |index: usize| Samples::new(measured[0].iter().map(|parts| parts[index]));
    let table = Table {
        title: format!("{SERVERS} servers on one coordinator"),
        how: format!(
            "Threads that do what keepers do, with a ttl of {} s: connect, set the session up, acquire or renew, confirm, \
             disconnect. First all at once, then at the pace of keepers for {} s. CPU time is that of the coordinator's \
             processes.",
            pace.ttl.as_secs(),
            pace.ttl.as_secs()
        ),
        columns: [
            "s until the last has a worker id after a common start",
            "CPU s of that",
            "% of a core after it",
            "connections a second",
            "in the busiest second",
        ]
        .map(str::to_owned)
        .into(),
        rows: vec![Row { name: format!("{SERVERS} servers"), cells: (0..5).map(part).collect() }],
    };
    (vec![Figure::at_most(20.0, format!("% of a core for {SERVERS} servers"), part(2))], vec![table])
}

/// What some time of the fleet has cost.
struct Cost {
    seconds: f64,
    /// In seconds, over all processes of the coordinator.
    cpu: f64,
    /// A second.
    connections: f64,
    busiest: f64,
}

/// All servers start at the same moment.
fn restart(coordinator: &Cluster, pace: Pace) -> (Cost, Vec<Lease>) {
    let barrier = Barrier::new(SERVERS);
    let (leases, began) = (Mutex::new(Vec::new()), Instant::now());
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
    let seconds = began.elapsed().as_secs_f64();
    let cost = Cost { seconds, cpu, connections: SERVERS as f64 / seconds, busiest: SERVERS as f64 };
    (cost, leases.into_inner().expect("no thread panics"))
}

/// Each server renews at its own pace, for as long as a lease lasts.
fn run(coordinator: &Cluster, leases: Vec<Lease>, pace: Pace) -> Cost {
    let (began, tries) = (Instant::now(), Mutex::new(Vec::new()));
    let cpu = cpu_seconds(coordinator, || {
        thread::scope(|scope| {
            for lease in leases {
                let tries = &tries;
                scope.spawn(move || renew_for(coordinator, lease, pace, began, tries));
            }
        });
    });
    let tries: Vec<u64> = tries.into_inner().expect("no thread panics");
    let in_second = |second| tries.iter().filter(|at| **at == second).count();
    let busiest = (0..pace.ttl.as_secs()).map(in_second).max().unwrap_or(0);
    let seconds = pace.ttl.as_secs_f64();
    Cost { seconds, cpu, connections: tries.len() as f64 / seconds, busiest: busiest as f64 }
}

/// Writes down in which second each try began.
fn renew_for(coordinator: &Cluster, mut lease: Lease, pace: Pace, began: Instant, tries: &Mutex<Vec<u64>>) {
    let end = began + pace.ttl;
    loop {
        let due = Instant::now() + pace.renew_after(fraction());
        if due >= end {
            thread::sleep(end.saturating_duration_since(Instant::now()));
            return;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        tries.lock().expect("no thread panics").push(began.elapsed().as_secs());
        lease = ask(coordinator, RENEW, &[&lease.0, &lease.1]);
    }
}

/// One try of a keeper.
fn ask(coordinator: &Cluster, sql: &str, parameters: &[&(dyn postgres::types::ToSql + Sync)]) -> Lease {
    let mut client = connect(coordinator);
    client.query_one(SESSION, &[]).expect("the session is set up");
    let row = client.query_one(sql, parameters).expect("the pool has room");
    let lease: Lease = (row.get(0), row.get(1));
    client.query_one(CONFIRM, &[&lease.0]).expect("it is held");
    lease
}

fn connect(coordinator: &Cluster) -> Client {
    Client::connect(&coordinator.connect_string("postgres", "postgres"), NoTls).expect("it accepts connections")
}

/// At random, in [0, 1).
fn fraction() -> f64 {
    (RandomState::new().hash_one(()) >> 11) as f64 / (1u64 << 53) as f64
}

/// CPU time of the processes of a server that have ended in some work, and of the postmaster.
fn cpu_seconds(cluster: &Cluster, work: impl FnOnce()) -> f64 {
    let now = || {
        let path = format!("/proc/{}/stat", cluster.pid_of_postmaster());
        let stat = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let (_, fields) = stat.rsplit_once(')').expect("the name stands in parentheses");
        // utime, stime, cutime and cstime.
        let ticks: u64 =
            fields.split_ascii_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().expect("ticks")).sum();
        ticks as f64 / 100.0
    };
    let before = now();
    work();
    now() - before
}
