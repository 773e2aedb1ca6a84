//! More layouts than generators.

use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{execute, expect_error, ids, value};
use idgen_testkit::{Cluster, rounds};
use postgres::Client;

use crate::{tag_of, tagged};

/// A layout with so few ids a tick that a batch runs far ahead of the clock.
fn narrow(tag: i64) -> String {
    format!("time:41 tag:10={tag} sequence:1 epoch:2020-01-01")
}

fn draw(client: &mut Client, layout: &str) -> i64 {
    value(client, &format!("SELECT snowflake_next('{layout}')"))
}

/// A generator ahead of the clock can be evicted too, and its layout continues where it was.
#[test]
fn new_layout_evicts_a_generator_that_is_ahead_of_the_clock() {
    let builder = Cluster::builder().conf("idgen.max_generators", "4").conf("idgen.max_drift", "1min");
    let cluster = builder.start_with_extension();
    let mut client = cluster.client();
    // 50 seconds of ids, of two a millisecond: ahead of the clock for longer than the test.
    let mut last = Vec::new();
    for tag in 1..4 {
        let sql = format!("SELECT max(id) FROM snowflake_next_many(100000, '{}') AS id", narrow(tag));
        last.push(value::<i64>(&mut client, &sql));
    }
    let newcomer = format!("SELECT snowflake_time(snowflake_next('{0}'), '{0}') <= clock_timestamp()", narrow(4));
    assert!(value::<bool>(&mut client, &newcomer), "the new layout is not ahead of the clock");
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > 0);
    for tag in 1..4 {
        assert!(draw(&mut client, &narrow(tag)) > last[tag as usize - 1]);
    }
}

/// An error must not take a generator permanently.
#[test]
fn layout_that_cannot_issue_ids_takes_no_generator() {
    let cluster = Cluster::builder().conf("idgen.max_generators", "4").start_with_extension();
    let mut client = cluster.client();
    for tag in 0..10 {
        let future = format!("time:41 tag:10={tag} sequence:12 epoch:2100-01-01");
        expect_error(&mut client, &format!("SELECT snowflake_next('{future}')"), "22003");
        let past = format!("time:20 tag:10={tag} sequence:12 epoch:2020-01-01");
        expect_error(&mut client, &format!("SELECT snowflake_next('{past}')"), "22003");
    }
    assert!(draw(&mut client, &tagged(1)) > 0);
}

/// Ticks of a second: without the rest of its tick, each layout would get one id a second.
#[test]
fn evicted_layout_goes_on_within_its_tick() {
    let cluster = Cluster::builder().conf("idgen.max_generators", "2").start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SET statement_timeout = '20 s'");
    let layouts = [1, 2, 3].map(|tag| format!("time:32 tag:2={tag} sequence:20 unit:1s epoch:2020-01-01"));
    let draws = layouts.each_ref().map(|layout| format!("snowflake_next('{layout}')")).join(", ");
    // The layout of idgen.layout is never evicted.
    let sql = format!("SELECT ARRAY[{draws}, snowflake_next()] FROM generate_series(1, 1000)");
    let rows: Vec<Vec<i64>> = client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    for layout in 0..4 {
        assert_increasing(&rows.iter().map(|row| row[layout]).collect::<Vec<_>>());
    }
}

/// A statement caches its generator from row to row, and must notice that it was evicted.
#[test]
fn cursor_continues_after_its_generator_was_evicted() {
    let cluster = Cluster::builder().conf("idgen.max_generators", "2").start_with_extension();
    let mut holder = cluster.client();
    let mut other = cluster.client();
    let mine = tagged(1);
    execute(
        &mut holder,
        &format!(
            "BEGIN;
             DECLARE single CURSOR FOR SELECT snowflake_next('{mine}') FROM generate_series(1, 1000);
             DECLARE batch CURSOR FOR SELECT snowflake_next_many(1000, '{mine}');"
        ),
    );
    let (mut single, mut batch, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for tag in 2..102 {
        single.extend(ids(&mut holder, "FETCH 10 FROM single"));
        batch.extend(ids(&mut holder, "FETCH 10 FROM batch"));
        draw(&mut other, &tagged(tag));
        // The cursor's layout too, so that a repeat would show.
        all.push(draw(&mut other, &mine));
    }
    assert_eq!((single.len(), batch.len()), (1000, 1000));
    assert_increasing(&single);
    assert_increasing(&batch);
    assert_increasing(&all);
    all.extend(single.iter().chain(&batch));
    assert_distinct(all);
}

/// Sessions evict each other's generators continuously.
#[test]
fn concurrent_evictions_repeat_no_id() {
    let cluster = Cluster::builder().conf("idgen.max_generators", "4").start_with_extension();
    cluster.execute(
        "CREATE FUNCTION drawn(n int) RETURNS bigint[] LANGUAGE plpgsql AS $$
         DECLARE
             ids bigint[] := '{}'; l text;
         BEGIN
             WHILE cardinality(ids) < n LOOP
                 l := format('time:41 tag:10=%s sequence:12 epoch:2020-01-01', floor(random() * 8));
                 IF random() < 0.5 THEN
                     ids := ids || snowflake_next(l);
                 ELSE
                     ids := ids || array(SELECT snowflake_next_many(3, l));
                 END IF;
             END LOOP;
             RETURN ids;
         END $$",
    );
    for _ in 0..rounds(1, 50) {
        let drawn: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let draw = || value::<Vec<i64>>(&mut cluster.client(), "SELECT drawn(4000)");
            let sessions: Vec<_> = (0..8).map(|_| scope.spawn(draw)).collect();
            sessions.into_iter().map(|session| session.join().unwrap()).collect()
        });
        for session in &drawn {
            for tag in 0..8 {
                let own: Vec<i64> = session.iter().copied().filter(|id| tag_of(*id) == tag).collect();
                assert!(!own.is_empty(), "tag {tag}");
                assert_increasing(&own);
            }
        }
        assert_distinct(drawn.concat());
    }
    let shown: i64 = value(&mut cluster.client(), "SELECT count(*) FROM idgen.stat_snowflake");
    assert_eq!(shown, 3, "eight layouts share three generators");
}
