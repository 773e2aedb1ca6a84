//! What the default layout gives when more is wanted than it has.

use crate::pgbench::Load;
use crate::report::{Figure, Row, Table};
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::scale::Scale;
use crate::server::Server;
use idgen_testkit::sql::{execute, row};
use postgres::Client;
use std::thread::sleep;
use std::time::Duration;

/// 4096 ids a millisecond, in millions a second.
const CEILING: f64 = 4.096;
/// What `idgen.max_drift` is set to, and how many ids use that lead up, and one more.
const DRIFTS: [(&str, u64); 2] = [("0", 1), ("1s", 4_096_001)];
/// Ids a statement: a long one, for this is about the generator.
const BATCH: u64 = 10_000;

type Setup = (u32, (&'static str, u64));

pub fn measure(server: &Server, scale: &Scale) -> (Vec<Figure>, Vec<Table>) {
    let setups: Vec<Setup> = scale.clients.iter().flat_map(|clients| DRIFTS.map(|drift| (*clients, drift))).collect();
    let rates = rounds(scale.rounds, &setups, |(clients, (drift, lead))| {
        server.set("idgen.max_drift", drift);
        sustained(server, *clients, *lead, scale.seconds)
    });
    server.set("idgen.max_drift", "1s");
    let rates: Vec<_> = rates.into_iter().map(Samples::new).collect();

    let figure = |((clients, (drift, _)), rate): (&Setup, &Samples)| {
        let what = format!("share of the default layout's ceiling, clients: {clients}, max_drift {drift}");
        Figure::at_least(0.95, what, rate.map(|rate| rate / CEILING))
    };
    let figures = setups.iter().zip(&rates).map(figure).collect();
    let rows = scale.clients.iter().zip(rates.chunks(DRIFTS.len()));
    let table = Table {
        title: "Million ids a second at the default layout's ceiling".into(),
        how: format!(
            "The lead is used up first; then what `idgen.stat_snowflake` counts in {} s while pgbench draws {BATCH} ids \
             a statement. The ceiling is {CEILING}.",
            scale.seconds
        ),
        columns: DRIFTS.map(|(drift, _)| format!("max_drift {drift}")).into(),
        rows: rows.map(|(clients, rates)| Row { name: format!("clients: {clients}"), cells: rates.to_vec() }).collect(),
    };
    (figures, vec![table])
}

/// Million ids a second, with so many clients, once nothing is left of the lead.
fn sustained(server: &Server, clients: u32, lead: u64, seconds: u32) -> f64 {
    let statement = format!("SELECT count(snowflake_next()) FROM generate_series(1, {BATCH})");
    let load = Load::start_endless(server, &statement, clients);
    // Where the lead was longer before, the one id waits until that is gone.
    let mut other = server.client();
    execute(&mut other, &format!("SELECT count(*) FROM snowflake_next_many({lead})"));
    let (before, from) = issued(&mut other);
    sleep(Duration::from_secs(seconds.into()));
    let (after, to) = issued(&mut other);
    load.stop(server);
    (after - before) / (to - from) / 1e6
}

/// How many ids the default layout has issued, and when that was, in seconds.
fn issued(client: &mut Client) -> (f64, f64) {
    let sql = "SELECT issued::float8, extract(epoch FROM clock_timestamp())::float8 FROM idgen.stat_snowflake \
               WHERE layout = (SELECT spec FROM snowflake_layout())";
    let row = row(client, sql);
    (row.get(0), row.get(1))
}
