//! Stops of attached servers: the stock is a gap, and nothing delays the stop.

use std::time::{Duration, Instant};

use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, execute, ids, value};
use idgen_testkit::{Cluster, Proxy, Stop};

use super::{attached, coordinator, draw, request_at_least};
use crate::max_id;

/// For a busy machine.
const LONGEST_STOP: Duration = Duration::from_secs(15);

const SUPPLY: &str = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen supply'";

/// A server that has drawn one value, holds a thousand others, and asks for no more until most of them are drawn.
fn stocked(conninfo: &str) -> Cluster {
    let server = attached(conninfo, "2 seconds");
    request_at_least(&server, 1000);
    draw(&server, 1);
    // The first answer can have another stride, which ends the ring: then the session asks again.
    let mut received = 0;
    server.wait_for(PATIENCE, "the first requests", || {
        std::thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut received, row(&server)) == row(&server)
    });
    server
}

fn row(server: &Cluster) -> i64 {
    max_id(&mut server.client(), "t")
}

/// Stops the server. Fails if that takes too long.
fn stop(server: &Cluster, how: Stop) {
    let began = Instant::now();
    server.stop(how);
    assert!(began.elapsed() < LONGEST_STOP, "the stop took {:?}", began.elapsed());
}

#[test]
fn clean_stop_of_a_server_leaves_its_stock_as_a_gap_smoke() {
    let coordinator = coordinator(Cluster::builder());
    let servers = [0, 1].map(|_| stocked(&coordinator.conninfo()));
    let mut seen = Vec::new();
    for how in [Stop::Fast, Stop::Smart] {
        seen.extend(servers.iter().flat_map(|server| draw(server, 10)));
        // The one with the last values is first.
        let mut granted = row(&coordinator);
        for server in servers.iter().rev() {
            let received = row(server);
            stop(server, how);
            server.start_again();
            assert_eq!((row(server), row(&coordinator)), (received, granted), "{how:?}");
            let next = draw(server, 10);
            assert_eq!(next[0], granted + 1, "the gap is the stock");
            granted = row(&coordinator);
            seen.extend(next);
        }
    }
    assert_distinct(seen);
}

#[test]
fn silent_coordinator_does_not_delay_a_stop() {
    let coordinator = coordinator(Cluster::builder());
    let proxy = Proxy::on_socket(&coordinator);
    let server = stocked(&proxy.conninfo());
    let mut seen = draw(&server, 10);
    let received = row(&server);
    proxy.stop_forwarding();
    stop(&server, Stop::Fast);
    proxy.resume_forwarding();
    server.start_again();
    seen.extend(draw(&server, 10));
    assert_eq!(seen[10], received + 1, "the gap is the stock");
    assert_increasing(&seen);
}

/// The request that is running waits for a standby that never comes.
#[test]
fn missing_standby_does_not_delay_a_stop() {
    let coordinator = coordinator(Cluster::builder());
    let server = stocked(&coordinator.conninfo());
    let mut seen = draw(&server, 10);
    server.reload_with("synchronous_standby_names", "missing");
    let mut client = server.client();
    // Most of the stock, so that the worker requests more.
    let count = crate::remaining(&mut client) - 100;
    seen.extend(ids(&mut client, &crate::singly(count)));
    server.wait_for(PATIENCE, "the worker to wait for the standby", || {
        value(&mut client, &format!("{SUPPLY} AND wait_event = 'SyncRep'").replace("SELECT pid", "SELECT count(*) = 1"))
    });
    drop(client);
    stop(&server, Stop::Fast);
    server.set_conf("synchronous_standby_names", "");
    server.start_again();
    seen.extend(draw(&server, 10));
    assert_increasing(&seen);
}

#[test]
fn worker_that_is_terminated_ends_at_once_and_keeps_the_stock() {
    let coordinator = coordinator(Cluster::builder());
    let proxy = Proxy::on_socket(&coordinator);
    let server = stocked(&proxy.conninfo());
    let first = draw(&server, 10);
    let granted = row(&coordinator);
    let mut client = server.client();
    let is_gone = |client: &mut postgres::Client, pid: i32| {
        let began = Instant::now();
        let is_gone: bool = value(client, &format!("SELECT pg_terminate_backend({pid}, 10000)"));
        assert!(is_gone && began.elapsed() < Duration::from_secs(2), "it ended after {:?}", began.elapsed());
    };
    let pid: i32 = value(&mut client, SUPPLY);
    is_gone(&mut client, pid);
    assert_eq!(row(&coordinator), granted);
    assert_eq!(draw(&server, 10), (last(&first) + 1..).take(10).collect::<Vec<_>>(), "the stock is in shared memory");
    // The next one waits for the network.
    proxy.stop_forwarding();
    execute(&mut client, "SET idgen.segment_timeout = '100ms'");
    let _ = crate::draw_until_refused(&mut client, "t");
    let waits = format!("{SUPPLY} AND wait_event_type = 'Extension'");
    server.wait_for(PATIENCE, "the worker", || client.query_opt(&waits, &[]).is_ok_and(|row| row.is_some()));
    let pid: i32 = value(&mut client, SUPPLY);
    is_gone(&mut client, pid);
}
