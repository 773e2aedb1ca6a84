//! snowflake_next_many cut short, beside other sessions and at a size that cannot be stored. `30_next.sql` has its positions in
//! a query.

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{execute, ids, value};
use postgres::Client;

use crate::tagged;

/// A client that asks for more ids than it reads must not take those of the next seconds from all others.
#[test]
fn set_reserves_ids_as_they_are_read() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    let issued = |client: &mut Client| value::<i64>(client, "SELECT sum(issued)::bigint FROM idgen.stat_snowflake");
    let mut before = 0;
    for function in ["snowflake_next_many", "uuidv7_next_many"] {
        execute(&mut client, &format!("SELECT {function}(2000000000) LIMIT 1"));
        let reserved = issued(&mut client) - before;
        assert!((1..=16).contains(&reserved), "{function}: {reserved} reserved for one row");
        execute(&mut client, &format!("SELECT {function}(2000000000) LIMIT 10000"));
        let now = issued(&mut client);
        let reserved = now - before - reserved;
        assert!((10_000..=20_016).contains(&reserved), "{function}: {reserved} reserved for 10000 rows");
        before = now;
    }
}

/// A batch larger than the drift takes several reservations with waits in between, while others draw.
#[test]
fn batch_beyond_the_drift_takes_several_reservations() {
    let cluster = Cluster::builder().conf("idgen.max_drift", "5ms").start_with_extension();
    let narrow = "time:41 sequence:3 epoch:2020-01-01";
    let draw = |n: usize| {
        let sql = match n % 2 {
            0 => format!("SELECT snowflake_next_many(2000, '{narrow}')"),
            _ => format!("SELECT snowflake_next('{narrow}') FROM generate_series(1, 500)"),
        };
        ids(&mut cluster.client(), &sql)
    };
    let drawn: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..8).map(|n| scope.spawn(move || draw(n))).collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    drawn.iter().for_each(|ids| assert_increasing(ids));
    assert_eq!(assert_distinct(drawn.concat()).len(), 10_000);
    let batches: i64 = value(&mut cluster.client(), "SELECT batches FROM idgen.stat_snowflake");
    assert!(batches >= 8000 / (8 * 6), "at most six ticks of eight ids each: {batches}");
}

#[test]
fn cursor_closed_early_repeats_no_id_smoke() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    let mut seen = Vec::new();
    for ending in ["CLOSE c; COMMIT", "COMMIT", "ROLLBACK"] {
        execute(&mut client, &format!("BEGIN; DECLARE c CURSOR FOR SELECT snowflake_next_many(1000, '{}')", tagged(1)));
        let fetched = ids(&mut client, "FETCH 7 FROM c");
        assert_eq!(fetched.len(), 7);
        seen.extend(fetched);
        seen.extend(ids(&mut client, "FETCH 5 FROM c"));
        execute(&mut client, ending);
        seen.extend(ids(&mut client, &format!("SELECT snowflake_next_many(3, '{}')", tagged(1))));
    }
    assert_eq!(seen.len(), 3 * (7 + 5 + 3));
    assert_increasing(&seen);
    // An error in the middle of a set, at a call site that is used again.
    let sql = format!(
        "DO $$
         BEGIN
             FOR n IN 1..20 LOOP
                 BEGIN
                     PERFORM 1 / (id % 2) FROM (SELECT snowflake_next_many(50, '{}') AS id) AS s;
                     RAISE 'half of the ids are even';
                 EXCEPTION WHEN division_by_zero THEN NULL;
                 END;
             END LOOP;
         END $$",
        tagged(1)
    );
    execute(&mut client, &sql);
    let after = ids(&mut client, &format!("SELECT snowflake_next_many(3, '{}')", tagged(1)));
    assert!(after.len() == 3 && after[0] > seen[seen.len() - 1]);
}

/// Of ten million ids only some are fetched: the rest are not stored.
#[test]
fn huge_set_is_streamed() {
    let cluster = Cluster::builder().conf("log_temp_files", "0").conf("work_mem", "64kB").start_with_extension();
    let mut client = cluster.client();
    let drawn = ids(&mut client, "SELECT snowflake_next_many(10000000) LIMIT 10");
    assert_eq!(drawn.len(), 10);
    assert_increasing(&drawn);

    execute(&mut client, "BEGIN; DECLARE c NO SCROLL CURSOR FOR SELECT snowflake_next_many(2147483647, 'seconds')");
    // In portions, because FETCH stores its result.
    let drawn: Vec<i64> = (0..100).flat_map(|_| ids(&mut client, "FETCH 500 FROM c")).collect();
    assert_eq!(drawn.len(), 50_000);
    assert_increasing(&drawn);
    execute(&mut client, "ROLLBACK");
    assert!(!cluster.log().contains("temporary file"), "{}", cluster.log());
    // A temporary file would be logged.
    execute(&mut client, "SELECT count(*) FROM (SELECT n FROM generate_series(1, 100000) AS n OFFSET 0) AS s");
    assert!(cluster.log().contains("temporary file"));
}
