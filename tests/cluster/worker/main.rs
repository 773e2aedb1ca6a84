//! Worker ids on real servers: claims, rectangles, the coordinator's history, and servers and clients that lease their
//! worker id from a pool.
//!
//! A rectangle is a worker id by an interval of id time: see the README.

mod claims;
mod clients;
mod history;
mod keeper;
mod large_pool;
mod pool;
mod races;
mod rectangle;

use idgen_testkit::grants::epoch_us;
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

const POOL: &str = "servers";

/// A server without a worker id from a pool.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min").conf("fsync", "off")
}

/// A server that leases its worker id from this coordinator from its start on.
fn pooled(coordinator: &str) -> Builder {
    builder().conf("idgen.worker_pool", POOL).conf("idgen.coordinator", coordinator)
}

/// Changes the pool and the coordinator of a running server.
fn set_pool(cluster: &Cluster, pool: &str, coordinator: &str) {
    cluster.set_conf("idgen.worker_pool", pool);
    cluster.reload_with("idgen.coordinator", coordinator);
}

/// A granted worker id and its microseconds of id time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    worker_id: i32,
    token: i64,
    from_us: i64,
    until_us: i64,
}

/// Acquires with these arguments, written in SQL.
fn try_acquire(client: &mut Client, arguments: &str) -> Result<Grant, postgres::Error> {
    let (from, until) = (epoch_us("not_before"), epoch_us("not_after"));
    let sql = format!("SELECT worker_id, token, {from}, {until} FROM worker_acquire({arguments})");
    let row = client.query_one(&sql, &[])?;
    Ok(Grant { worker_id: row.get(0), token: row.get(1), from_us: row.get(2), until_us: row.get(3) })
}
