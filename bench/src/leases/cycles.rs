//! Acquiring and releasing, each in a transaction of its own, by clients that do not meet.

use super::CLIENTS;
use crate::cycles::{Cycles, TTL_S, cycles};
use crate::etcd::Etcd;
use crate::etcd::lock::{EtcdLock, Leasing};
use crate::pgbench::run;
use crate::redis::Redis;
use crate::redis_lock::RedisLock;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;

enum Contender<'a> {
    Own(&'static Own),
    Redis(&'a Redis),
    Etcd(&'a Etcd, Leasing),
}

/// What PostgreSQL does.
struct Own {
    name: &'static str,
    script: &'static str,
    synchronous_commit: &'static str,
}

const DEFINED: &str = "SELECT token FROM lease_acquire('defined:' || :client_id::text) \\gset\n\
                       SELECT lease_release('defined:' || :client_id::text, :token)";
const NOT_DEFINED: &str = "SELECT token FROM lease_acquire('bench:' || :client_id::text) \\gset\n\
                           SELECT lease_release('bench:' || :client_id::text, :token)";
const TRY: &str = "SELECT token FROM lease_try_acquire('bench:' || :client_id::text) \\gset\n\
                   SELECT lease_release('bench:' || :client_id::text, :token)";
/// The least that can be durable: nothing that writes a row each time can be faster.
const ROW: &str = "INSERT INTO lock_row VALUES (:client_id, 1) RETURNING token \\gset\n\
                   DELETE FROM lock_row WHERE name = :client_id AND token = :token";

const OWN: [Own; 6] = [
    Own { name: "lease, its name defined", script: DEFINED, synchronous_commit: "on" },
    Own { name: "lease, its name not defined", script: NOT_DEFINED, synchronous_commit: "on" },
    Own { name: "the same by lease_try_acquire", script: TRY, synchronous_commit: "on" },
    Own { name: "lease, its name defined, synchronous_commit = off", script: DEFINED, synchronous_commit: "off" },
    Own {
        name: "lease, its name not defined, synchronous_commit = off",
        script: NOT_DEFINED,
        synchronous_commit: "off",
    },
    Own { name: "a row, inserted and deleted", script: ROW, synchronous_commit: "on" },
];
/// Which of them are compared with other servers, that sync whatever they do.
const JUDGED: [usize; 2] = [0, 1];

/// Synced before it answers, by itself.
const REDIS: [&str; 8] =
    ["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"];

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    server.cluster.execute("CREATE TABLE lock_row (name int PRIMARY KEY, token int)");
    for client in 0..CLIENTS[1] {
        server.cluster.execute(&format!("SELECT lease_define('defined:{client}')"));
    }
    let redis = Redis::start(server, &REDIS);
    let etcd = Etcd::start(server);
    let mut contenders: Vec<Contender> = OWN.iter().map(Contender::Own).collect();
    let mut names: Vec<String> = OWN.iter().map(|own| own.name.to_owned()).collect();
    if let Some(redis) = &redis {
        contenders.push(Contender::Redis(redis));
        names.push(format!("Redis {}, appendfsync always", redis.version));
    }
    if let Some(etcd) = &etcd {
        contenders.extend([Contender::Etcd(etcd, Leasing::Once), Contender::Etcd(etcd, Leasing::Each)]);
        names.extend(
            ["one lease for all locks", "a lease for each"].map(|what| format!("etcd {}, {what}", etcd.version)),
        );
    }

    let (mut figures, mut tables) = (Vec::new(), Vec::new());
    for clients in CLIENTS {
        let measured = rounds(3 * scale.rounds, &contenders, |contender| contender.run(server, clients, scale.seconds));
        let part = |rounds: &[Cycles], of: fn(&Cycles) -> f64| Samples::new(rounds.iter().map(of));
        let rate = |index: usize| part(&measured[index], |cycles| cycles.rate);
        for own in JUDGED {
            figures.extend((OWN.len()..contenders.len()).map(|other| {
                let what = format!("rate of a {}, to that of {}, clients: {clients}", names[own], names[other]);
                Figure::at_least(1.0, what, rate(own).over(&rate(other)))
            }));
        }
        let row = |(name, rounds): (&String, &Vec<Cycles>)| {
            let of: [fn(&Cycles) -> f64; 3] = [|it| it.rate, |it| it.acquire_ms, |it| it.release_ms];
            Row { name: name.clone(), cells: of.map(|of| part(rounds, of)).into() }
        };
        tables.push(Table {
            title: format!("Acquired and released, clients: {clients}"),
            how: how(scale, redis.is_some(), etcd.is_some()),
            columns: ["a second", "acquire, ms", "release, ms"].map(str::to_owned).into(),
            rows: names.iter().zip(&measured).map(row).collect(),
        });
    }
    (figures, tables)
}

fn how(scale: &Scale, with_redis: bool, with_etcd: bool) -> String {
    let redis = if with_redis {
        format!(
            "Redis: `SET name token NX PX {TTL_S}000` and a script that compares the token before it deletes; each is in its \
             append-only file, and that is synced, before the answer."
        )
    } else {
        "Redis is not installed here.".to_owned()
    };
    let etcd = if with_etcd {
        "etcd, a single node: gRPC; a transaction that puts the key if there is none, under a lease, and one that deletes it if \
         the value is its own, where the client has one lease for all its locks; where it has one for each, a grant and the \
         put, and the lease revoked. Each of these is in the raft log, and that is synced, before the answer."
    } else {
        "etcd is not installed here."
    };
    format!(
        "Every client has a name of its own, for {} s. idgen: pgbench, prepared statements, each a transaction; the WAL is \
         synced before a grant is told, also with synchronous_commit = off, which leaves the release to the next \
         sync; a row by the same clients is what any lock in a table costs at the least. {redis} {etcd} Both have a unix socket as PostgreSQL has, the same disk, and as many threads as clients. With other clients \
         at work a sync serves several.",
        scale.seconds
    )
}

impl Contender<'_> {
    fn run(&self, server: &Server, clients: u32, seconds: u32) -> Cycles {
        match self {
            Contender::Own(own) => own.run(server, clients, seconds),
            Contender::Redis(redis) => cycles(clients, seconds, |client| RedisLock::connect(redis, client)),
            Contender::Etcd(etcd, leasing) => {
                cycles(clients, seconds, |client| EtcdLock::connect(etcd, client, *leasing))
            }
        }
    }
}

impl Own {
    fn run(&self, server: &Server, clients: u32, seconds: u32) -> Cycles {
        let Self { script, synchronous_commit, .. } = self;
        server.cluster.execute(&format!("ALTER DATABASE postgres SET synchronous_commit = {synchronous_commit}"));
        let ran = run(server, script, clients, seconds);
        server.cluster.execute("ALTER DATABASE postgres RESET synchronous_commit");
        Cycles { rate: ran.rate, acquire_ms: ran.statements_ms[0], release_ms: ran.statements_ms[1] }
    }
}
