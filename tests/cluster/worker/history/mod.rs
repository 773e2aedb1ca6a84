//! The coordinator's history is lost or duplicated: by a failover to a lagging standby, a copy, a dump, or an extension that
//! is created again. No two holders are granted the same id times.

mod copied;
mod in_place;
mod interrupted;
mod restored;
mod wal_lost;

use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

use crate::{Grant, try_acquire};

/// A coordinator. With this lead every rectangle ends within twice the ttl of the pool, 20 s.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min").conf("idgen.worker_max_lead", "5s")
}

fn define_pool(cluster: &Cluster) {
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
}

fn with_pool() -> (Cluster, Client) {
    let (cluster, [client]) = builder().start_with_clients();
    define_pool(&cluster);
    (cluster, client)
}

fn acquire(client: &mut Client) -> Grant {
    try_acquire(client, "'p', NULL, '10 s'").expect("a grant")
}

/// A renewal for this time from now on, by a holder that knows the recorded end.
fn renewal(token: i64, time: &str) -> String {
    format!(
        "SELECT {} FROM worker_renew(
             'p', {token}, coalesce((SELECT not_after FROM idgen.worker_number WHERE token = {token}), now()),
             reached => clock_timestamp() + '{time}' - (SELECT ttl FROM idgen.lease_definition WHERE name = 'p'))",
        epoch_us("not_after")
    )
}

fn renew(client: &mut Client, grant: &mut Grant, time: &str) {
    grant.until_us = value(client, &renewal(grant.token, time));
}

fn release(client: &mut Client, grant: &Grant) {
    execute(client, &format!("SELECT worker_release('p', {})", grant.token));
}

/// Acquires every worker id of the pool. No time of theirs is one of these grants.
fn assert_pool_is_apart_from(grants: &[&Grant], client: &mut Client) {
    let acquired: Vec<_> = (0..4).map(|_| acquire(client)).collect();
    assert_apart(&grants.iter().copied().chain(&acquired).collect::<Vec<_>>());
}

fn assert_apart(grants: &[&Grant]) {
    for (index, one) in grants.iter().enumerate() {
        for other in &grants[index + 1..] {
            let is_apart =
                one.worker_id != other.worker_id || one.until_us <= other.from_us || other.until_us <= one.from_us;
            assert!(is_apart, "one worker id, one time, two holders: {one:?}, {other:?}");
        }
    }
}
