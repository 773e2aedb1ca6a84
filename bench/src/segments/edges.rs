//! Whether anybody waits where one range ends and the next begins.

use super::renew;
use crate::loads::{BATCH, MOST_CLIENTS};
use crate::pgbench::Load;
use crate::report::{Figure, Row, Table};
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::{Server, seconds};
use idgen_testkit::sql::row;
use postgres::Client;
use std::thread::sleep;

const TAG: &str = "edges";

/// What happened to the tag during some work.
struct Edges {
    ids: f64,
    seconds: f64,
    refills: f64,
    waits: f64,
    wait_ms: f64,
    wal: f64,
}

const COLUMNS: [&str; 6] = ["million ids a second", "refills", "waits", "ms waited", "WAL bytes an id", "a refill"];

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let mut client = server.client();
    let mut figures = Vec::new();
    let mut rows = Vec::new();
    for clients in scale.clients.iter().copied().filter(|clients| *clients <= MOST_CLIENTS) {
        for (load, statement) in loads() {
            let name = format!("{load}, clients: {clients}");
            let edges = [under_load(server, &mut client, &statement, clients, scale)];
            let of = |part: fn(&Edges) -> f64| samples(&edges, part);
            figures.push(Figure::at_most(
                0.0,
                format!("waits at the edges of ranges, {name}"),
                of(|edges| edges.waits),
            ));
            figures.push(Figure::at_most(0.1, format!("WAL bytes an id, {name}"), of(|edges| edges.wal / edges.ids)));
            rows.push(line(name, &edges));
        }
    }
    let new: Vec<Edges> = (0..scale.rounds).map(|_| of_new_tag(&mut client, scale.calls)).collect();
    rows.push(line(format!("the first {} of a new tag, in a loop", scale.calls), &new));
    let table = Table {
        title: "The edges of ranges".into(),
        how: format!(
            "What `idgen.stat_segment` counts in {:?} of load by pgbench, once that has lasted {:?}, so that the step has \
             adapted.",
            scale.ranges, scale.warm_up
        ),
        columns: COLUMNS.map(str::to_owned).into(),
        rows,
    };
    (figures, vec![table])
}

fn line(name: String, edges: &[Edges]) -> Row {
    let cells = vec![
        samples(edges, |edges| edges.ids / edges.seconds / 1e6),
        samples(edges, |edges| edges.refills),
        samples(edges, |edges| edges.waits),
        samples(edges, |edges| edges.wait_ms),
        samples(edges, |edges| edges.wal / edges.ids),
        samples(edges, |edges| edges.wal / edges.refills.max(1.0)),
    ];
    Row { name, cells }
}

fn samples(edges: &[Edges], part: fn(&Edges) -> f64) -> Samples {
    Samples::new(edges.iter().map(part))
}

/// What is drawn, by name.
fn loads() -> [(String, String); 3] {
    [
        ("one id a statement".to_owned(), format!("SELECT segment_next('{TAG}')")),
        (
            format!("{BATCH} ids a statement, one by one"),
            format!("SELECT count(segment_next('{TAG}')) FROM generate_series(1, {BATCH})"),
        ),
        (
            format!("segment_next_many of {BATCH}"),
            format!("SELECT count(i) FROM segment_next_many('{TAG}', {BATCH}) AS i"),
        ),
    ]
}

fn under_load(server: &Server, client: &mut Client, statement: &str, clients: u32, scale: &Scale) -> Edges {
    renew(client, TAG);
    let load = Load::start_endless(server, statement, clients);
    sleep(scale.warm_up);
    let before = counted(client);
    sleep(scale.ranges);
    let edges = counted(client).since(&before);
    load.stop(server);
    edges
}

/// From the first id on, in a loop.
fn of_new_tag(client: &mut Client, calls: u64) -> Edges {
    renew(client, TAG);
    // The session knows the tag, and the worker lives.
    seconds(client, &format!("SELECT segment_next('{TAG}')"));
    let before = counted(client);
    seconds(client, &format!("SELECT count(segment_next('{TAG}')) FROM generate_series(1, {calls})"));
    counted(client).since(&before)
}

fn counted(client: &mut Client) -> Edges {
    let sql = format!(
        "SELECT issued::float8, extract(epoch FROM clock_timestamp())::float8, refills::float8, waits::float8, \
         1000 * extract(epoch FROM wait_time)::float8, (pg_current_wal_insert_lsn() - '0/0')::float8 \
         FROM idgen.stat_segment WHERE tag = '{TAG}'"
    );
    let row = row(client, &sql);
    let [ids, seconds, refills, waits, wait_ms, wal] = [0, 1, 2, 3, 4, 5].map(|index| row.get(index));
    Edges { ids, seconds, refills, waits, wait_ms, wal }
}

impl Edges {
    fn since(self, before: &Self) -> Self {
        Self {
            ids: self.ids - before.ids,
            seconds: self.seconds - before.seconds,
            refills: self.refills - before.refills,
            waits: self.waits - before.waits,
            wait_ms: self.wait_ms - before.wait_ms,
            wal: self.wal - before.wal,
        }
    }
}
