//! Kills at random moments around the mark and the label, snapshots of a running server, and a boot clock that changes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use idgen_testkit::ids::{assert_increasing, last};
use idgen_testkit::parallel::End;
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, rounds};
use postgres::Client;

use crate::recovery::{insert, stored};
use crate::{builder, draw_one, time_of};

/// Draws until the connection ends, mostly one by one, and now and then takes ids ahead, so that a label is needed.
fn draw_until_killed(mut client: Client, seen: &AtomicUsize) -> Vec<i64> {
    let observe = "SELECT snowflake_observe(snowflake_ceil(clock_timestamp() + interval '1 s'))";
    let mut drawn = Vec::new();
    loop {
        let statement = format!("SELECT snowflake_next() FROM generate_series(1, {})", 1 + fastrand::u32(..200));
        let Ok(rows) = client.query(&statement, &[]) else {
            return drawn;
        };
        drawn.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
        seen.fetch_add(rows.len(), Ordering::Relaxed);
        if fastrand::u32(..10) == 0 && client.batch_execute(observe).is_err() {
            return drawn;
        }
    }
}

/// Kills the server, a session, or the worker that writes the label if it runs.
fn kill_something(server: &Cluster) {
    let victim = match fastrand::u32(..3) {
        0 => "backend_type = 'client backend' AND pid <> pg_backend_pid()",
        1 => "backend_type = 'idgen label'",
        _ => "false",
    };
    let sql = format!("SELECT min(pid) FROM pg_stat_activity WHERE {victim}");
    let victim: Option<i32> = value(&mut server.client(), &sql);
    if !victim.is_some_and(|pid| server.kill9_if_running(pid)) {
        server.kill9_postmaster();
        server.start_again();
    }
}

#[test]
fn kills_around_the_mark_and_the_label_repeat_no_id() {
    let server = builder().conf("idgen.clock_window", "100ms").conf("idgen.max_drift", "10ms").start_with_extension();
    let mut highest = i64::MIN;
    for round in 0..rounds(40, 1000) {
        let seen = AtomicUsize::new(0);
        let enough = fastrand::usize(..3000);
        let drawn: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let sessions =
                [server.client(), server.client()].map(|client| scope.spawn(|| draw_until_killed(client, &seen)));
            server.wait_for(PATIENCE, "ids", || seen.load(Ordering::Relaxed) >= enough);
            kill_something(&server);
            sessions.into_iter().map(|session| session.join().unwrap()).collect()
        });
        drawn.iter().for_each(|ids| assert_increasing(ids));
        let mut all = drawn.concat();
        all.sort_unstable();
        assert_increasing(&all);
        if let (Some(first), Some(last)) = (all.first(), all.last()) {
            assert!(*first > highest, "round {round}: {first} after {highest}");
            highest = *last;
        }
    }
}

/// The copy goes on above all ids that it has, as after a crash at that moment.
#[test]
fn snapshot_of_a_running_server_repeats_no_id_that_it_has() {
    let server = builder().conf("idgen.clock_window", "100ms").start_with_extension();
    server.execute("CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    for _ in 0..rounds(3, 50) {
        let is_over = AtomicBool::new(false);
        let copy = std::thread::scope(|scope| {
            let sessions = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut client = server.client();
                    while !is_over.load(Ordering::Relaxed) {
                        insert(&mut client, 50);
                    }
                })
            });
            let end = End(&is_over);
            let rows = || value::<i64>(&mut server.client(), "SELECT count(*) FROM t");
            let before = rows();
            server.wait_for(PATIENCE, "rows", || rows() > before + 2000);
            let copy = server.snapshot();
            drop(end);
            sessions.into_iter().for_each(|session| session.join().unwrap());
            copy
        });
        copy.start_again();
        let mut client = copy.client();
        let ids = stored(&mut client);
        let first = draw_one(&mut client, "snowflake");
        assert!(first.id > last(&ids), "{} after {}", first.id, last(&ids));
        assert!(first.lead_ms <= 5000.0, "{} ms ahead", first.lead_ms);
    }
}

/// A container that moves into another time namespace, or a machine that boots: CLOCK_BOOTTIME is another one.
#[test]
fn ids_continue_over_a_restart_with_another_boot_clock() {
    let server = builder().start_with_extension();
    for years in [56, 0, 56] {
        let mut client = server.client();
        execute(&mut client, "SELECT snowflake_observe(snowflake_ceil(clock_timestamp() + interval '1 min'))");
        let before = draw_one(&mut client, "snowflake");
        drop(client);
        server.kill9_postmaster();
        server.clock().set_boot_offset(Duration::from_secs(years * 365 * 24 * 3600));
        server.start_again();
        let mut client = server.client();
        execute(&mut client, "SET statement_timeout = '20 s'");
        for _ in 0..100 {
            assert!(draw_one(&mut client, "snowflake").id > before.id);
        }
        let until_ms = time_of(&mut client, before.id, "snowflake");
        execute(&mut client, "SELECT count(*) FROM snowflake_next_many(40000)");
        let lead_ms = draw_one(&mut client, "snowflake").time_ms - until_ms;
        assert!(lead_ms <= 20_000, "ids have gone on by {lead_ms} ms");
    }
}
