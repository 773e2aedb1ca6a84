//! Rectangles of worker ids, as holders see them: how they become certain, who may renew one, and what a wrong clock of the
//! coordinator does to them.

mod confirm;
mod leap;
mod pipeline;
mod twins;

use idgen_testkit::grants::epoch_us;
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min")
}

/// The microseconds of id time that a holder was told for its worker id.
#[derive(Clone, Debug)]
struct Told {
    token: i64,
    from_us: i64,
    until_us: i64,
}

/// A time in microseconds since 1970, as SQL.
fn at(us: i64) -> String {
    format!("('epoch'::timestamptz + {us} * interval '1 microsecond')")
}

/// Acquires as a holder does that has come to this time.
fn acquire(client: &mut Client, reached: &str) -> Told {
    let (from, until) = (epoch_us("not_before"), epoch_us("not_after"));
    let sql = format!("SELECT token, {from}, {until} FROM worker_acquire('p', ttl => '10 s', reached => {reached})");
    let row = client.query_one(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    Told { token: row.get(0), from_us: row.get(1), until_us: row.get(2) }
}

/// Renews as a holder does that was told this last, and has come to this time.
fn renewal(told: &Told, reached: &str) -> String {
    let (until, last) = (epoch_us("not_after"), at(told.until_us));
    format!("SELECT {until} FROM worker_renew('p', {}, {last}, {reached})", told.token)
}
