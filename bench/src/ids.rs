//! Snowflake ids compared with sequences, UUIDs and a PL/pgSQL function.

use crate::generators::{Generators, inserts};
use crate::harness::Part;
use crate::harness::comparison::Comparison;
use crate::harness::pgbench::{self, Background};
use crate::harness::report::{Row, Section, Table};
use crate::harness::samples::Samples;
use crate::harness::scale::Scale;
use crate::harness::server::{self, Server, cpu_ns, seconds};
use crate::harness::source::{Contender, EMPTY_LOOP, NOOP, SERIES, Source};
use crate::peers::pgedge;
use crate::{copies, lead, public_ids};
use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, row, value};
use postgres::{Client, SimpleQueryMessage};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const PARTS: [Part; 10] = [
    ("calls in a loop", loops),
    ("a leased worker id", leased),
    ("many clients", loads),
    ("ids ahead of the clock", lead::ahead),
    ("the ceiling of the default layout", ceiling),
    ("inserts", insert),
    ("COPY", copies::copies),
    ("parallel plans", parallel),
    ("the high-water mark", mark),
    ("public ids", public_ids::texts),
];

const SNOWFLAKE: &str = "snowflake_next, `snowflake`";
const SECONDS: &str = "snowflake_next, `seconds`";
const SECONDS_MANY: &str = "snowflake_next_many, `seconds`";
const UUIDV7: &str = "uuidv7_next";
const PLPGSQL: &str = "PL/pgSQL over a sequence";

/// `seconds` is judged because no call waits there; the default layout has a ceiling.
fn generators(server: &Server) -> Generators {
    let uuidv7 = server.has_function("uuidv7").then_some(("uuidv7", Source::Expression("uuidv7()")));
    let others =
        [(PLPGSQL, Source::Expression("plpgsql_next()")), ("gen_random_uuid", Source::Expression("gen_random_uuid()"))];
    Generators {
        next: SECONDS,
        max_of_noop: 1.3,
        functions: vec![
            (SECONDS, Source::Expression("snowflake_next('seconds')")),
            (SNOWFLAKE, Source::Expression("snowflake_next()")),
            (SECONDS_MANY, Source::SetReturning("snowflake_next_many($n, 'seconds')")),
            ("snowflake_next_many, `snowflake`", Source::SetReturning("snowflake_next_many($n)")),
            (UUIDV7, Source::Expression("uuidv7_next()")),
            ("uuidv7_next, `node`", Source::Expression("uuidv7_next(node => true)")),
            ("uuidv7_next_many", Source::SetReturning("uuidv7_next_many($n)")),
        ],
        others: others.into_iter().chain(uuidv7).chain(pgedge::contender(server)).collect(),
    }
}

fn loops(server: &Server, scale: &Scale, section: &mut Section) {
    let note = "The default layout draws ids ahead of the clock here.";
    let loops = generators(server).loops(server, scale, note, section);
    let many = loops.cpu(SERIES) / loops.cpu(SECONDS_MANY);
    section.at_least(0.7, format!("{SERIES} / {SECONDS_MANY} (CPU time in a loop)"), many);
    let uuid = loops.cpu(UUIDV7) / loops.cpu(NOOP);
    section.at_most(2.5, format!("{UUIDV7} / {NOOP} (CPU time in a loop)"), uuid);
}

fn loads(server: &Server, scale: &Scale, section: &mut Section) {
    let note = "The default layout may run one second ahead of the clock here.";
    generators(server).loads(server, scale, note, section);
}

fn insert(server: &Server, scale: &Scale, section: &mut Section) {
    let mut keys = vec![
        (SNOWFLAKE, "bigint DEFAULT snowflake_next()"),
        (SECONDS, "bigint DEFAULT snowflake_next('seconds')"),
        (PLPGSQL, "bigint DEFAULT plpgsql_next()"),
        (UUIDV7, "uuid DEFAULT uuidv7_next()"),
        ("gen_random_uuid", "uuid DEFAULT gen_random_uuid()"),
    ];
    keys.extend(server.has_function("uuidv7").then_some(("uuidv7", "uuid DEFAULT uuidv7()")));
    keys.extend(pgedge::contender(server).map(|_| pgedge::DEFAULT));
    inserts(server, scale, keys, &[SNOWFLAKE, SECONDS], section);
}

/// What a leased worker id costs a call. The hot path reads one word, whether the worker id is leased or set.
/// The empty loop draws no ids: it shows how much the two servers differ by themselves.
fn leased(server: &Server, scale: &Scale, section: &mut Section) {
    const CONTENDERS: [Contender; 3] = [
        (EMPTY_LOOP, Source::Expression("1")),
        ("`snowflake_next('seconds')`", Source::Expression("snowflake_next('seconds')")),
        ("`snowflake_next()`", Source::Expression("snowflake_next()")),
    ];
    server.cluster.execute("SELECT worker_pool_define('servers', count => 2)");
    let leased = with_leased_worker_id(server);
    let mut sessions = [server.client(), leased.client()].map(|mut client| (backend_pid(&mut client), client));
    // The first call of a session fills its caches.
    for (_, client) in &mut sessions {
        CONTENDERS.iter().for_each(|(_, source)| _ = seconds(client, &source.looped(1000).0));
    }
    let cpu = Comparison::measure(3 * scale.rounds, CONTENDERS, |source| {
        let (statement, calls) = source.looped(scale.calls);
        sessions.each_mut().map(|(pid, client)| {
            let before = cpu_ns(*pid);
            seconds(client, &statement);
            (cpu_ns(*pid) - before) / calls as f64
        })
    });
    for (name, [set, leased]) in cpu.iter().filter(|(name, _)| *name != EMPTY_LOOP) {
        section.at_most(1.05, format!("worker id leased / set (CPU time of {name})"), leased / set);
    }
    section.add(Table::new(
        "A leased worker id",
        format!(
            "The loop above, with {} calls, on two servers in turn. One has its worker id from a setting, the other \
             leases it from a pool on the first. CPU time is that of the backend.",
            scale.calls
        ),
        ["CPU ns, set", "CPU ns, leased", "leased / set"],
        cpu.rows(|[set, leased]| vec![set.clone(), leased.clone(), leased / set]),
    ));
}

fn with_leased_worker_id(coordinator: &Server) -> Cluster {
    let cluster = server::builder()
        .conf("idgen.worker_pool", "servers")
        .conf("idgen.coordinator", &coordinator.cluster.connect_string("postgres", "postgres"))
        .start_with_extension();
    let mut client = cluster.client();
    let state = "SELECT state FROM idgen.stat_worker";
    cluster.wait_for(PATIENCE, "a worker id", || value::<String>(&mut client, state) == "leased");
    cluster
}

/// The rate of the default layout if more ids are wanted than it has.
fn ceiling(server: &Server, scale: &Scale, section: &mut Section) {
    /// 4096 ids per millisecond, in millions per second.
    const CEILING: f64 = 4.096;
    /// Values of `idgen.max_drift`, and one more id than each allows ahead of the clock.
    const DRIFTS: [(&str, u64); 2] = [("0", 1), ("1s", 4_096_001)];
    let names = DRIFTS.map(|(drift, _)| format!("max_drift {drift}"));
    let clients = scale.clients.iter().map(|&clients| (format!("clients: {clients}"), clients));
    let rates = Comparison::measure(scale.rounds, clients, |&clients| {
        DRIFTS.map(|(drift, lead)| {
            server.set("idgen.max_drift", drift);
            sustained_rate(server, clients, lead, scale.seconds)
        })
    });
    server.set("idgen.max_drift", "1s");
    for (clients, rates) in rates.iter() {
        for (name, rate) in names.iter().zip(rates) {
            let what = format!("share of the default layout's ceiling, {clients}, {name}");
            section.at_least(0.95, what, rate.map(|rate| rate / CEILING));
        }
    }
    section.add(Table::new(
        "Million ids per second at the default layout's ceiling",
        format!(
            "pgbench draws {SUSTAINED_BATCH} ids per statement. First the ids reach `idgen.max_drift`; then \
             `idgen.stat_snowflake` counts them for {} s. The ceiling is {CEILING}.",
            scale.seconds
        ),
        names,
        rates.rows(|rates| rates.to_vec()),
    ));
}

/// Ids per statement: enough that the generator is the bottleneck.
const SUSTAINED_BATCH: u64 = 10_000;

/// Million ids per second once `lead` ids have brought the generator to `idgen.max_drift`.
fn sustained_rate(server: &Server, clients: u32, lead: u64, seconds: u32) -> f64 {
    let statement = format!("SELECT count(snowflake_next()) FROM generate_series(1, {SUSTAINED_BATCH})");
    let load = Background::start(server, &statement, clients);
    let mut client = server.client();
    // If the ids are further ahead from before, this waits until the clock has caught up.
    execute(&mut client, &format!("SELECT count(*) FROM snowflake_next_many({lead})"));
    let (before, start) = issued(&mut client);
    sleep(Duration::from_secs(seconds.into()));
    let (after, end) = issued(&mut client);
    load.stop(server);
    (after - before) / (end - start) / 1e6
}

/// How many ids of the default layout have been issued, and the time in seconds.
fn issued(client: &mut Client) -> (f64, f64) {
    let sql = "SELECT issued::float8, extract(epoch FROM clock_timestamp())::float8 FROM idgen.stat_snowflake \
               WHERE layout = (SELECT spec FROM snowflake_layout())";
    let row = row(client, sql);
    (row.get(0), row.get(1))
}

/// Whether a plan with a default id still runs in parallel.
fn parallel(server: &Server, scale: &Scale, section: &mut Section) {
    /// With these costs the planner prefers a parallel plan for a table of any size.
    const COSTS: &str =
        "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0";
    const CALLS: [(&str, &str); 6] = [
        (NOOP, "noop()"),
        (SNOWFLAKE, "snowflake_next()"),
        (SECONDS, "snowflake_next('seconds')"),
        ("nextval", "nextval('seq_1')"),
        ("nextval, CACHE 32", "nextval('seq_32')"),
        ("gen_random_uuid", "gen_random_uuid()"),
    ];
    let mut client = server.client();
    execute(&mut client, COSTS);
    execute(&mut client, &format!("CREATE TABLE source AS SELECT n FROM generate_series(1, {}) AS n", scale.rows));
    execute(&mut client, "VACUUM ANALYZE source");
    let runs = Comparison::measure(scale.rounds, CALLS, |call| create_table_as(&mut client, call));
    execute(&mut client, "DROP TABLE source");
    let [_, workers] = runs.of(SNOWFLAKE);
    section.at_least(1.0, "parallel workers of CREATE TABLE AS with snowflake_next", workers.clone());
    section.add(runs.table(
        format!("CREATE TABLE AS with an id for each of {} rows", scale.rows),
        format!("`EXPLAIN (ANALYZE, TIMING OFF) CREATE TABLE t AS SELECT f() FROM source`, after `{COSTS}`."),
        ["s", "workers launched"],
    ));
}

/// Seconds, and the number of parallel workers.
fn create_table_as(client: &mut Client, call: &str) -> [f64; 2] {
    let sql =
        format!("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) CREATE TABLE made AS SELECT {call} AS id FROM source");
    let answer = client.simple_query(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    execute(client, "DROP TABLE made");
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: Value = serde_json::from_str(text.expect("EXPLAIN returned no plan")).expect("the plan is JSON");
    let milliseconds = plan[0]["Execution Time"].as_f64().expect("the plan has no execution time");
    // Only a parallel plan has a Gather node at its top.
    let workers = plan[0]["Plan"]["Workers Launched"].as_f64().unwrap_or(0.0);
    [milliseconds / 1000.0, workers]
}

/// What the high-water mark costs: the first id after a pause waits until it is written.
fn mark(server: &Server, scale: &Scale, section: &mut Section) {
    /// The default of `idgen.clock_window`.
    const WINDOW: Duration = Duration::from_secs(3);
    let mut client = server.client();
    let file = File::create(server.cluster.data_dir().join("bench-fsync")).expect("cannot write the data directory");
    for _ in 0..2 {
        write_and_sync(&file);
    }
    seconds(&mut client, NEXT);
    let pauses: Vec<Pause> = (0..scale.pauses).map(|round| pause(&mut client, &file, round % 2 == 0)).collect();
    let (before, _) = mark_writes(&mut client);
    pgbench::run(server, NEXT, 2, scale.long.as_secs() as u32);
    let writes_under_load = mark_writes(&mut client).0 - before;

    let of = |value: fn(&Pause) -> f64| Samples::new(pauses.iter().map(value));
    section.at_most(1.0, "writes of the mark for the first id after a pause", of(|pause| pause.writes));
    section.at_most(
        1.5,
        "first id after a pause, less the time of the next / writing the mark (time)",
        of(|pause| (pause.first - pause.next) / pause.writing),
    );
    let max_writes = (scale.long.as_secs() / WINDOW.as_secs() + 1) as f64;
    let what = format!("writes of the mark in {:?} of load", scale.long);
    section.at_most(max_writes, what, Samples::new([writes_under_load]));
    section.add(Table::new(
        "An id after a pause",
        format!("One session after {PAUSE:?} without ids. Each statement runs once; the time is that of its client."),
        ["ms"],
        vec![
            Row::new("no-op", vec![of(|pause| pause.noop)]),
            Row::new("first id", vec![of(|pause| pause.first)]),
            Row::new("of that, writing the mark, by `idgen.stat_clock`", vec![of(|pause| pause.writing)]),
            Row::new("next id", vec![of(|pause| pause.next)]),
            Row::new("two blocks written and synced by the benchmark", vec![of(|pause| pause.sync)]),
        ],
    ));
}

/// Longer than a window of the mark and its reserve, so that the next id waits for the mark.
const PAUSE: Duration = Duration::from_secs(5);
const NEXT: &str = "SELECT snowflake_next()";

/// What followed one pause. Times are in milliseconds.
struct Pause {
    noop: f64,
    first: f64,
    /// How often the mark was written for the first id, and how long that took.
    writes: f64,
    writing: f64,
    next: f64,
    sync: f64,
}

/// The benchmark syncs its file before the ids or after them, because the first sync after a pause can be slower.
fn pause(client: &mut Client, file: &File, sync_first: bool) -> Pause {
    sleep(PAUSE);
    let synced = sync_first.then(|| write_and_sync(file));
    // Warms up the session, whose caches are cold after the pause.
    let noop = seconds(client, "SELECT noop()") * 1e3;
    let before = mark_writes(client);
    let first = seconds(client, NEXT) * 1e3;
    let after = mark_writes(client);
    let next = seconds(client, NEXT) * 1e3;
    let sync = synced.unwrap_or_else(|| write_and_sync(file));
    Pause { noop, first, writes: after.0 - before.0, writing: after.1 - before.1, next, sync }
}

/// Writes as the mark is written: two copies of a record, in separate blocks. Returns milliseconds.
fn write_and_sync(file: &File) -> f64 {
    let start = Instant::now();
    for offset in [0, 4096] {
        file.write_all_at(&[1; 512], offset).expect("cannot write the file");
    }
    file.sync_all().expect("cannot sync the file");
    start.elapsed().as_secs_f64() * 1e3
}

/// How often the mark was written, and how many milliseconds that took.
fn mark_writes(client: &mut Client) -> (f64, f64) {
    let sql = "SELECT mark_writes::float8, 1000 * extract(epoch FROM mark_write_time)::float8 FROM idgen.stat_clock";
    let row = row(client, sql);
    (row.get(0), row.get(1))
}
