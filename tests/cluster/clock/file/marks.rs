//! The mark on file: its value, and when it is written.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use idgen_testkit::high_water::{bytes, file, mark_ms, newest_record};
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{PATIENCE, check, ids, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use super::{assert_after, assert_decoding_works, clock_ms, draw_until, next, start, time_ms};

/// Two ids a millisecond: batches run ahead of the clock.
const NARROW: &str = "time:41 worker:3 sequence:1 epoch:2020-01-01";

fn quick() -> Cluster {
    start(Cluster::builder().conf("idgen.clock_window", "100ms").conf("idgen.max_drift", "200ms"))
}

fn last_of_narrow_ms(client: &mut Client, sql: &str) -> i64 {
    let last = format!(
        "SELECT floor(extract(epoch FROM snowflake_time(max(id), '{NARROW}')) * 1000)::bigint FROM ({sql}) AS d (id)"
    );
    value(client, &last)
}

fn writes(client: &mut Client) -> i64 {
    value(client, "SELECT mark_writes FROM idgen.stat_clock")
}

fn shown_mark_ms(client: &mut Client) -> i64 {
    value(client, "SELECT round(extract(epoch FROM mark) * 1000)::bigint FROM idgen.stat_clock")
}

/// With the new window the next mark would be below the current one.
#[test]
fn lowered_window_does_not_move_the_mark_back() {
    let cluster = start(Cluster::builder().conf("idgen.clock_window", "10s").fake_clock());
    let mut client = cluster.client();
    next(&mut client);
    let promised_ms = shown_mark_ms(&mut client);
    cluster.set_conf("idgen.clock_window", "100ms");
    cluster.reload();
    let is_set = "SELECT setting = '100' FROM pg_settings WHERE name = 'idgen.clock_window'";
    cluster.wait_for(PATIENCE, "the reload", || value(&mut client, is_set));
    // Makes the mark due.
    let now_ms: i64 = value(&mut client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint");
    cluster.clock().set_offset_ms(promised_ms - now_ms - 4_000);
    let writes_before = writes(&mut client);
    next(&mut client);
    assert!(writes(&mut client) > writes_before, "the mark was not moved");
    assert!(
        mark_ms(&cluster) >= promised_ms,
        "the file's mark has gone back by {} ms",
        promised_ms - mark_ms(&cluster)
    );
}

#[test]
fn mark_on_file_is_ahead_of_every_id() {
    let cluster = quick();
    let rounds = rounds(200, 5000);
    std::thread::scope(|scope| {
        let single = |sql: &'static str| {
            let mut client = cluster.client();
            for _ in 0..rounds {
                let drawn = ids(&mut client, sql);
                let last_ms = time_ms(*drawn.iter().max().unwrap());
                let mark_ms = mark_ms(&cluster);
                assert!(last_ms < mark_ms, "{last_ms} was issued, and the file says {mark_ms}");
            }
        };
        scope.spawn(move || single("SELECT snowflake_next()"));
        scope.spawn(move || single("SELECT snowflake_next_many(1000)"));
        // Each batch borrows nearly all of the drift.
        scope.spawn(|| {
            let mut client = cluster.client();
            for _ in 0..rounds / 10 {
                let last_ms = last_of_narrow_ms(&mut client, &format!("SELECT snowflake_next_many(150, '{NARROW}')"));
                let mark_ms = mark_ms(&cluster);
                assert!(last_ms < mark_ms, "{last_ms} was issued, and the file says {mark_ms}");
            }
        });
    });
    assert!(newest_record(&cluster).record.turn > 2, "the mark did not move during the draws");
}

/// Bursts that use up the drift, one after the other.
#[test]
fn mark_on_file_is_ahead_of_bursts() {
    let cluster = quick();
    let mut client = cluster.client();
    for _ in 0..rounds(10, 100) {
        let last_ms = last_of_narrow_ms(&mut client, &format!("SELECT snowflake_next_many(600, '{NARROW}')"));
        assert!(last_ms < mark_ms(&cluster));
    }
    let borrowed = "SELECT sum(borrowed)::bigint FROM idgen.stat_snowflake WHERE layout LIKE 'time:41 worker:3 %'";
    assert!(value::<i64>(&mut client, borrowed) > 3000);
    assert_eq!(shown_mark_ms(&mut client), mark_ms(&cluster));
}

/// A later write into a hole of the file could fail on a full disk.
#[test]
fn file_has_all_its_blocks_from_its_first_record_on() {
    let cluster = start(Cluster::builder());
    // Observing an id of 2010 writes only the first records: one that allows the label, and one with the mark.
    assert_eq!(ids(&mut cluster.client(), "SELECT 1::bigint FROM snowflake_observe(1)"), [1]);
    assert_eq!(newest_record(&cluster).record.turn, 2);
    let metadata = std::fs::metadata(file(&cluster)).expect("the file");
    assert!(metadata.blocks() * 512 >= metadata.len(), "{} blocks of {} bytes", metadata.blocks(), metadata.len());
}

#[test]
fn mark_is_written_once_a_window_and_only_while_ids_are_drawn() {
    // With a drift, slow draws reach the mark less often.
    for (drift, at_least) in [("0", 5), ("1s", 1)] {
        let cluster = start(Cluster::builder().conf("idgen.clock_window", "100ms").conf("idgen.max_drift", drift));
        let mut client = cluster.client();
        next(&mut client);
        client.simple_query("SELECT idgen.reset_stats()").unwrap();
        assert_eq!(writes(&mut client), 0);
        let began_ms = clock_ms(&mut client);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut client = cluster.client();
                    while !done.load(Ordering::Relaxed) {
                        ids(&mut client, "SELECT snowflake_next() FROM generate_series(1, 100)");
                    }
                });
            }
            draw_until(&cluster, &mut client, began_ms + 1500);
            done.store(true, Ordering::Relaxed);
        });
        let (writes_then, elapsed_ms) = (writes(&mut client), clock_ms(&mut client) - began_ms);
        assert!(writes_then <= elapsed_ms / 100 + 2, "{writes_then} writes in {elapsed_ms} ms");
        assert!(writes_then >= at_least, "{writes_then} writes in {elapsed_ms} ms of load");
        let row = client.query_one("SELECT mark_write_time > '0' FROM idgen.stat_clock", &[]).unwrap();
        assert!(row.get::<_, bool>(0));

        // Six windows pass. Decoding and reading views writes nothing.
        let before = bytes(&cluster);
        client.simple_query("SELECT pg_sleep(0.3)").unwrap();
        assert_decoding_works(&mut client);
        client.simple_query("SELECT idgen.status(), pg_sleep(0.3)").unwrap();
        client.simple_query("SELECT * FROM idgen.stat_clock, idgen.stat_snowflake").unwrap();
        assert_eq!(writes(&mut client), writes_then);
        assert_eq!(bytes(&cluster), before);
    }
}

#[test]
fn clean_shutdown_leaves_the_exact_mark_and_a_crash_the_promised_one_smoke() {
    let cluster = start(Cluster::builder().conf("idgen.clock_window", "30s"));
    let mut seen = Vec::new();
    for (stop, exact) in [
        (Stop::Fast, true),
        (Stop::Immediate, false),
        (Stop::Fast, true),
        (Stop::Smart, true),
        (Stop::Immediate, false),
    ] {
        let mut client = cluster.client();
        let drawn = ids(&mut client, "SELECT snowflake_next() FROM generate_series(1, 10000)");
        if !seen.is_empty() {
            assert_after(&seen, &drawn);
        }
        let last_ms = time_ms(*drawn.last().unwrap());
        seen.extend(drawn);
        drop(client);
        let before = bytes(&cluster);
        let promised_ms = mark_ms(&cluster);
        assert!(promised_ms > last_ms + 20_000);
        cluster.stop(stop);
        if exact {
            let exact_ms = mark_ms(&cluster);
            assert!((last_ms + 1..=last_ms + 2).contains(&exact_ms), "{exact_ms} after the last id at {last_ms}");
        } else {
            assert_eq!(bytes(&cluster), before);
        }
        cluster.start_again();
    }
    let after = next(&mut cluster.client());
    assert_after(&seen, &[after]);
}

/// The layout whose ids reach furthest determines the mark, also if its unit is long.
#[test]
fn exact_mark_is_after_the_ids_of_every_layout() {
    let cluster = start(Cluster::builder().conf("idgen.max_drift", "20s"));
    let mut client = cluster.client();
    let narrow_ms = last_of_narrow_ms(&mut client, &format!("SELECT snowflake_next_many(10000, '{NARROW}')"));
    let last_ms = time_ms(next(&mut client));
    assert!(narrow_ms > last_ms + 3000, "the burst is not ahead");
    drop(client);
    cluster.stop(Stop::Fast);
    let exact_ms = mark_ms(&cluster);
    assert!((narrow_ms + 1..=narrow_ms + 2).contains(&exact_ms), "{exact_ms} after the last id at {narrow_ms}");
    cluster.start_again();
    assert!(time_ms(next(&mut cluster.client())) > narrow_ms);
}

#[test]
fn server_that_draws_nothing_does_not_change_the_file() {
    let cluster = quick();
    let mut seen = ids(&mut cluster.client(), "SELECT snowflake_next() FROM generate_series(1, 100)");
    for crash in [false, true] {
        if crash {
            cluster.kill9_postmaster();
        } else {
            cluster.stop(Stop::Fast);
        }
        let before = bytes(&cluster);
        for stop in [Stop::Fast, Stop::Immediate, Stop::Smart] {
            cluster.start_again();
            let mut client = cluster.client();
            assert_decoding_works(&mut client);
            let mark: Option<std::time::SystemTime> = value(&mut client, "SELECT mark FROM idgen.stat_clock");
            assert_eq!(mark, None, "the mark is not read before the first id");
            drop(client);
            cluster.stop(stop);
            assert_eq!(bytes(&cluster), before, "{stop:?}");
        }
        cluster.start_again();
        let after = ids(&mut cluster.client(), "SELECT snowflake_next() FROM generate_series(1, 100)");
        assert_after(&seen, &after);
        seen.extend(after);
    }
}

#[test]
fn changed_default_layout_is_logged_once() {
    let cluster = start(Cluster::builder());
    let logged = || cluster.log().lines().filter(|line| line.contains("LOG:  idgen.layout is")).count();
    next(&mut cluster.client());
    assert!(check(&mut cluster.client(), "idgen.layout").0);
    cluster.set_conf("idgen.layout", "js53");
    cluster.restart();
    let mut client = cluster.client();
    next(&mut client);
    next(&mut cluster.client());
    assert_eq!(logged(), 1, "{}", cluster.log());
    let line = cluster.log().lines().find(|line| line.contains("LOG:  idgen.layout is")).unwrap().to_owned();
    assert!(line.contains("worker:3 sequence:9") && line.contains("worker:10 sequence:12"), "{line}");
    let (ok, message) = check(&mut client, "idgen.layout");
    assert!(!ok && message.contains("idgen.layout"), "{message}");
    assert!(newest_record(&cluster).record.layout.contains("worker:3 sequence:9"));

    drop(client);
    cluster.restart();
    let mut client = cluster.client();
    next(&mut client);
    assert_eq!(logged(), 1);
    assert!(check(&mut client, "idgen.layout").0);

    // Another spelling is the same layout.
    let spec: String = value(&mut client, "SELECT spec FROM snowflake_layout()");
    cluster.set_conf("idgen.layout", &spec);
    cluster.restart();
    let mut client = cluster.client();
    next(&mut client);
    assert_eq!(logged(), 1);
    assert!(check(&mut client, "idgen.layout").0);
}

#[test]
fn window_and_drift_take_effect_at_a_reload() {
    let cluster = start(Cluster::builder().conf("idgen.clock_window", "100ms").conf("idgen.max_drift", "0"));
    let mut client = cluster.client();
    let ahead_ms = |client: &mut Client| shown_mark_ms(client) - clock_ms(client);
    let first_ms = clock_ms(&mut client);
    let mut seen = draw_until(&cluster, &mut client, first_ms + 300);
    assert!(ahead_ms(&mut client) <= 150);

    cluster.set_conf("idgen.clock_window", "20s");
    cluster.reload();
    cluster.wait_for(PATIENCE, "a mark by the new window", || {
        seen.push(next(&mut client));
        ahead_ms(&mut client) > 25_000
    });
    client.simple_query("SELECT idgen.reset_stats()").unwrap();
    let now_ms = clock_ms(&mut client);
    seen.extend(draw_until(&cluster, &mut client, now_ms + 500));
    assert_eq!(writes(&mut client), 0, "the long window needs no write");

    // The mark never moves back: a shorter window takes effect after the longer one has passed.
    let long_ms = shown_mark_ms(&mut client);
    cluster.set_conf("idgen.clock_window", "100ms");
    cluster.set_conf("idgen.max_drift", "10s");
    cluster.reload();
    let last_ms = last_of_narrow_ms(&mut client, &format!("SELECT snowflake_next_many(10000, '{NARROW}')"));
    let lead_ms = last_ms - clock_ms(&mut client);
    assert!(lead_ms > 2000, "the drift is not used: {lead_ms} ms");
    assert!(shown_mark_ms(&mut client) >= long_ms);
    assert!(last_ms < mark_ms(&cluster));

    cluster.set_conf("idgen.max_drift", "0");
    cluster.reload();
    let now_ms = clock_ms(&mut client);
    let id = next(&mut client);
    assert!(time_ms(id) <= clock_ms(&mut client), "{now_ms}: an id of another layout is ahead");
    seen.push(id);
    assert_increasing(&seen);
    // The exact mark at shutdown cuts the long window short.
    drop(client);
    cluster.restart();
    let mut client = cluster.client();
    assert_after(&seen, &[next(&mut client)]);
}
