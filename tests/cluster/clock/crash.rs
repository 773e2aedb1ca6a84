//! Crashes and restarts, with the clock unchanged or set back: no id that a client has seen is issued again.

use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_distinct, assert_increasing, count_repeated, last};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, row, stream, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use crate::{
    builder, draw_not_above, draw_one, ms, set_clock, time_of, wait_for_end_of_worker, wait_until_past_checkpoint,
};

/// Two id spaces.
const LAYOUTS: [&str; 2] = ["snowflake", "js53"];
const DATABASES: [&str; 2] = ["postgres", "other"];

#[derive(Clone, Copy, Debug)]
enum Death {
    Immediate,
    Postmaster,
    Backend,
}

fn two_databases() -> Cluster {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE DATABASE other");
    execute(&mut cluster.client_in("other"), "CREATE EXTENSION idgen");
    cluster
}

/// Draws in open transactions until the server crashes: in both layouts, by single calls and in batches, in two databases.
/// Returns the ids that the clients saw, in order, per layout. None is committed.
fn draw_until_crash(cluster: &Cluster, death: Death) -> [Vec<i64>; 2] {
    const ENOUGH: usize = 50_000;
    let counts: [AtomicUsize; 4] = Default::default();
    let mut clients: Vec<Client> = (0..4).map(|n| cluster.client_in(DATABASES[(n + n / 2) % 2])).collect();
    let victim = backend_pid(&mut clients[3]);
    let seen: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let counts = &counts;
        let draw = |(n, mut client): (usize, Client)| {
            let layout = LAYOUTS[n / 2];
            let sql = match n % 2 {
                0 => format!("SELECT snowflake_next('{layout}') FROM generate_series(1, 10000)"),
                _ => format!("SELECT snowflake_next_many(10000, '{layout}')"),
            };
            let mut seen = Vec::new();
            execute(&mut client, "BEGIN");
            while stream(&mut client, &sql, &mut seen, &counts[n]).is_ok() {}
            seen
        };
        let sessions: Vec<_> =
            clients.into_iter().enumerate().map(|session| scope.spawn(move || draw(session))).collect();
        let enough = || counts.iter().all(|count| count.load(Ordering::Relaxed) > ENOUGH);
        cluster.wait_for(PATIENCE, "the sessions to have seen enough", enough);
        match death {
            Death::Immediate => cluster.stop(Stop::Immediate),
            Death::Postmaster => cluster.kill9_postmaster(),
            Death::Backend => cluster.kill9(victim),
        }
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    seen.iter().for_each(|ids| assert_increasing(ids));
    std::array::from_fn(|layout| assert_distinct(seen[2 * layout..2 * layout + 2].concat()))
}

fn recover(cluster: &Cluster, death: Death) {
    match death {
        Death::Backend => cluster.wait_until_ready(),
        Death::Immediate | Death::Postmaster => cluster.start_again(),
    }
}

/// Draws more ids than were seen, by single calls and in a batch. Each is above all that were seen.
fn assert_ids_continue(cluster: &Cluster, seen: &[Vec<i64>; 2]) {
    for (n, (layout, seen)) in LAYOUTS.into_iter().zip(seen).enumerate() {
        let mut client = cluster.client_in(DATABASES[n]);
        let sql = format!("SELECT array_agg(snowflake_next('{layout}')) FROM generate_series(1, 2000)");
        let singles: Vec<i64> = value(&mut client, &sql);
        assert_increasing(&singles);
        let below = draw_not_above(&mut client, layout, seen.len(), last(seen));
        let repeats = count_repeated(seen, &singles) + count_repeated(seen, &below);
        assert_eq!(repeats, 0, "{layout}: of {} seen ids were issued again", seen.len());
        assert!(singles[0] > last(seen), "{layout}: {} was issued after {}", singles[0], last(seen));
        assert_eq!(below.len(), 0, "{layout}: ids below one that was seen");
    }
}

#[test]
fn crash_repeats_no_id_that_was_seen() {
    let cluster = two_databases();
    for _ in 0..rounds(2, 20) {
        for death in [Death::Immediate, Death::Postmaster, Death::Backend] {
            let seen = draw_until_crash(&cluster, death);
            recover(&cluster, death);
            assert_ids_continue(&cluster, &seen);
        }
    }
}

#[test]
fn crash_with_the_clock_set_back_repeats_no_id_that_was_seen() {
    for round in 0..rounds(1, 10) {
        for (n, back_ms) in [10_000, 3_600_000].into_iter().enumerate() {
            let cluster = two_databases();
            let death = [Death::Immediate, Death::Postmaster][(round + n) % 2];
            let seen = draw_until_crash(&cluster, death);
            cluster.clock().set_offset_ms(-back_ms);
            recover(&cluster, death);
            assert_ids_continue(&cluster, &seen);
            // Once more while the ids are ahead of the clock.
            let seen = draw_until_crash(&cluster, death);
            cluster.clock().set_offset_ms(-2 * back_ms);
            recover(&cluster, death);
            assert_ids_continue(&cluster, &seen);
        }
        // The clock is set back while the server recovers from the crash of one backend.
        let cluster = two_databases();
        cluster.clock().set_offset_ms(3_600_000);
        let seen = draw_until_crash(&cluster, Death::Backend);
        cluster.clock().set_offset_ms(0);
        recover(&cluster, Death::Backend);
        assert_ids_continue(&cluster, &seen);
    }
}

/// Draws a hundred thousand ids of each layout, crashes, and sets the clock back so that it passes the same instants again.
/// Returns per layout the number of ids seen and of those issued again.
fn replay_instants(death: Death, with_the_mark: bool) -> [(usize, usize); 2] {
    const SEEN: usize = 100_000;
    let cluster = builder().start_with_extension();
    wait_until_past_checkpoint(&cluster);
    let mut client = cluster.client();
    let seen = LAYOUTS.map(|layout| -> Vec<i64> {
        value(&mut client, &format!("SELECT array_agg(id) FROM snowflake_next_many({SEEN}, '{layout}') AS id"))
    });
    let spans: [(i64, i64); 2] = std::array::from_fn(|n| {
        let (layout, ids) = (LAYOUTS[n], &seen[n]);
        (time_of(&mut client, ids[0], layout), time_of(&mut client, last(ids), layout))
    });
    let begin_ms = spans[0].0.min(spans[1].0);
    if !with_the_mark {
        // Otherwise the label would stand in for the mark.
        wait_for_end_of_worker(&cluster, &mut client);
        execute(&mut client, "DELETE FROM pg_shseclabel WHERE provider = 'idgen'");
    }
    match death {
        Death::Immediate => cluster.stop(Stop::Immediate),
        Death::Postmaster => cluster.kill9_postmaster(),
        Death::Backend => unreachable!("the files can be changed only while the server is down"),
    }
    if !with_the_mark {
        std::fs::remove_dir_all(cluster.data_dir().join("idgen")).expect("the mark's directory");
    }
    // Recovery ends with a checkpoint, whose time must be earlier than the ids.
    set_clock(&cluster, begin_ms - 10_000);
    cluster.start_again();
    let mut client = cluster.client();
    let checkpoint_ms = ms(&mut client, "(SELECT checkpoint_time FROM pg_control_checkpoint())");
    assert!(checkpoint_ms + 1000 < begin_ms, "checkpoint at {checkpoint_ms}, first id at {begin_ms}");
    std::array::from_fn(|n| {
        // Enough ids without a gap from a second before the first one to past the last one.
        let ((begin_ms, end_ms), per_ms) = (spans[n], [4096, 512][n]);
        set_clock(&cluster, begin_ms - 1000);
        let count = usize::try_from((end_ms - begin_ms + 1100) * per_ms).expect("a count");
        let again = draw_not_above(&mut client, LAYOUTS[n], count.max(2 * SEEN), last(&seen[n]));
        (SEEN, count_repeated(&seen[n], &again))
    })
}

#[test]
fn replayed_instants_repeat_no_id_smoke() {
    for round in 0..rounds(2, 20) {
        let death = [Death::Immediate, Death::Postmaster][round % 2];
        for (layout, (seen, again)) in LAYOUTS.into_iter().zip(replay_instants(death, true)) {
            assert_eq!(again, 0, "{layout}: of {seen} ids");
        }
    }
}

/// The control: the same test without the mark, as on a first start. It shows that the mark prevents the repeats.
#[test]
fn replayed_instants_repeat_ids_without_the_mark() {
    for (layout, (seen, again)) in LAYOUTS.into_iter().zip(replay_instants(Death::Postmaster, false)) {
        assert!(again > seen / 4, "{layout}: {again} of {seen} ids were issued again");
    }
}

/// The number of ids drawn, at most a second's worth, and the tick in milliseconds of each layout.
const BORROWERS: [(&str, i64, i64); 4] =
    [("snowflake", 4_096_000, 1), ("sonyflake", 25_600, 10), ("js53", 512_000, 1), ("seconds", 1_000_000, 1000)];

#[test]
fn clean_restart_after_borrowing_continues_where_the_ids_were() {
    let cluster = builder().conf("idgen.max_drift", "1s").start_with_extension();
    // The coarsest layout last: after a restart all layouts begin after its tick.
    for (layout, per_second, tick_ms) in BORROWERS {
        for _ in 0..rounds(2, 10) {
            let mut client = cluster.client();
            let sql = format!("SELECT max(id), count(*) FROM snowflake_next_many({per_second}, '{layout}') AS id");
            let drawn = row(&mut client, &sql);
            let highest: i64 = drawn.get(0);
            assert_eq!(drawn.get::<_, i64>(1), per_second);
            let end_ms = time_of(&mut client, highest, layout) + tick_ms;
            let lead = "(extract(epoch FROM lead) * 1000)::float8";
            let lead_ms: f64 = value(&mut client, &format!("SELECT {lead} FROM idgen.stat_clock"));
            let borrowed = format!("SELECT sum(borrowed)::bigint FROM idgen.stat_snowflake WHERE last_id = {highest}");
            let borrowed: i64 = value(&mut client, &borrowed);
            assert!(layout == "seconds" || borrowed >= per_second / 2, "{layout}: {borrowed} borrowed");
            cluster.restart();

            let mut client = cluster.client();
            let first = draw_one(&mut client, layout);
            assert!(first.id > highest, "{layout}: {} after {highest}", first.id);
            // Exactly there, or at the clock if that is later.
            let expected_ms = first.clock_ms.max(end_ms as f64);
            assert!(first.time_ms as f64 <= expected_ms, "{layout}: {} after {end_ms}", first.time_ms);
            let most_ms = lead_ms + tick_ms as f64;
            assert!(first.lead_ms <= most_ms, "{layout}: {} ms ahead, was {lead_ms}", first.lead_ms);
            for other in LAYOUTS {
                let other = draw_one(&mut client, other);
                assert!(other.lead_ms <= most_ms + tick_ms as f64, "{} ms ahead, was {lead_ms}", other.lead_ms);
            }
        }
    }
}

#[test]
fn clean_restart_keeps_the_lead_and_a_crash_adds_at_most_the_window() {
    const PROMISED_MS: f64 = 91_000.0;
    let cluster = builder().conf("idgen.max_drift", "1s").conf("idgen.clock_window", "60s").start_with_extension();
    wait_until_past_checkpoint(&cluster);
    let draw = || draw_one(&mut cluster.client(), "snowflake");
    let mut before = draw();
    for _ in 0..rounds(3, 20) {
        cluster.restart();
        let first = draw();
        assert!(first.id > before.id);
        assert!(first.lead_ms <= 0.0, "{} ms ahead after a clean restart", first.lead_ms);
        before = first;
    }
    for crash in 1..=rounds(2, 10) {
        cluster.kill9_postmaster();
        cluster.start_again();
        let first = draw();
        assert!(first.id > before.id);
        // The mark was written just before the crash, one and a half windows ahead.
        let most_ms = before.lead_ms.max(0.0) + PROMISED_MS;
        assert!(first.lead_ms <= most_ms, "crash {crash}: {} ms ahead, may be {most_ms}", first.lead_ms);
        let least_ms = 60_000.0;
        assert!(first.lead_ms > before.lead_ms + least_ms / 2.0, "crash {crash}: {} ms ahead", first.lead_ms);
        before = first;
        // A clean restart does not add to the lead of a crash.
        for _ in 0..2 {
            cluster.restart();
            let first = draw();
            assert!(first.id > before.id);
            assert!(first.lead_ms <= before.lead_ms + 1.0, "{} ms ahead after {}", first.lead_ms, before.lead_ms);
            before = first;
        }
    }
}

#[test]
fn evicted_layout_repeats_no_id_after_a_crash() {
    // idgen.layout has one generator, and all other layouts share the second one.
    let cluster = builder().conf("idgen.max_generators", "2").start_with_extension();
    for round in 0..rounds(2, 20) {
        let mut client = cluster.client();
        // Ahead of the clock, so that the clock alone would repeat ids.
        let drawn = row(&mut client, "SELECT min(id), max(id) FROM snowflake_next_many(400000, 'js53') AS id");
        let (first, highest): (i64, i64) = (drawn.get(0), drawn.get(1));
        let begin_ms = time_of(&mut client, first, "js53");
        let others = ["pgedge", "instagram"].map(|layout| draw_one(&mut client, layout).id);
        let left = "SELECT count(*) FROM idgen.stat_snowflake WHERE last_id BETWEEN $1 AND $2";
        assert_eq!(client.query_one(left, &[&first, &highest]).unwrap().get::<_, i64>(0), 0, "js53 was evicted");
        match round % 2 {
            0 => cluster.kill9_postmaster(),
            _ => cluster.stop(Stop::Fast),
        }
        set_clock(&cluster, begin_ms);
        cluster.start_again();
        let mut client = cluster.client();
        assert!(draw_one(&mut client, "js53").id > highest);
        assert_eq!(draw_not_above(&mut client, "js53", 500_000, highest), Vec::<i64>::new());
        assert!(draw_one(&mut client, "pgedge").id > others[0]);
        assert!(draw_one(&mut client, "instagram").id > others[1]);
    }
}
