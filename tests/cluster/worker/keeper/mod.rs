//! Servers that lease their worker ids: whatever happens to them, to the coordinator and to the network between them, no id
//! is issued twice or outside the rectangles that the coordinator granted.

mod by_hand;
mod confirm;
mod connection;
mod cut;
mod faults;
mod fleet;
mod life;
mod load;
mod network;
mod stop;
mod unset;

use idgen_testkit::grants::{Seen, assert_ids_granted, rectangles};
use idgen_testkit::sql::{PATIENCE, ids, row, value};
use idgen_testkit::{Builder, Cluster, grants};
use postgres::Client;

use crate::{POOL, builder, pooled};

/// A server that grants worker ids from a pool and records its grants.
fn coordinator(builder: Builder, count: usize, ttl: &str) -> Cluster {
    let coordinator = builder.start_with_extension();
    coordinator.execute(&format!("SELECT worker_pool_define('{POOL}', count => {count}, ttl => '{ttl}')"));
    grants::record(&coordinator);
    coordinator
}

/// A coordinator, and a server that leases its worker id from it.
fn coordinator_and_server(count: usize, ttl: &str) -> (Cluster, Cluster) {
    let coordinator = coordinator(builder(), count, ttl);
    let server = pooled(&coordinator.conninfo()).start_with_extension();
    (coordinator, server)
}

/// Ends the token of a worker id, which is free from then on. Its end stays what it was: the row is locked before it is read.
fn end_token(coordinator: &Cluster, worker_id: i32) {
    let of_row = format!("WHERE pool = '{POOL}' AND worker_id = {worker_id}");
    coordinator.execute(&format!(
        "BEGIN; SELECT FROM idgen.worker_id {of_row} FOR UPDATE;
         SELECT worker_correct(pool, worker_id, not_after, force => true) FROM idgen.worker_id {of_row}; COMMIT"
    ));
}

/// A connection string with several hosts and ports, which libpq tries in turn.
fn any_of(addresses: &[(String, String)]) -> String {
    let (hosts, ports): (Vec<_>, Vec<_>) = addresses.iter().cloned().unzip();
    format!("host={} port={} user=postgres dbname=postgres", hosts.join(","), ports.join(","))
}

/// The row of `idgen.stat_worker`: a server's own worker id.
#[derive(Debug)]
struct Worker {
    state: String,
    worker_id: Option<i32>,
    from_us: Option<i64>,
    until_us: Option<i64>,
    keeper: Option<i32>,
    renewals: i64,
    failures: i64,
    changes: i64,
}

impl Worker {
    fn of(client: &mut Client) -> Worker {
        let (from, until) = (grants::epoch_us("not_before"), grants::epoch_us("not_after"));
        let columns = format!("state, worker_id, {until}, pid, renewals, failures, changes, {from}");
        let row = row(client, &format!("SELECT {columns} FROM idgen.stat_worker"));
        Worker {
            state: row.get(0),
            worker_id: row.get(1),
            until_us: row.get(2),
            keeper: row.get(3),
            renewals: row.get(4),
            failures: row.get(5),
            changes: row.get(6),
            from_us: row.get(7),
        }
    }

    fn wait_for_state(cluster: &Cluster, state: &str) -> Worker {
        Worker::wait_until(cluster, state, |worker| worker.state == state)
    }

    /// Waits until the row of a server meets a condition.
    fn wait_until(cluster: &Cluster, what: &str, mut holds: impl FnMut(&Worker) -> bool) -> Worker {
        let mut client = cluster.client();
        let mut last = None;
        cluster.wait_for(PATIENCE, &format!("the server's worker id: {what}"), || {
            let worker = Worker::of(&mut client);
            let met = holds(&worker);
            last = Some(worker);
            met
        });
        last.expect("waited for")
    }
}

fn draw_some(client: &mut Client) -> Vec<i64> {
    ids(client, "SELECT snowflake_next_many(10000)")
}

/// Fails if ids that servers have issued are outside of what the coordinator granted them.
fn assert_granted<const COUNT: usize>(coordinator: &Cluster, seen: [(&Cluster, Vec<i64>); COUNT]) {
    let seen = seen.map(|(server, ids)| Seen { data_dir: server.data_dir(), ids });
    assert_ids_granted(&rectangles(&mut coordinator.client()), &seen);
}

/// One id. An error fails the test.
fn draw(client: &mut Client) -> i64 {
    value(client, "SELECT snowflake_next()")
}
