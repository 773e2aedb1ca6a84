//! This server's worker id from a pool: settings and their changes, errors, and views. The faults of a fleet are in `keeper`.

mod connection;
mod settings;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, value};
use postgres::Client;

use crate::{POOL, builder};

/// A server with the pool `servers`, for itself or for others.
fn coordinator(count: i32, ttl: &str) -> Cluster {
    let cluster = builder().start_with_extension();
    cluster.execute(&format!("SELECT worker_pool_define('{POOL}', count => {count}, ttl => '{ttl}')"));
    cluster
}

fn state(client: &mut Client) -> String {
    value(client, "SELECT state FROM idgen.stat_worker")
}

fn wait_for_state(cluster: &Cluster, wanted: &str) {
    let mut client = cluster.client();
    cluster.wait_for(PATIENCE, &format!("the worker id to be {wanted}"), || state(&mut client) == wanted);
}

fn require_keeper_password(coordinator: &Cluster) {
    coordinator.execute("CREATE ROLE keeper LOGIN PASSWORD 'a secret'");
    let hba = coordinator.data_dir().join("pg_hba.conf");
    let rules = std::fs::read_to_string(&hba).expect("pg_hba.conf is readable");
    std::fs::write(&hba, format!("local all keeper scram-sha-256\n{rules}")).expect("pg_hba.conf is writable");
    coordinator.reload();
}

const DRAW: &str = "SELECT snowflake_next()";
const WORKER: &str = "SELECT worker FROM snowflake_parts(snowflake_next())";
