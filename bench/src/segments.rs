//! Segment ids compared with sequences and a counter row.

use crate::generators::{BATCH, Generators, MAX_CLIENTS, inserts};
use crate::harness::Part;
use crate::harness::comparison::{Comparison, rounds};
use crate::harness::pgbench::{self, Background, latencies};
use crate::harness::report::{Row, Section, Table};
use crate::harness::samples::Samples;
use crate::harness::scale::Scale;
use crate::harness::server::{Server, seconds};
use crate::harness::source::{NOOP, Source};
use crate::peers::sql::COUNTER;
use hdrhistogram::Histogram;
use idgen_testkit::sql::{execute, row, value};
use postgres::Client;
use std::thread::sleep;

pub const PARTS: [Part; 5] = [
    ("calls in a loop", loops),
    ("many clients", loads),
    ("the edges of ranges", edges),
    ("latency", latency),
    ("inserts", insert),
];

const NEXT: &str = "segment_next";
const ATTACHED: &str = "segment_next, attached";
/// The tag that all parts but [`edges`] draw from. [`loops`] creates it.
const TAG: &str = "bench";
const EDGES_TAG: &str = "edges";

fn generators() -> Generators {
    Generators {
        next: NEXT,
        max_of_noop: 1.3,
        functions: vec![
            (NEXT, Source::Expression("segment_next('bench')")),
            (ATTACHED, Source::Expression("segment_next('attached')")),
            ("segment_next_many", Source::SetReturning("segment_next_many('bench', $n)")),
        ],
        others: vec![COUNTER],
    }
}

fn loops(server: &Server, scale: &Scale, section: &mut Section) {
    create(&mut server.client(), TAG);
    attach(server);
    let note =
        "WAL includes that of the refill worker. A loop in PL/pgSQL updates the counter row and commits each id.";
    let loops = generators().loops(server, scale, note, section);
    section.at_most(0.1, format!("{NEXT} (WAL bytes per id in a loop)"), loops.wal(NEXT).clone());
    section.at_most(1.1, format!("{ATTACHED} / {NEXT} (CPU time in a loop)"), loops.cpu(ATTACHED) / loops.cpu(NEXT));
}

/// Attaches the tag `attached` to that of another database of the server. Its stock lasts longer than the loops.
fn attach(server: &Server) {
    execute(&mut server.client(), "CREATE DATABASE coordinator");
    execute(
        &mut server.cluster.client_in("coordinator"),
        "CREATE EXTENSION idgen; SELECT segment_create('attached', step => 10000000)",
    );
    server.set("idgen.coordinator", &server.cluster.connect_string("coordinator", "postgres"));
    let mut client = server.client();
    execute(
        &mut client,
        "SELECT segment_attach('attached', '1 minute'), segment_alter('attached', min_step => 10000000)",
    );
    execute(&mut client, "SELECT segment_next('attached')");
}

fn loads(server: &Server, scale: &Scale, section: &mut Section) {
    generators().loads(server, scale, "All clients draw from one tag.", section);
}

fn insert(server: &Server, scale: &Scale, section: &mut Section) {
    inserts(server, scale, vec![(NEXT, "bigint DEFAULT segment_next('bench')")], &[NEXT], section);
}

/// Creates a tag with the default options. It replaces one of the same name, which may have adapted its step.
fn create(client: &mut Client, tag: &str) {
    execute(client, &format!("SELECT segment_drop(tag) FROM idgen.segment WHERE tag = '{tag}'"));
    execute(client, &format!("SELECT segment_create('{tag}')"));
}

/// Whether sessions wait where one range ends and the next begins.
fn edges(server: &Server, scale: &Scale, section: &mut Section) {
    let mut client = server.client();
    let few = scale.clients.iter().copied().filter(|clients| *clients <= MAX_CLIENTS);
    let loads = few.flat_map(|clients| {
        edge_loads().map(|(load, statement)| (format!("{load}, clients: {clients}"), (clients, statement)))
    });
    let under_load = Comparison::measure(1, loads, |(clients, statement)| {
        create(&mut client, EDGES_TAG);
        let load = Background::start(server, statement, *clients);
        sleep(scale.warm_up);
        let counted = counted_during(&mut client, |_| sleep(scale.ranges));
        load.stop(server);
        counted
    });
    let name = format!("the first {} of a new tag, in a loop", scale.calls);
    let new_tag = Comparison::measure(scale.rounds, [(name, ())], |()| {
        create(&mut client, EDGES_TAG);
        // Starts the worker and fills the session's caches.
        seconds(&mut client, &format!("SELECT segment_next('{EDGES_TAG}')"));
        let draw = format!("SELECT count(segment_next('{EDGES_TAG}')) FROM generate_series(1, {})", scale.calls);
        counted_during(&mut client, |client| execute(client, &draw))
    });
    for (load, [ids, _, _, waits, _, wal]) in under_load.iter() {
        section.at_most(0.0, format!("waits at the edges of ranges, {load}"), waits.clone());
        section.at_most(0.1, format!("WAL bytes per id, {load}"), wal / ids);
    }
    let cells = |[ids, seconds, refills, waits, wait_ms, wal]: &[Samples; 6]| {
        let rate = (ids / seconds).map(|rate| rate / 1e6);
        let per_refill = wal / &refills.map(|refills| refills.max(1.0));
        vec![rate, refills.clone(), waits.clone(), wait_ms.clone(), wal / ids, per_refill]
    };
    section.add(Table::new(
        "The edges of ranges",
        format!(
            "What `idgen.stat_segment` counts in {:?} of load by pgbench, after {:?} of load in which the step adapts.",
            scale.ranges, scale.warm_up
        ),
        ["million ids per second", "refills", "waits", "ms waited", "WAL bytes per id", "WAL bytes per refill"],
        under_load.rows(cells).into_iter().chain(new_tag.rows(cells)).collect(),
    ));
}

/// What the clients run, by name.
fn edge_loads() -> [(String, String); 3] {
    [
        ("one id per statement".to_owned(), format!("SELECT segment_next('{EDGES_TAG}')")),
        (
            format!("{BATCH} calls per statement"),
            format!("SELECT count(segment_next('{EDGES_TAG}')) FROM generate_series(1, {BATCH})"),
        ),
        (
            format!("segment_next_many of {BATCH}"),
            format!("SELECT count(i) FROM segment_next_many('{EDGES_TAG}', {BATCH}) AS i"),
        ),
    ]
}

/// Ids, seconds, refills, waits, milliseconds waited and bytes of WAL while `work` runs.
fn counted_during(client: &mut Client, work: impl FnOnce(&mut Client)) -> [f64; 6] {
    let sql = format!(
        "SELECT issued::float8, extract(epoch FROM clock_timestamp())::float8, refills::float8, waits::float8, \
         1000 * extract(epoch FROM wait_time)::float8, (pg_current_wal_insert_lsn() - '0/0')::float8 \
         FROM idgen.stat_segment WHERE tag = '{EDGES_TAG}'"
    );
    let counted = |client: &mut Client| -> [f64; 6] {
        let row = row(client, &sql);
        std::array::from_fn(|column| row.get(column))
    };
    let before = counted(client);
    work(client);
    let after = counted(client);
    std::array::from_fn(|column| after[column] - before[column])
}

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("maximum", 1.0)];

/// The latency of one id while the machine does half of what it can.
fn latency(server: &Server, scale: &Scale, section: &mut Section) {
    const SQL: [&str; 2] = ["SELECT noop()", "SELECT segment_next('bench')"];
    /// Each alone, then both mixed, under the same conditions.
    const LOADS: [&[&str]; 3] = [&[SQL[0]], &[SQL[1]], &SQL];
    let capacities = (0..scale.rounds).map(|_| pgbench::run(server, SQL[0], MAX_CLIENTS, scale.seconds).rate);
    let rate = Samples::new(capacities).median() / 2.0;
    let mut client = server.client();
    let waits = "SELECT waits::float8 FROM idgen.stat_segment WHERE tag = 'bench'";
    let before: f64 = value(&mut client, waits);
    let measured =
        rounds(scale.histograms, &LOADS, |statements| latencies(server, statements, MAX_CLIENTS, rate, scale.ranges));
    let waits = value::<f64>(&mut client, waits) - before;

    let mut rows = Vec::new();
    for (how, noop, next) in [("alone", (0, 0), (1, 0)), ("mixed", (2, 0), (2, 1))] {
        let [noop, next] = [noop, next].map(|(load, statement): (usize, usize)| {
            quantiles(measured[load].iter().map(|histograms| &histograms[statement]))
        });
        let ratios = |of: &[Samples]| -> Vec<Samples> { of.iter().zip(&noop).map(|(of, noop)| of / noop).collect() };
        // The maximum is one answer, and says more about the machine than about the statement.
        for ((name, _), ratio) in QUANTILES.iter().zip(ratios(&next)).take(3) {
            section.at_most(1.1, format!("{NEXT} / {NOOP} ({name} latency, {how})"), ratio);
        }
        for (name, latencies) in [(NOOP, &noop), (NEXT, &next)] {
            rows.push(Row::new(format!("{name}, {how}"), [latencies.to_vec(), ratios(latencies)].concat()));
        }
    }
    let absolute = QUANTILES.map(|(name, _)| format!("{name}, µs"));
    let ratios = QUANTILES.map(|(name, _)| format!("{name}, times the no-op"));
    section.add(Table::new(
        "Latency at half of the machine's capacity",
        format!(
            "pgbench, {MAX_CLIENTS} clients, one id per statement, {rate:.0} statements per second: half of the \
             no-op's rate without a limit. Statements are scheduled in advance, and the latency counts from the \
             scheduled time. {:?} each, without the first second. Each statement alone, then both mixed at random. \
             {waits} statements waited for a refill.",
            scale.ranges
        ),
        absolute.into_iter().chain(ratios),
        rows,
    ));
}

fn quantiles<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>> + Clone) -> [Samples; 4] {
    QUANTILES.map(|(_, quantile)| Samples::new(histograms.clone().map(|all| all.value_at_quantile(quantile) as f64)))
}
