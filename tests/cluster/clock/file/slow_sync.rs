//! A sync of the mark that hangs: ids continue up to the durable mark, and waits for the mark can be ended.

use std::sync::atomic::{AtomicBool, Ordering};

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{PATIENCE, backend_pid, expect_error, ids, value, wait_until_waiting};
use postgres::Client;

use super::shim::{Call, Shim, WINDOW_MS, with_shim};
use super::{NEXT, assert_after, assert_decoding_works, draw_until_refused, last_time_ms, next};

/// While one session hangs in the sync, waits of other sessions can be ended.
fn assert_waits_can_be_ended(cluster: &Cluster, shim: &Shim, waiter: &mut Client) {
    waiter.batch_execute("SET statement_timeout = '200ms'").unwrap();
    expect_error(waiter, NEXT, "57014");
    expect_error(waiter, "SELECT count(*) FROM snowflake_next_many(10)", "57014");
    // Inside a transaction that continues.
    waiter.batch_execute("BEGIN; SAVEPOINT s").unwrap();
    expect_error(waiter, NEXT, "57014");
    waiter.batch_execute("ROLLBACK TO s").unwrap();
    assert_decoding_works(waiter);
    waiter.batch_execute("COMMIT; RESET statement_timeout").unwrap();
    assert!(shim.is_held(), "the sync still hangs");

    let pid = backend_pid(waiter);
    for signal in ["pg_cancel_backend", "pg_terminate_backend"] {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.simple_query(NEXT).is_err());
            wait_until_waiting(cluster, pid);
            assert!(value::<bool>(&mut cluster.client(), &format!("SELECT {signal}({pid})")));
            assert!(waiting.join().unwrap());
        });
        assert!(shim.is_held(), "the sync still hangs");
        if signal == "pg_cancel_backend" {
            assert_decoding_works(waiter);
        }
    }
    assert!(waiter.simple_query("SELECT 1").is_err(), "the session was terminated");
}

#[test]
fn hanging_sync_blocks_ids_only_at_the_mark_and_the_wait_can_be_ended() {
    // Half a window of room after the mark is due.
    let (cluster, shim) = with_shim(4000);
    let mut waiter = cluster.client();
    let mut late = cluster.client();
    let mut seen = vec![next(&mut waiter), next(&mut late)];
    shim.order("fsync hold");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One of its calls finds the mark due and hangs in the sync.
        let mover = scope.spawn(|| {
            let mut client = cluster.client();
            let mut drawn = Vec::new();
            while !done.load(Ordering::Relaxed) {
                drawn.push(next(&mut client));
            }
            drawn
        });
        cluster.wait_for(PATIENCE, "the sync", || shim.is_held());
        let durable_ms = shim.durable_mark_ms();
        for _ in 0..50 {
            seen.push(next(&mut waiter));
            seen.extend(ids(&mut late, "SELECT snowflake_next_many(20)"));
            seen.push(value(&mut late, "SELECT snowflake_next('snowflake')"));
        }
        seen.push(next(&mut cluster.client()));
        assert!(shim.is_held(), "the ids were drawn during the sync");
        assert_increasing(&seen);

        // At the mark a draw waits silently, because there is no error.
        waiter.batch_execute("SET statement_timeout = '500ms'").unwrap();
        let (drawn, _) = draw_until_refused(&cluster, &mut waiter, "57014");
        seen.extend(drawn);
        assert!(last_time_ms(&seen) < durable_ms, "{} is past {durable_ms}", last_time_ms(&seen));
        assert_eq!(shim.durable_mark_ms(), durable_ms);
        assert_waits_can_be_ended(&cluster, &shim, &mut waiter);

        // Another wait gets its id as soon as the mark moves.
        let pid = backend_pid(&mut late);
        let waiting = scope.spawn(move || next(&mut late));
        wait_until_waiting(&cluster, pid);
        done.store(true, Ordering::Relaxed);
        shim.order("none");
        let id = waiting.join().unwrap();
        assert_after(&seen, &[id]);
        let moved = mover.join().unwrap();
        assert_distinct([&seen[..], &moved].concat());
        assert!(last_time_ms(&moved) < shim.durable_mark_ms());
        assert!(next(&mut cluster.client()) > id);
    });
}

#[test]
fn wait_for_a_hanging_first_read_after_a_start_can_be_ended() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let seen = [next(&mut cluster.client())];
    cluster.restart();
    shim.order("fsync hold");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| next(&mut cluster.client()));
        cluster.wait_for(PATIENCE, "the sync", || shim.is_held());
        assert_waits_can_be_ended(&cluster, &shim, &mut cluster.client());
        shim.order("none");
        assert_after(&seen, &[reader.join().unwrap()]);
    });
    let after = next(&mut cluster.client());
    assert_after(&seen, &[after]);
}

/// The record was written but not synced, so no id beyond the old mark was issued.
#[test]
fn crash_during_a_sync_repeats_no_id() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let mut seen = vec![next(&mut cluster.client())];
    shim.order("fsync hold");
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut client = cluster.client();
            let mut drawn: Vec<i64> = Vec::new();
            while let Ok(row) = client.query_one(NEXT, &[]) {
                drawn.push(row.get(0));
            }
            drawn
        });
        cluster.wait_for(PATIENCE, "the sync", || shim.is_held());
        let mut client = cluster.client();
        client.batch_execute("SET statement_timeout = '200ms'").unwrap();
        seen.extend(draw_until_refused(&cluster, &mut client, "57014").0);
        let durable_ms = shim.durable_mark_ms();
        assert!(last_time_ms(&seen) < durable_ms);
        // The session in the sync does not notice the death of its postmaster.
        let release = scope.spawn(|| {
            cluster.wait_for(PATIENCE, "the death of the postmaster", || cluster.try_client().is_err());
            shim.order("none");
        });
        cluster.kill9_postmaster();
        release.join().unwrap();
        seen.extend(mover.join().unwrap());
    });
    let writes = shim.calls().iter().filter(|call| matches!(call, Call::Write { .. })).count();
    assert!(writes >= 2, "the mark did not move");
    cluster.start_again();
    let after = ids(&mut cluster.client(), "SELECT snowflake_next() FROM generate_series(1, 1000)");
    assert_after(&seen, &after);
}
