//! Worker ids from a pool: what many servers cost their coordinator.
//!
//! Each server is a thread that sends the queries of idgen's background worker: over one connection, as it does if the
//! coordinator has room, or each time over a new one.

use crate::harness::Part;
use crate::harness::comparison::Comparison;
use crate::harness::report::Section;
use crate::harness::scale::Scale;
use crate::harness::server::{self, Server};
use idgen_core::worker::pace::Pace;
use idgen_testkit::Cluster;
use postgres::types::{ToSql, Type};
use postgres::{Client, NoTls};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Instant, SystemTime};

pub const PARTS: [Part; 1] = [("a fleet", fleet)];

/// How many servers renew, and whether each keeps its connection.
#[derive(Clone, Copy)]
struct Fleet {
    servers: usize,
    keeps_connections: bool,
}

const KEPT: Fleet = Fleet { servers: 1000, keeps_connections: true };
const CONNECTING: Fleet = Fleet { servers: 200, keeps_connections: false };

const SESSION: &str = "SELECT control.system_identifier, set_config('statement_timeout', '1min', false), \
                              set_config('synchronous_commit', 'local', false), \
                              (SELECT count(*) FROM pg_stat_get_activity(NULL) WHERE usesysid IS NOT NULL) \
                       FROM pg_control_system() AS control JOIN pg_database ON datname = current_database() \
                       JOIN pg_roles ON rolname = SESSION_USER LEFT JOIN pg_extension ON extname = 'idgen' \
                       LEFT JOIN pg_namespace AS space ON space.oid = extnamespace";
const ACQUIRE: &str =
    "SELECT token, not_after FROM worker_acquire('fleet', $1, $2 * interval '1 s', clock_timestamp())";
const RENEW: &str = "SELECT token, not_after
                     FROM (SELECT $1::bigint AS token) AS lease, worker_renew('fleet', token, $2, clock_timestamp())";
const CONFIRM: &str = "SELECT worker_confirm('fleet', $1)";

/// A server: its lease and its connection, if it keeps that.
struct Member {
    token: i64,
    not_after: SystemTime,
    connection: Option<Client>,
}

/// All servers start at once, then each renews at its own pace.
fn fleet(_: &Server, scale: &Scale, section: &mut Section) {
    // Keepers leave half of the connections to others.
    let connections = (2 * KEPT.servers + 100).to_string();
    let coordinator = server::builder().conf("max_connections", &connections).start_with_extension();
    let pace = Pace { ttl: scale.fleet };
    let ttl_s = pace.ttl.as_secs();
    // Each fleet starts while the leases of the one before have not ended.
    coordinator
        .execute(&format!("SELECT worker_pool_define('fleet', count => {}, ttl => '{ttl_s} s')", 3 * KEPT.servers));
    let name = |fleet: Fleet| match fleet.keeps_connections {
        true => format!("{} servers, connections kept", fleet.servers),
        false => format!("{} servers, a connection for each renewal", fleet.servers),
    };
    let contenders = [KEPT, CONNECTING].map(|fleet| (name(fleet), fleet));
    let measured = Comparison::measure(scale.rounds, contenders, |&fleet| {
        let (start, members) = start_all(&coordinator, fleet, pace);
        let steady = renew_all(&coordinator, members, pace);
        let cpu_percent = steady.cpu / steady.seconds * 100.0;
        [start.seconds, start.cpu, cpu_percent, steady.renewals, steady.busiest]
    });
    let [_, _, cpu_percent, ..] = measured.of(&name(KEPT));
    section.at_most(5.0, format!("% of a core for {} servers", KEPT.servers), cpu_percent.clone());
    section.add(measured.table(
        "Many servers on one coordinator",
        format!(
            "Each server is a thread that connects, sets up the session, acquires or renews, and confirms. The ttl is \
             {ttl_s} s. First all acquire at once, then each renews at its own pace. The renewals are measured for \
             {ttl_s} s, from {ttl_s} s after the start on. CPU time is that of all processes of the coordinator."
        ),
        [
            "s until all have a worker id after a common start",
            "CPU s of the start",
            "% of a core after it",
            "renewals per second",
            "renewals in the busiest second",
        ],
    ));
}

/// What the servers cost the coordinator in some time.
struct Cost {
    seconds: f64,
    /// CPU time in seconds.
    cpu: f64,
    /// Renewals per second, on average and in the busiest second.
    renewals: f64,
    busiest: f64,
}

fn start_all(coordinator: &Cluster, fleet: Fleet, pace: Pace) -> (Cost, Vec<Member>) {
    let barrier = Barrier::new(fleet.servers);
    let (members, start) = (Mutex::new(Vec::new()), Instant::now());
    let cpu = cpu_seconds(coordinator, || {
        thread::scope(|scope| {
            for server in 0..fleet.servers {
                let (barrier, members) = (&barrier, &members);
                scope.spawn(move || {
                    barrier.wait();
                    let mut client = connect(coordinator);
                    let (token, not_after) = ask(
                        &mut client,
                        ACQUIRE,
                        &[(&format!("server {server}"), Type::TEXT), (&pace.ttl.as_secs_f64(), Type::FLOAT8)],
                    );
                    let member = Member { token, not_after, connection: fleet.keeps_connections.then_some(client) };
                    members.lock().expect("no thread panics").push(member);
                });
            }
        });
    });
    let seconds = start.elapsed().as_secs_f64();
    let cost = Cost { seconds, cpu, renewals: 0.0, busiest: 0.0 };
    (cost, members.into_inner().expect("no thread panics"))
}

/// Each server renews for two ttls. The second one is measured: by then each session has filled its caches.
fn renew_all(coordinator: &Cluster, members: Vec<Member>, pace: Pace) -> Cost {
    let (start, tries) = (Instant::now(), Mutex::new(Vec::new()));
    let cpu = thread::scope(|scope| {
        for member in members {
            let tries = &tries;
            scope.spawn(move || renew(coordinator, member, pace, start, tries));
        }
        thread::sleep(pace.ttl.saturating_sub(start.elapsed()));
        cpu_seconds(coordinator, || thread::sleep((2 * pace.ttl).saturating_sub(start.elapsed())))
    });
    let ttl_s = pace.ttl.as_secs();
    let tries: Vec<u64> = tries.into_inner().expect("no thread panics");
    let in_second = |second| tries.iter().filter(|at| **at == second).count();
    let by_second: Vec<usize> = (ttl_s..2 * ttl_s).map(in_second).collect();
    let busiest = by_second.iter().max().copied().unwrap_or(0);
    let renewals = by_second.iter().sum::<usize>() as f64 / ttl_s as f64;
    Cost { seconds: ttl_s as f64, cpu, renewals, busiest: busiest as f64 }
}

/// Renews until two ttls after `start`, and adds the second of each try to `tries`.
fn renew(coordinator: &Cluster, mut member: Member, pace: Pace, start: Instant, tries: &Mutex<Vec<u64>>) {
    let end = start + 2 * pace.ttl;
    let mut pause = pace.first_renewal_after(jitter());
    loop {
        let due = Instant::now() + pause;
        thread::sleep(due.min(end).saturating_duration_since(Instant::now()));
        if due >= end {
            return;
        }
        tries.lock().expect("no thread panics").push(start.elapsed().as_secs());
        let keeps_connection = member.connection.is_some();
        let mut client = member.connection.take().unwrap_or_else(|| connect(coordinator));
        if keeps_connection {
            client.simple_query("SELECT").expect("the connection is alive");
        }
        (member.token, member.not_after) =
            ask(&mut client, RENEW, &[(&member.token, Type::INT8), (&member.not_after, Type::TIMESTAMPTZ)]);
        member.connection = keeps_connection.then_some(client);
        pause = pace.renew_after(jitter());
    }
}

/// A connection with the session set up.
fn connect(coordinator: &Cluster) -> Client {
    let connect_string = coordinator.connect_string("postgres", "postgres");
    let mut client = Client::connect(&connect_string, NoTls).expect("cannot connect to the coordinator");
    client.query_typed_one(SESSION, &[]).expect("cannot set up the session");
    client
}

/// Acquires or renews, and confirms. Returns the token and `not_after`.
fn ask(client: &mut Client, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> (i64, SystemTime) {
    let row = client.query_typed_one(sql, parameters).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let (token, not_after) = (row.get(0), row.get(1));
    client.query_typed_one(CONFIRM, &[(&token, Type::INT8)]).expect("worker_confirm failed");
    (token, not_after)
}

/// A random number in [0, 1).
fn jitter() -> f64 {
    (RandomState::new().hash_one(()) >> 11) as f64 / (1u64 << 53) as f64
}

/// The CPU time of the coordinator during `work`: of the postmaster, of its processes, and of those that ended.
fn cpu_seconds(cluster: &Cluster, work: impl FnOnce()) -> f64 {
    let now = || cluster.cpu_time().as_secs_f64();
    let before = now();
    work();
    now() - before
}
