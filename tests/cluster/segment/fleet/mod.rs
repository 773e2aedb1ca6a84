//! Segments of a fleet: tags of several servers that draw from a coordinator's. Whatever happens to the servers, to the
//! coordinator and to the network between them, no value is drawn twice.

mod changes;
mod encodings;
mod history;
mod life;
mod locked_row;
mod order;
mod privileges;
mod rates;
mod stop;
mod storm;

use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

/// A server with a tag t that others attach to.
fn coordinator(builder: Builder) -> Cluster {
    let cluster = builder.conf("statement_timeout", "60s").start_with_extension();
    cluster.execute("SELECT segment_create('t', start => 1, step => 10)");
    cluster
}

/// A server whose tag t is attached to that of a coordinator.
fn attached(conninfo: &str, reserve: &str) -> Cluster {
    attach(Cluster::builder(), conninfo, reserve)
}

/// The same with these settings.
fn attach(builder: Builder, conninfo: &str, reserve: &str) -> Cluster {
    let builder = builder.conf("idgen.coordinator", conninfo).conf("statement_timeout", "60s");
    let cluster = builder.start_with_extension();
    cluster.execute(&format!("SELECT segment_attach('t', '{reserve}')"));
    cluster
}

/// A coordinator, and a server whose tag t is attached to its tag.
fn coordinator_and_server() -> (Cluster, Cluster) {
    let coordinator = coordinator(Cluster::builder());
    let server = attached(&coordinator.conninfo(), "10 seconds");
    (coordinator, server)
}

/// Requests at least this many values at a time, so that a test knows how many there are at least.
fn request_at_least(server: &Cluster, count: i64) {
    server.execute(&format!("SELECT segment_alter('t', step => {count}, min_step => {count})"));
}

fn draw(server: &Cluster, count: i64) -> Vec<i64> {
    ids(&mut server.client(), &crate::singly(count))
}

/// A coordinator and two servers that it knows, with 1000 values each, and those that they have drawn.
fn two_servers() -> (Cluster, [Cluster; 2], Vec<i64>) {
    let coordinator = coordinator(Cluster::builder());
    let servers = [0, 1].map(|_| attached(&coordinator.conninfo(), "10 seconds"));
    servers.iter().for_each(|server| request_at_least(server, 1000));
    let drawn = servers.iter().flat_map(|server| draw(server, 10)).collect();
    wait_for_servers(&coordinator, 2);
    (coordinator, servers, drawn)
}

/// Draws also while the coordinator waits for reports of servers, which come every 10 seconds.
fn draw_patiently(server: &Cluster, count: i64) -> Vec<i64> {
    let mut client = server.client();
    execute(&mut client, "SET idgen.segment_timeout = '1min'");
    ids(&mut client, &crate::singly(count))
}

/// Draws what the server has left until that is nothing, while it gets none. Returns the values, and the DETAIL of the error.
/// A server that gets values fails the test.
fn draw_dry(server: &Cluster) -> (Vec<i64>, String) {
    // More than any stock of these tests.
    const MOST: usize = 10_000_000;
    let mut client = server.client();
    execute(&mut client, "SET idgen.segment_timeout = '100ms'");
    let mut drawn = Vec::new();
    while drawn.len() < MOST {
        let left = crate::remaining(&mut client);
        match client.query(&format!("SELECT segment_next_many('t', {})", left.clamp(1, MOST as i64 / 10)), &[]) {
            Ok(rows) => drawn.extend(rows.iter().map(|row| row.get::<_, i64>(0))),
            Err(error) => {
                let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
                assert_eq!(error.code().code(), "55P03", "{error:?}");
                return (drawn, error.detail().unwrap_or_default().to_owned());
            }
        }
    }
    panic!("the server gets values: it has drawn {MOST}")
}

/// The error of the last request, once it contains a text.
fn wait_for_error(server: &Cluster, part: &str) {
    let mut client = server.client();
    server.wait_for(PATIENCE, &format!("the error \"{part}\""), || {
        let error: Option<String> = value(&mut client, "SELECT max(last_error) FROM idgen.stat_segment");
        error.is_some_and(|error| error.contains(part))
    });
}

/// Waits until the coordinator knows this many attached servers.
fn wait_for_servers(coordinator: &Cluster, count: i64) {
    let mut client = coordinator.client();
    coordinator.wait_for(PATIENCE, &format!("{count} attached servers"), || {
        value::<i64>(&mut client, "SELECT count(*) FROM idgen.segment_server") == count
    });
}

/// Draws once with a short timeout, which must fail. Returns the DETAIL.
fn refused(client: &mut Client, code: &str) -> String {
    execute(client, "SET idgen.segment_timeout = '2s'");
    let error = expect_error(client, "SELECT segment_next('t')", code);
    execute(client, "RESET idgen.segment_timeout");
    error.detail().unwrap_or_default().to_owned()
}
