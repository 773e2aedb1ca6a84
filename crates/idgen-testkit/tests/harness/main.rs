//! Tests of the kit itself, on servers without the extension.

mod clock;
mod crash;
mod lifecycle;
mod proxy;
mod script;
mod standby;

use std::path::Path;

use idgen_testkit::{Builder, Cluster};
use postgres::Client;

/// The extension need not be installed for these tests.
fn builder() -> Builder {
    Cluster::builder().preload(false)
}

fn text(client: &mut Client, sql: &str) -> String {
    client.query_one(sql, &[]).unwrap().get(0)
}

fn number(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap().get(0)
}

fn is_process(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The number of recoveries in the server's log.
fn recoveries(cluster: &Cluster) -> usize {
    cluster.log().matches("automatic recovery in progress").count()
}
