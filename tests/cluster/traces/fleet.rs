//! Segments of a fleet: two servers and their coordinator, which crash in turn, and a failover of the coordinator.

use std::time::Duration;

use idgen_sim::model::trace::fleet::{Server, coordinator};
use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Cluster, rounds};
use postgres::error::SqlState;

use crate::storm::Storm;
use crate::{assert_allowed, begin_trace, builder, take_trace};

/// A server whose tag t is attached to that of a coordinator.
fn attached(coordinator: &Cluster) -> Cluster {
    let server = builder().conf("idgen.coordinator", &coordinator.conninfo()).start_with_extension();
    begin_trace(&server);
    server.execute(
        "SELECT segment_attach('t', '2 seconds');
         SELECT segment_alter('t', step => 20, min_step => 20);
         CREATE TABLE drawn (value bigint DEFAULT segment_next('t'), session int DEFAULT pg_backend_pid());
         CREATE TABLE started (at timestamptz DEFAULT now())",
    );
    server
}

/// Sessions of a server draw for a while.
fn draw(server: &Cluster) {
    let storm = Storm::new(server, Duration::from_millis(20));
    storm.run(4, Duration::from_millis(400), 0, |client| {
        while storm.goes_on() {
            match client.batch_execute("INSERT INTO drawn SELECT FROM generate_series(1, 5)") {
                // The coordinator grants nothing for a while.
                Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    });
}

/// Draws once there are values again: the coordinator waits for the reports of all servers.
fn draw_patiently(server: &Cluster) {
    let mut client = server.client();
    execute(&mut client, "SET idgen.segment_timeout = '1 min'");
    (0..50).for_each(|_| execute(&mut client, "INSERT INTO drawn DEFAULT VALUES"));
}

#[test]
fn fleets_make_only_steps_that_the_rules_allow() {
    let first = builder().conf("wal_retrieve_retry_interval", "100 ms").start_with_extension();
    begin_trace(&first);
    first.execute("SELECT segment_create('t', start => 1, step => 10)");
    let standby = first.standby_builder().synchronous().start();
    let servers = [attached(&first), attached(&first)];
    let mut granted = Vec::new();
    let mut serving = &first;
    for round in 0..rounds(2, 12) {
        for server in &servers {
            draw(server);
            server.kill9_postmaster();
            server.start_again();
            server.execute("INSERT INTO started DEFAULT VALUES");
            draw(server);
        }
        serving.kill9_postmaster();
        if round == 0 {
            serving.start_again();
            granted.extend(take_trace(serving));
            serving.kill9_postmaster();
            standby.promote();
            serving = &standby;
            begin_trace(serving);
            servers.iter().for_each(|server| {
                server.set_conf("idgen.coordinator", &standby.conninfo());
                server.reload();
            });
            servers.iter().for_each(draw_patiently);
        } else {
            serving.start_again();
        }
        servers.iter().for_each(draw);
    }
    granted.extend(take_trace(serving));
    let mut replayed: Vec<Server> = Vec::new();
    for server in &servers {
        let mut client = server.client();
        let number = value(&mut client, "SELECT server FROM idgen.segment WHERE tag = 't'");
        let mut replay = Server::new(number);
        replay.replay(&take_trace(server));
        execute(&mut client, "SELECT segment_detach('t')");
        replayed.push(replay);
    }
    let mut report = coordinator("t", &granted, &replayed);
    for server in replayed {
        report = report.and(server.report);
    }
    assert_allowed(&report, &[("grant", 20), ("report", 20), ("record", 20), ("draw", 500), ("start", 2)]);
}
