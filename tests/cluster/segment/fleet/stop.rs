//! Clean stops of attached servers: values that were not drawn go back to the coordinator, if they are the last ones that
//! it has granted.

use std::time::{Duration, Instant};

use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, execute, ids, value};
use idgen_testkit::{Cluster, Proxy, Stop};

use super::{attached, coordinator, draw, request_at_least};
use crate::max_id;

/// A stop waits at most 5 seconds for the supply worker. The rest is for a busy machine.
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
fn clean_stop_of_the_only_server_leaves_no_gap_smoke() {
    let coordinator = coordinator(Cluster::builder());
    let server = stocked(&coordinator.conninfo());
    let mut seen = Vec::new();
    for how in [Stop::Fast, Stop::Smart, Stop::Fast] {
        seen.extend(draw(&server, 10));
        stop(&server, how);
        assert_eq!(row(&coordinator), last(&seen));
        server.start_again();
        assert_eq!(row(&server), last(&seen));
    }
    // From several requests in a row.
    seen.extend(draw(&server, 2500));
    stop(&server, Stop::Fast);
    server.start_again();
    seen.extend(draw(&server, 10));
    assert_eq!(seen, (2..=2541).collect::<Vec<_>>());
    assert!(!server.log().contains("could not give back"), "{}", server.log());
}

#[test]
fn clean_stop_leaves_no_gap_with_a_stride() {
    let coordinator = coordinator(Cluster::builder());
    coordinator.execute("SELECT segment_alter('t', stride => 10, residue => 7)");
    let server = stocked(&coordinator.conninfo());
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.extend(draw(&server, 5));
        server.restart();
    }
    seen.extend(draw(&server, 1));
    assert_eq!(seen, (1..12).map(|turn| 7 + turn * 10).collect::<Vec<_>>());
}

#[test]
fn clean_stop_gives_back_nothing_where_nothing_is_unused() {
    let coordinator = coordinator(Cluster::builder());
    let server = attached(&coordinator.conninfo(), "2 seconds");
    // The ring was never filled.
    server.restart();
    server.execute("SELECT segment_alter('t', min_step => 1, max_step => 1)");
    let drawn = draw(&server, 20);
    // Each value was requested alone, and drawn.
    server.restart();
    assert_eq!(row(&server), 20);
    assert_eq!([drawn, draw(&server, 1)].concat(), (1..=21).collect::<Vec<_>>());
    assert!(!server.log().contains("could not give back"), "{}", server.log());
}

#[test]
fn values_before_those_of_another_server_are_a_gap() {
    let coordinator = coordinator(Cluster::builder());
    let servers = [0, 1].map(|_| stocked(&coordinator.conninfo()));
    let mut seen = draw(&servers[0], 10);
    let earlier = row(&servers[0]);
    seen.extend(draw(&servers[1], 10));
    let highest = last(&seen);
    let granted = row(&coordinator);
    stop(&servers[0], Stop::Fast);
    assert_eq!(row(&coordinator), granted, "the other server has the last values");
    stop(&servers[1], Stop::Fast);
    assert_eq!(row(&coordinator), highest);
    servers.iter().for_each(Cluster::start_again);
    assert_eq!([row(&servers[0]), row(&servers[1])], [earlier, highest]);
    let next = draw(&servers[0], 10);
    assert_eq!(next, (highest + 1..=highest + 10).collect::<Vec<_>>());
    seen.extend(next);
    seen.extend(draw(&servers[1], 10));
    assert_distinct(seen);
}

#[test]
fn values_before_those_of_the_coordinator_are_a_gap() {
    let coordinator = coordinator(Cluster::builder());
    let server = stocked(&coordinator.conninfo());
    let mut seen = draw(&server, 10);
    let received = row(&server);
    let own = draw(&coordinator, 10);
    assert_eq!(own[0], received + 1);
    seen.extend(own);
    server.restart();
    assert_eq!(row(&server), received);
    seen.extend(draw(&server, 10));
    assert_increasing(&seen);
}

#[test]
fn values_are_a_gap_if_the_coordinator_is_away_at_the_stop() {
    let coordinator = coordinator(Cluster::builder());
    let server = stocked(&coordinator.conninfo());
    let mut seen = draw(&server, 10);
    let received = row(&server);
    coordinator.stop(Stop::Immediate);
    stop(&server, Stop::Fast);
    assert!(server.log().contains("could not give back the unused values of segment \"t\""), "{}", server.log());
    coordinator.start_again();
    server.start_again();
    seen.extend(draw(&server, 10));
    assert_eq!(seen[10], received + 1);
    assert_increasing(&seen);
}

#[test]
fn silent_coordinator_delays_a_stop_for_seconds_only() {
    let coordinator = coordinator(Cluster::builder());
    let proxy = Proxy::on_socket(&coordinator);
    let server = stocked(&proxy.conninfo());
    let mut seen = draw(&server, 10);
    let received = row(&server);
    proxy.stop_forwarding();
    stop(&server, Stop::Fast);
    proxy.resume_forwarding();
    server.start_again();
    // The values are back, or a gap: the request may have arrived.
    seen.extend(draw(&server, 10));
    assert!([seen[9] + 1, received + 1].contains(&seen[10]), "{seen:?}");
    assert_increasing(&seen);
}

/// The stop waits for the request that is running, but not for a standby that never comes.
#[test]
fn missing_standby_delays_a_stop_for_seconds_only() {
    let coordinator = coordinator(Cluster::builder());
    let server = stocked(&coordinator.conninfo());
    let mut seen = draw(&server, 10);
    server.set_conf("synchronous_standby_names", "missing");
    server.reload();
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
fn worker_that_is_terminated_alone_ends_at_once_and_gives_back_nothing() {
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
