//! Leases compared with the expiring locks of Redis and etcd, which sync to disk as well.

use crate::harness::Part;
use crate::harness::comparison::Comparison;
use crate::harness::pgbench;
use crate::harness::report::Section;
use crate::harness::scale::Scale;
use crate::harness::server::{Server, wal_bytes};
use crate::locking::{CLIENTS, Cycles, FAIR, FAIRNESS, TTL_S, WAITERS, contend, cycles};
use crate::peers::etcd::{Etcd, EtcdLock, Leasing};
use crate::peers::redis::{Redis, RedisLock};
use crate::peers::sql::{HAND_MADE_LEASE, LOCK_ROW, LOCK_WITH_TOKEN};
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, row, value};
use postgres::Client;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

pub const PARTS: [Part; 6] = [
    ("acquire and release", acquire_and_release),
    ("renewals", renewals),
    ("failed attempts", failed_attempts),
    ("the end of a holder", take_over),
    ("a contended lease", contended),
    ("hand-over", hand_over),
];

#[derive(Clone, Copy)]
enum Locker<'a> {
    /// A pgbench script.
    Sql(&'static str),
    Redis(&'a Redis),
    Etcd(&'a Etcd, Leasing),
}

impl Locker<'_> {
    fn run(self, server: &Server, clients: u32, seconds: u32) -> Cycles {
        match self {
            Locker::Sql(script) => {
                let summary = pgbench::run_by_statement(server, script, clients, seconds);
                let [acquire_ms, release_ms] = [0, 1].map(|statement| summary.statements_ms[statement]);
                Cycles { rate: summary.rate, acquire_ms, release_ms }
            }
            Locker::Redis(redis) => cycles(clients, seconds, |client| RedisLock::connect(redis, client)),
            Locker::Etcd(etcd, leasing) => cycles(clients, seconds, |client| EtcdLock::connect(etcd, client, leasing)),
        }
    }
}

const DEFINED: &str = "SELECT token FROM lease_acquire('defined:' || :client_id::text) \\gset\n\
                       SELECT lease_release('defined:' || :client_id::text, :token)";
const UNDEFINED: &str = "SELECT token FROM lease_acquire('bench:' || :client_id::text) \\gset\n\
                         SELECT lease_release('bench:' || :client_id::text, :token)";
const TRY: &str = "SELECT token FROM lease_try_acquire('bench:' || :client_id::text) \\gset\n\
                   SELECT lease_release('bench:' || :client_id::text, :token)";
const CONTENDED: &str = "SELECT token FROM lease_acquire('defined:0') \\gset\n\
                         SELECT lease_release('defined:0', :token)";
/// The contender that the targets compare with the other servers, which sync every grant.
const JUDGED: &str = "lease, name defined";
const IN_SQL: [(&str, Locker); 6] = [
    (JUDGED, Locker::Sql(DEFINED)),
    ("lease, name not defined", Locker::Sql(UNDEFINED)),
    ("lease_try_acquire, name not defined", Locker::Sql(TRY)),
    ("lease, one name for all clients", Locker::Sql(CONTENDED)),
    ("a table made by hand, released without a sync", Locker::Sql(HAND_MADE_LEASE)),
    ("a row, inserted and deleted", Locker::Sql(LOCK_ROW)),
];
/// The target for the rate, in multiples of etcd's.
const TIMES_ETCD: f64 = 3.0;

/// The target for the rate, in multiples of that of Redis. Redis syncs once for all clients that wait.
fn times_redis(clients: u32) -> f64 {
    if clients == 1 { 1.5 } else { 1.0 }
}

/// Makes Redis sync each change before it answers.
const REDIS: [&str; 8] =
    ["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"];

/// Acquires and releases, each in its own transaction. Each client has its own name.
fn acquire_and_release(server: &Server, scale: &Scale, section: &mut Section) {
    let most = scale.lease_clients.iter().max().expect("there are numbers of clients");
    server.cluster.execute(&format!("SELECT lease_define('defined:' || n) FROM generate_series(0, {most} - 1) AS n"));
    let (redis, etcd) = (Redis::start(server, &REDIS), Etcd::start(server));
    let mut others = Vec::new();
    others.extend(
        redis.iter().map(|redis| (format!("Redis {}, appendfsync always", redis.version), Locker::Redis(redis))),
    );
    others.extend(etcd.iter().flat_map(|etcd| {
        [("one lease for all locks", Leasing::Once), ("a lease for each lock", Leasing::Each)]
            .map(|(how, leasing)| (format!("etcd {}, {how}", etcd.version), Locker::Etcd(etcd, leasing)))
    }));
    // New sessions need a second to fill their caches, with many clients.
    let seconds = 3 * scale.seconds;
    for &clients in scale.lease_clients {
        let lockers = IN_SQL.into_iter().map(|(name, locker)| (name.to_owned(), locker));
        let measured = Comparison::measure(2 * scale.rounds, lockers.chain(others.iter().cloned()), |locker| {
            let Cycles { rate, acquire_ms, release_ms } = locker.run(server, clients, seconds);
            [rate, acquire_ms, release_ms]
        });
        for (other, locker) in &others {
            let [[rate, ..], [other_rate, ..]] = [JUDGED, other].map(|name| measured.of(name));
            let times = if matches!(locker, Locker::Redis(_)) { times_redis(clients) } else { TIMES_ETCD };
            section.at_least(times, format!("{JUDGED} / {other} (rate, clients: {clients})"), rate / other_rate);
        }
        section.add(measured.table(
            format!("Leases acquired and released, clients: {clients}"),
            how(seconds, redis.is_some(), etcd.is_some()),
            ["per second", "acquire, ms", "release, ms"],
        ));
    }
}

fn how(seconds: u32, with_redis: bool, with_etcd: bool) -> String {
    let redis = match with_redis {
        true => format!(
            "Redis runs `SET name token NX PX {TTL_S}000`, and a script that compares the token before it deletes the \
             key. It syncs its append-only file before each answer."
        ),
        false => "Redis is not installed here.".to_owned(),
    };
    let etcd = match with_etcd {
        true => {
            "etcd is a single node, reached through gRPC. It puts a key if there is none, under a lease, and deletes \
             the key if the value matches. With a lease for each lock, it grants the lease before and revokes it to \
             release. It syncs its raft log before each answer."
        }
        false => "etcd is not installed here.",
    };
    format!(
        "Each client has its own name, for {seconds} s. idgen: pgbench, prepared statements, each a transaction. A \
         grant waits until its WAL is flushed; a release does not. The table made by hand takes one \
         `INSERT ... ON CONFLICT DO UPDATE ... WHERE` the row is free, and one UPDATE to release. The row is the least \
         that a lock in a table costs. {redis} {etcd} All have unix sockets and the same disk. With several \
         clients, one sync can serve several answers."
    )
}

const LIVE: usize = 10_000;
const BATCH: usize = 100;

/// Renews one lease per transaction, and many.
fn renewals(server: &Server, scale: &Scale, section: &mut Section) {
    let mut client = server.client();
    let live = Live::acquire(&mut client);
    // The first change of a page after a checkpoint writes the whole page to WAL.
    live.renew_in_batches(&mut client);
    let single = CLIENTS.map(|clients| (format!("lease_renew, clients: {clients}"), Some(clients)));
    let many = (format!("lease_renew_many, {BATCH} of {LIVE} at a time, clients: 1"), None);
    let measured = Comparison::measure(2 * scale.rounds, single.into_iter().chain([many]), |clients| {
        let ((rate, count), wal) = wal_bytes(&mut client, |client| match clients {
            Some(clients) => live.renew_singly(server, *clients, scale.seconds),
            None => live.renew_in_batches(client),
        });
        [rate, wal / count]
    });
    live.release(&mut client);
    section.add(measured.table(
        "Renewals",
        format!(
            "{LIVE} leases are held. lease_renew: pgbench, prepared statements, {} s; each client renews its own \
             lease. lease_renew_many: one client renews all leases once, with a prepared statement. Each statement is \
             a transaction and waits until its WAL is flushed.",
            scale.seconds
        ),
        ["renewals per second", "WAL bytes per renewal"],
    ));
}

/// Leases that are held.
struct Live {
    names: Vec<String>,
    tokens: Vec<i64>,
}

impl Live {
    /// Acquires them with a ttl that is longer than the measurement.
    fn acquire(client: &mut Client) -> Self {
        let names: Vec<String> = (0..LIVE).map(|i| format!("live:{i}")).collect();
        let acquire =
            format!("SELECT (lease_acquire('live:' || i, '1 hour')).token FROM generate_series(0, {LIVE} - 1) AS i");
        Self { names, tokens: column(client, &acquire) }
    }

    /// Renewals per second, and in total.
    fn renew_singly(&self, server: &Server, clients: u32, seconds: u32) -> (f64, f64) {
        let tokens: Vec<String> = self.tokens[..clients as usize].iter().map(i64::to_string).collect();
        let token = format!("('{{{}}}'::bigint[])[:client_id::int + 1]", tokens.join(","));
        let renew = format!("SELECT lease_renew('live:' || :client_id::text, {token})");
        let summary = pgbench::run(server, &renew, clients, seconds);
        (summary.rate, summary.transactions)
    }

    fn renew_in_batches(&self, client: &mut Client) -> (f64, f64) {
        let statement = client.prepare("SELECT * FROM lease_renew_many($1, $2)").expect("cannot prepare");
        let start = Instant::now();
        for (names, tokens) in self.names.chunks(BATCH).zip(self.tokens.chunks(BATCH)) {
            let renewed = client.query(&statement, &[&names, &tokens]).expect("lease_renew_many failed");
            assert_eq!(renewed.len(), BATCH, "all leases are held");
        }
        (LIVE as f64 / start.elapsed().as_secs_f64(), LIVE as f64)
    }

    fn release(self, client: &mut Client) {
        let release = "SELECT lease_release(name, token) FROM unnest($1::text[], $2::bigint[]) AS live (name, token)";
        client.execute(release, &[&self.names, &self.tokens]).expect("lease_release failed");
    }
}

/// Tries to acquire a lease that another session holds.
fn failed_attempts(server: &Server, scale: &Scale, section: &mut Section) {
    /// Above 0: the server itself writes some WAL now and then.
    const NO_WAL: f64 = 0.1;
    let mut client = server.client();
    let token: i64 = value(&mut client, "SELECT token FROM lease_acquire('bench', '1 hour')");
    let contenders = CLIENTS.map(|clients| (format!("lease_try_acquire, clients: {clients}"), clients));
    let measured = Comparison::measure(2 * scale.rounds, contenders, |&clients| {
        let attempt = "SELECT token FROM lease_try_acquire('bench')";
        let (summary, wal) = wal_bytes(&mut client, |_| pgbench::run(server, attempt, clients, scale.seconds));
        [summary.rate, wal / summary.transactions]
    });
    let _: bool = value(&mut client, &format!("SELECT lease_release('bench', {token})"));
    for (name, [_, wal]) in measured.iter() {
        section.at_most(NO_WAL, format!("WAL bytes per failed attempt, {name}"), wal.clone());
    }
    section.add(measured.table(
        "Failed attempts",
        format!("pgbench, prepared statements, {} s, on one lease that is held.", scale.seconds),
        ["attempts per second", "WAL bytes per attempt"],
    ));
}

/// How soon a waiter has what a killed client held.
fn take_over(server: &Server, scale: &Scale, section: &mut Section) {
    /// How it is acquired, and released by the waiter.
    const CONTENDERS: [(&str, (&str, &str)); 2] = [
        (
            "lease, bound to the session",
            (
                "SELECT token FROM lease_acquire('bench', bind_session => true)",
                "SELECT lease_release(name, token) FROM idgen.lease WHERE name = 'bench'",
            ),
        ),
        ("pg_advisory_lock", ("SELECT pg_advisory_lock(1)", "SELECT pg_advisory_unlock(1)")),
    ];
    let measured = Comparison::measure(3 * scale.rounds, CONTENDERS, |(acquire, release)| {
        [ms_to_next_grant(server, acquire, release)]
    });
    section.add(measured.table(
        "From kill -9 of the holder's client to the next grant",
        "psql is the holder, and another client waits. The time ends when that client has its answer. It includes the \
         end of the holder's session, which is all that pg_advisory_lock waits for. The grant of a lease also waits \
         until its WAL is flushed.",
        ["ms"],
    ));
}

fn ms_to_next_grant(server: &Server, acquire: &str, release: &str) -> f64 {
    let mut psql = server.cluster.program("psql");
    let psql = psql.args(["--no-psqlrc", "--quiet", "postgres"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = psql.spawn().expect("cannot start psql");
    let mut input = holder.stdin.take().expect("stdin is piped");
    writeln!(input, "{acquire};\n\\echo held").expect("cannot write to psql");
    let mut lines = BufReader::new(holder.stdout.take().expect("stdout is piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line == "held")), "psql ended early");

    let (mut waiter, mut observer) = (server.client(), server.client());
    let pid = backend_pid(&mut waiter);
    let (granted, grants) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            execute(&mut waiter, acquire);
            granted.send(Instant::now()).expect("the receiver is alive");
            execute(&mut waiter, release);
        });
        let is_waiting = format!(
            "SELECT coalesce(wait_event_type IN ('Lock', 'Extension'), false) FROM pg_stat_activity WHERE pid = {pid}"
        );
        server.cluster.wait_for(PATIENCE, "the waiter to wait", || value(&mut observer, &is_waiting));
        let killed = Instant::now();
        holder.kill().expect("cannot kill psql");
        let ms = grants.recv().expect("the waiter failed").duration_since(killed).as_secs_f64() * 1000.0;
        holder.wait().expect("cannot wait for psql");
        ms
    })
}

/// All clients want one lease: the rate of hand-offs, and what a grant costs with many waiters.
fn contended(server: &Server, scale: &Scale, section: &mut Section) {
    const SCRIPT: &str = "SELECT token FROM lease_acquire('bench') \\gset\nSELECT lease_release('bench', :token)";
    const COLUMNS: [&str; 4] = ["hand-offs per second", "fairness", "probes per grant", "WAL bytes per grant"];
    /// The target for the cost of a grant with the most waiters, in multiples of that with the fewest.
    const SAME: f64 = 1.2;
    let mut client = server.client();
    let contenders = WAITERS.map(|waiters| (name_with(waiters), waiters));
    let measured = Comparison::measure(2 * scale.rounds, contenders, |&waiters| {
        let (grants_before, probes_before) = grants_and_probes(&mut client);
        let ([rate, fairness], wal) = wal_bytes(&mut client, |_| contend(server, SCRIPT, waiters, scale.seconds));
        let (grants, probes) = grants_and_probes(&mut client);
        let grants = grants - grants_before;
        [rate, fairness, (probes - probes_before) / grants, wal / grants]
    });
    for (name, [_, fairness, ..]) in measured.iter() {
        section.at_least(FAIR, format!("fairness of the lease, {name}"), fairness.clone());
    }
    let [few, many] = [WAITERS[0], WAITERS[WAITERS.len() - 1]];
    for column in [2, 3] {
        let [few_cost, many_cost] = [few, many].map(|waiters| &measured.of(&name_with(waiters))[column]);
        section.at_most(SAME, format!("waiters: {many} / {few} ({})", COLUMNS[column]), many_cost / few_cost);
    }
    section.add(measured.table(
        "A contended lease",
        format!(
            "pgbench, prepared statements, {} s each. All clients acquire and release the same lease, in two \
             transactions. Its name is not defined. A probe reads the rows of the lease. {FAIRNESS}",
            scale.seconds
        ),
        COLUMNS,
    ));
}

fn name_with(waiters: u32) -> String {
    format!("waiters: {waiters}")
}

/// The counters of `idgen.stat_lease`.
fn grants_and_probes(client: &mut Client) -> (f64, f64) {
    let row = row(client, "SELECT (grants + take_overs)::float8, probes::float8 FROM idgen.stat_lease");
    (row.get(0), row.get(1))
}

/// All clients want one lease, beside the least that a lock with a durable token costs: an advisory lock, and a row.
fn hand_over(server: &Server, scale: &Scale, section: &mut Section) {
    const BY_HAND: &str = "pg_advisory_lock and a row that is synced";
    const COLUMNS: [&str; 2] = ["hand-overs per second", "fairness"];
    server.cluster.execute("SELECT lease_define('handed over')");
    let script = "SELECT token FROM lease_acquire('handed over') \\gset\nSELECT lease_release('handed over', :token)";
    for &clients in scale.lease_clients.iter().filter(|clients| **clients > 1) {
        let contenders = [(JUDGED, script), (BY_HAND, LOCK_WITH_TOKEN)];
        let measured = Comparison::measure(4 * scale.rounds, contenders, |script| {
            contend(server, script, clients - 1, 2 * scale.seconds)
        });
        let [[rate, fairness], [by_hand, _]] = [JUDGED, BY_HAND].map(|name| measured.of(name));
        section.at_least(1.0, format!("{JUDGED} / {BY_HAND} (rate, clients: {clients})"), rate / by_hand);
        section.at_least(FAIR, format!("fairness of the lease, clients: {clients}"), fairness.clone());
        section.add(measured.table(
            format!("A lease handed over, clients: {clients}"),
            format!(
                "pgbench, prepared statements, {} s each. All clients want the same lease, and release it at once, in two \
                 transactions. By hand, a function locks and then updates a row; its commit waits for the sync, as a \
                 grant does, and the lock is released after it. It has neither a deadline nor a fence. {FAIRNESS}",
                2 * scale.seconds
            ),
            COLUMNS,
        ));
    }
}
