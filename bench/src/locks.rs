//! Named locks compared with PostgreSQL's advisory locks, for which the application hashes the name, and with Redis.

use crate::harness::Part;
use crate::harness::comparison::{Comparison, rows_of_all};
use crate::harness::loops::Loops;
use crate::harness::pgbench;
use crate::harness::report::{Row, Section, Table};
use crate::harness::scale::Scale;
use crate::harness::server::Server;
use crate::harness::source::{Contender, EMPTY_LOOP, Source};
use crate::locking::{CLIENTS, FAIR, FAIRNESS, TTL_S, WAITERS, contend, cycles};
use crate::peers::redis::{Redis, RedisLock};

pub const PARTS: [Part; 3] =
    [("calls in a loop", loops), ("round trips", round_trips), ("a contended lock", contended)];

/// The target for the time of a named lock, in multiples of `pg_advisory_lock`.
const MAX_OF_ADVISORY: f64 = 1.15;
const NAMED: &str = "named lock";
const ADVISORY: &str = "pg_advisory_lock";

/// Acquires and releases locks in a loop on the server.
fn loops(server: &Server, scale: &Scale, section: &mut Section) {
    let names = LOOPS.map(|[(named, _), (advisory, _)]| (named, advisory));
    let contenders = [(EMPTY_LOOP, Source::Expression("1"))].into_iter().chain(LOOPS.into_iter().flatten());
    let loops = Loops::measure(server, scale, contenders.collect());
    let mut rows = Vec::new();
    for (named, advisory) in names {
        let (cpu, advisory) = (loops.cpu(named), loops.cpu(advisory));
        section.at_most(MAX_OF_ADVISORY, format!("{named} / {ADVISORY} (CPU time in a loop)"), cpu / advisory);
        rows.push(Row::new(named, vec![cpu.clone(), advisory.clone(), cpu / advisory]));
    }
    section.add(Table::new(
        "Acquire and release in a loop",
        format!(
            "One session. The loops in SQL run `SELECT count(CASE WHEN lock_acquire(name) IS NOT NULL THEN \
             lock_release(name) END) FROM generate_series(1, {})`. Those in PL/pgSQL make a tenth of the calls, each \
             with PERFORM; a lock for the transaction ends with COMMIT. The advisory locks are the same with \
             `pg_advisory_lock(hashtextextended(name, 0))`, where PostgreSQL hashes a constant name only once. CPU \
             time is that of the backend. It includes the loop itself, {} ns in SQL.",
            scale.calls,
            loops.cpu(EMPTY_LOOP)
        ),
        ["named lock, CPU ns", "pg_advisory_lock, CPU ns", "ratio"],
        rows,
    ));
}

/// A lock in PL/pgSQL, which runs a query for each statement.
const fn block(statements: &'static str) -> Source {
    Source::Block { statements, divisor: 10, single: None }
}

/// A named and an advisory lock in SQL, which evaluates `$name` for each row of `generate_series`.
macro_rules! in_sql {
    ($what:literal, $name:literal) => {
        [
            (
                concat!("lock_acquire, ", $what, ", SQL"),
                Source::Expression(concat!(
                    "CASE WHEN lock_acquire(",
                    $name,
                    ") IS NOT NULL THEN lock_release(",
                    $name,
                    ") END"
                )),
            ),
            (
                concat!("pg_advisory_lock, ", $what, ", SQL"),
                Source::Expression(concat!(
                    "CASE WHEN pg_advisory_lock(hashtextextended(",
                    $name,
                    ", 0)) IS NOT NULL ",
                    "THEN pg_advisory_unlock(hashtextextended(",
                    $name,
                    ", 0)) END"
                )),
            ),
        ]
    };
}

/// Pairs of a named and an advisory lock.
const LOOPS: [[Contender; 2]; 5] = [
    in_sql!("one name", "'bench'"),
    in_sql!("1000 names in turn", "'bench:' || generate_series % 1000"),
    in_sql!("a new name each time", "'bench:' || generate_series"),
    [
        ("lock_acquire, one name, PL/pgSQL", block("PERFORM lock_acquire('bench'); PERFORM lock_release('bench');")),
        (
            "pg_advisory_lock, one name, PL/pgSQL",
            block(
                "PERFORM pg_advisory_lock(hashtextextended('bench', 0)); \
                 PERFORM pg_advisory_unlock(hashtextextended('bench', 0));",
            ),
        ),
    ],
    [
        ("lock_acquire_xact, one name, PL/pgSQL", block("PERFORM lock_acquire_xact('bench'); COMMIT;")),
        (
            "pg_advisory_xact_lock, one name, PL/pgSQL",
            block("PERFORM pg_advisory_xact_lock(hashtextextended('bench', 0)); COMMIT;"),
        ),
    ],
];

/// Acquires and releases by statements of clients. Each client has its own name.
fn round_trips(server: &Server, scale: &Scale, section: &mut Section) {
    enum Locker<'a> {
        Sql(&'static str),
        Redis(&'a Redis),
    }
    let redis = Redis::start(server, &["--save", "", "--appendonly", "no"]);
    let scripts = SCOPES.iter().flat_map(|(scope, scripts)| {
        [NAMED, ADVISORY].into_iter().zip(scripts).map(move |(name, script)| (name_in(scope, name), script))
    });
    let contenders = || {
        let scripts = scripts.clone().map(|(name, script)| (name, Locker::Sql(script)));
        scripts.chain(redis.as_ref().map(|redis| (format!("Redis {}", redis.version), Locker::Redis(redis))))
    };
    let rates = CLIENTS.map(|clients| {
        Comparison::measure(2 * scale.rounds, contenders(), |contender| {
            let rate = match contender {
                Locker::Sql(script) => pgbench::run(server, script, clients, scale.seconds).rate,
                Locker::Redis(redis) => cycles(clients, scale.seconds, |client| RedisLock::connect(redis, client)).rate,
            };
            [rate / 1000.0]
        })
    });
    for (rates, clients) in rates.iter().zip(CLIENTS) {
        for (scope, _) in &SCOPES {
            let [[named], [advisory]] = [NAMED, ADVISORY].map(|name| rates.of(&name_in(scope, name)));
            let what = format!("{NAMED} / {ADVISORY} (time by round trips {scope}, clients: {clients})");
            section.at_most(MAX_OF_ADVISORY, what, advisory / named);
        }
    }
    let how_redis = match redis {
        Some(_) => format!(
            "Redis has no persistence here. Each client is a thread with a unix socket, and makes two round trips: \
             `SET name token NX PX {TTL_S}000`, and a script that compares the token before it deletes the key."
        ),
        None => "Redis is not installed here.".to_owned(),
    };
    section.add(Table::new(
        "Thousand locks per second, acquired and released by round trips",
        format!(
            "pgbench, prepared statements, {} s each; each client has its own name. A lock for the session takes two \
             statements, one for the transaction takes one. pgbench runs on the same cores. {how_redis}",
            scale.seconds
        ),
        CLIENTS.map(|clients| format!("clients: {clients}")),
        rows_of_all(&rates),
    ));
}

/// The scripts of a named and of an advisory lock, by scope.
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

fn name_in(scope: &str, name: &str) -> String {
    format!("{name}, {scope}")
}

/// All clients want one lock: the rate of hand-offs, and whether each client gets its share.
fn contended(server: &Server, scale: &Scale, section: &mut Section) {
    const SCRIPTS: [(&str, &str); 2] = [
        (NAMED, "SELECT lock_acquire('bench');\nSELECT lock_release('bench')"),
        (
            ADVISORY,
            "SELECT pg_advisory_lock(hashtextextended('bench', 0));\n\
             SELECT pg_advisory_unlock(hashtextextended('bench', 0))",
        ),
    ];
    let mut rows = Vec::new();
    for waiters in WAITERS {
        // The scheduler makes these rounds differ more than others.
        let hand_offs =
            Comparison::measure(4 * scale.rounds, SCRIPTS, |script| contend(server, script, waiters, scale.seconds));
        let [[named, fairness], [advisory, _]] = [NAMED, ADVISORY].map(|name| hand_offs.of(name));
        let what = format!("{NAMED} / {ADVISORY} (time of a hand-off, waiters: {waiters})");
        section.at_most(MAX_OF_ADVISORY, what, advisory / named);
        section.at_least(FAIR, format!("fairness of the {NAMED}, waiters: {waiters}"), fairness.clone());
        rows.extend(
            hand_offs.iter().map(|(name, cells)| Row::new(format!("{name}, waiters: {waiters}"), cells.to_vec())),
        );
    }
    section.add(Table::new(
        "A contended lock",
        format!(
            "pgbench, prepared statements, {} s each. All clients acquire and release the same lock, in two \
             statements. {FAIRNESS}",
            scale.seconds
        ),
        ["hand-offs per second", "fairness"],
        rows,
    ));
}
