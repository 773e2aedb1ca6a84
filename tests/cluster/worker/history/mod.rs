//! Rectangles of worker ids where the coordinator's history is lost or doubled: by a failover to a standby that lacks the last
//! of it, by copies, dumps, and an extension that is made again. No two holders are granted the same id times.

mod copied;
mod interrupted;
mod restored;

use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

/// A coordinator with a pool. All that a holder is told ends within twice the pool's ttl, as the lead is shorter: 20 s.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min").conf("idgen.worker_max_lead", "5s")
}

fn define(cluster: &Cluster) {
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
}

/// A worker id by the microseconds of id time that a holder was told.
#[derive(Clone, Debug)]
struct Told {
    worker_id: i32,
    token: i64,
    from_us: i64,
    until_us: i64,
}

fn acquire(client: &mut Client) -> Told {
    let (from, until) = (epoch_us("not_before"), epoch_us("not_after"));
    let sql = format!("SELECT worker_id, token, {from}, {until} FROM worker_acquire('p', NULL, '10 s')");
    let row = client.query_one(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    Told { worker_id: row.get(0), token: row.get(1), from_us: row.get(2), until_us: row.get(3) }
}

/// As a keeper of 0.7 renews whose ids are this far ahead of the clock.
fn renewal(token: i64, ttl: &str) -> String {
    format!("SELECT {} FROM worker_renew('p', {token}, '{ttl}'::interval)", epoch_us("not_after"))
}

fn renew(client: &mut Client, told: &mut Told, ttl: &str) {
    told.until_us = value(client, &renewal(told.token, ttl));
}

fn release(client: &mut Client, told: &Told) {
    execute(client, &format!("SELECT worker_release('p', {})", told.token));
}

fn assert_apart(told: &[&Told]) {
    for (index, one) in told.iter().enumerate() {
        for other in &told[index + 1..] {
            let is_apart =
                one.worker_id != other.worker_id || one.until_us <= other.from_us || other.until_us <= one.from_us;
            assert!(is_apart, "one worker id, one time, two holders: {one:?}, {other:?}");
        }
    }
}
