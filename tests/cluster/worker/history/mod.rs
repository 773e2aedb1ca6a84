//! The coordinator's history is lost or duplicated: by a failover to a lagging standby, a copy, a dump, or an extension that
//! is created again. No two holders are granted the same id times.

mod copied;
mod in_place;
mod interrupted;
mod restored;
mod wal_lost;

use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{execute, expect_error, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

use crate::{Grant, try_acquire};

/// A coordinator. With this lead every rectangle ends within twice the ttl of the pool, 20 s.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min").conf("idgen.worker_max_lead", "5s")
}

fn define_pool(cluster: &Cluster) {
    cluster.execute("SELECT worker_pool_define('p', count => 4, ttl => '10 s')");
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
             'p', {token}, coalesce((SELECT not_after FROM idgen.worker_id WHERE token = {token}), now()),
             reached => clock_timestamp() + '{time}' - (SELECT ttl FROM idgen.worker_pool WHERE name = 'p'))",
        epoch_us("not_after")
    )
}

fn renew(client: &mut Client, grant: &mut Grant, time: &str) {
    grant.until_us = value(client, &renewal(grant.token, time));
}

fn release(client: &mut Client, grant: &Grant) {
    execute(client, &format!("SELECT worker_release('p', {})", grant.token));
}

/// The history is interrupted. The first renewal records that and extends nothing; later ones are refused.
fn assert_lost(client: &mut Client, token: i64) {
    let renewal = renewal(token, "10 s");
    let end = format!("SELECT {} FROM idgen.worker_id WHERE token = {token}", epoch_us("not_after"));
    if let Ok(Some(before)) = client.query_opt(&end, &[])
        && let Ok(answer) = client.query_one(&renewal, &[])
    {
        assert_eq!(answer.get::<_, i64>(0), before.get::<_, i64>(0), "a lost token is renewed");
    }
    expect_error(client, &renewal, "55000");
}

fn acquire_all(client: &mut Client) -> [Grant; 4] {
    [(); 4].map(|()| acquire(client))
}

/// Acquires every worker id of the pool: after an interruption, nobody holds one. No time of theirs is one of these grants.
fn assert_pool_is_apart_from(grants: &[&Grant], client: &mut Client) {
    let acquired = acquire_all(client);
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
