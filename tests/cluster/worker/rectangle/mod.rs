//! Rectangles from the holder's view: confirmation, renewal, and a wrong clock of the coordinator.

mod alone;
mod confirm;
mod leap;

use idgen_testkit::grants::epoch_us;
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

use crate::{Grant, try_acquire};

fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min")
}

/// A coordinator with this many worker ids.
fn with_pool(builder: Builder, count: i32) -> Cluster {
    let cluster = builder.start_with_extension();
    cluster.execute(&format!("SELECT worker_pool_define('p', count => {count}, ttl => '10 s')"));
    cluster
}

/// An SQL expression for a time in microseconds since 1970.
fn at(us: i64) -> String {
    format!("('epoch'::timestamptz + {us} * interval '1 microsecond')")
}

/// Acquires for a holder whose ids have reached this time.
fn acquire(client: &mut Client, reached: &str) -> Grant {
    try_acquire(client, &format!("'p', ttl => '10 s', reached => {reached}")).expect("a grant")
}

/// The renewal by a holder that knows this grant and whose ids have reached this time.
fn renewal(grant: &Grant, reached: &str) -> String {
    let (until, last) = (epoch_us("not_after"), at(grant.until_us));
    format!("SELECT {until} FROM worker_renew('p', {}, {last}, {reached})", grant.token)
}
