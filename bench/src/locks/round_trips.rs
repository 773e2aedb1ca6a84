//! Taking and letting go by statements of clients that do not meet: each has a name of its own.

use super::MOST;
use crate::cycles::{TTL_S, cycles};
use crate::pgbench::Load;
use crate::redis::Redis;
use crate::redis_lock::RedisLock;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;

const CLIENTS: [u32; 2] = [1, 8];

enum Client<'a> {
    Pgbench(&'static str),
    Redis(&'a Redis),
}

/// What is compared, by scope: named, and PostgreSQL's own.
const SCOPES: [(&str, [&str; 2]); 2] = [
    (
        "for the session",
        [
            "SELECT lock_acquire('bench:' || :client_id::text);\nSELECT lock_release('bench:' || :client_id::text)",
            "SELECT pg_advisory_lock(hashtextextended('bench:' || :client_id::text, 0));\n\
             SELECT pg_advisory_unlock(hashtextextended('bench:' || :client_id::text, 0))",
        ],
    ),
    (
        "for the transaction",
        [
            "SELECT lock_acquire_xact('bench:' || :client_id::text)",
            "SELECT pg_advisory_xact_lock(hashtextextended('bench:' || :client_id::text, 0))",
        ],
    ),
];
const WHO: [&str; 2] = ["named lock", "pg_advisory_lock"];

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let redis = Redis::start(server, &["--save", "", "--appendonly", "no"]);
    let statements = SCOPES.iter().flat_map(|(_, statements)| *statements);
    let mut contenders: Vec<Client> = statements.map(Client::Pgbench).collect();
    contenders.extend(redis.as_ref().map(Client::Redis));
    let rates = CLIENTS.map(|clients| -> Vec<Samples> {
        let measured = rounds(2 * scale.rounds, &contenders, |contender| match contender {
            Client::Pgbench(statement) => Load::start(server, statement, clients, scale.seconds).rate() / 1000.0,
            Client::Redis(redis) => {
                cycles(clients, scale.seconds, |client| RedisLock::connect(redis, client)).rate / 1000.0
            }
        });
        measured.into_iter().map(Samples::new).collect()
    });

    let mut figures = Vec::new();
    for (rates, clients) in rates.iter().zip(CLIENTS) {
        for ((scope, _), pair) in SCOPES.iter().zip(rates.chunks(WHO.len())) {
            let what =
                format!("time of a named lock, to pg_advisory_lock's, by round trips {scope}, clients: {clients}");
            figures.push(Figure::at_most(MOST, what, pair[1].over(&pair[0])));
        }
    }
    let names = SCOPES.iter().flat_map(|(scope, _)| WHO.map(|who| format!("{who}, {scope}")));
    let names = names.chain(redis.as_ref().map(|redis| format!("Redis {}", redis.version)));
    let row =
        |(index, name): (usize, String)| Row { name, cells: rates.iter().map(|rates| rates[index].clone()).collect() };
    let how_redis = match redis {
        Some(_) => format!(
            "Redis for orientation, without persistence: two round trips over a unix socket, `SET name token NX PX {TTL_S}000` \
             and a script that compares the token before it deletes, from as many threads as clients."
        ),
        None => "Redis is not installed here.".to_owned(),
    };
    let table = Table {
        title: "Thousand locks a second, taken and let go of by round trips".into(),
        how: format!(
            "pgbench, prepared statements, {} s each, every client with a name of its own: two statements for the session, \
             for the transaction one, whose end lets go. The clients have their share of the cores. {how_redis}",
            scale.seconds
        ),
        columns: CLIENTS.map(|clients| format!("clients: {clients}")).into(),
        rows: names.enumerate().map(row).collect(),
    };
    (figures, vec![table])
}
