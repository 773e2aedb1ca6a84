//! The guide on partitions by time: its maintenance procedure over simulated months.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, expect_error, value};
use postgres::Client;

use crate::page::run_block;

const GUIDE: &str = "partitions.md";
/// A partition, its first id, and the id where it ends.
const BOUNDS: &str = r"SELECT inhrelid::regclass::text, bound[1]::bigint, bound[2]::bigint
    FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid,
         regexp_match(pg_get_expr(c.relpartbound, c.oid), $r$FROM \('(\d+)'\) TO \('(\d+)'\)$r$) AS bound
    WHERE inhparent = 'readings'::regclass ORDER BY 2";

/// A server with the table and the procedure of the guide, and a session in a time zone that is not that of partitions.
fn site() -> (Cluster, Client) {
    let cluster = Cluster::builder().conf("fsync", "off").conf("timezone", "America/New_York").start_with_extension();
    let mut client = cluster.client();
    for beginning in ["CREATE TABLE readings", "CREATE FUNCTION partition_ends", "CREATE PROCEDURE maintain_partitions"]
    {
        run_block(&mut client, GUIDE, beginning);
    }
    (cluster, client)
}

fn call(unit: &str, keep: &str, as_of: &str) -> String {
    format!("CALL maintain_partitions('readings', '{unit}', '2 months', {keep}, 'snowflake', '{as_of}')")
}

/// As a day of the months that count from January 2026.
fn day(month: usize, day: usize) -> String {
    format!("{}-{:02}-{day:02} 00:00Z", 2026 + month / 12, month % 12 + 1)
}

/// The names of the partitions, which must have no gaps between them.
fn partitions(client: &mut Client) -> Vec<String> {
    let bounds: Vec<(String, i64, i64)> =
        client.query(BOUNDS, &[]).expect(BOUNDS).iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    for pair in bounds.windows(2) {
        assert_eq!(pair[0].2, pair[1].1, "{} begins where {} ends", pair[1].0, pair[0].0);
    }
    bounds.into_iter().map(|(name, ..)| name).collect()
}

fn tables(client: &mut Client) -> Vec<String> {
    column(client, "SELECT tablename::text FROM pg_tables WHERE tablename ~ '^readings_' ORDER BY 1")
}

fn month_names(months: impl Iterator<Item = usize>) -> Vec<String> {
    months.map(|month| format!("readings_{}", &day(month, 1)[..10].replace('-', "_"))).collect()
}

#[test]
fn partitions_follow_the_months_and_old_ones_are_dropped() {
    let (_cluster, mut client) = site();
    for month in 0..20 {
        let run = call("month", "interval '6 months'", &day(month, 20));
        execute(&mut client, &run);
        // Six months before the 20th, and two months after it.
        let expected = month_names(month.saturating_sub(6)..month + 3);
        assert_eq!(partitions(&mut client), expected, "month {month}");
        execute(&mut client, &run);
        assert_eq!(partitions(&mut client), expected, "a second run changes nothing in month {month}");
        assert_eq!(tables(&mut client), expected, "what is detached is also dropped in month {month}");

        // The first and the last id of the month, and one of the month after the next.
        let at = format!(
            "INSERT INTO readings SELECT snowflake_make(at, 1023, 0, 'snowflake'), 0 FROM (VALUES
             ('{}'::timestamptz), ('{}'::timestamptz - interval '1 ms'), ('{}'::timestamptz)) AS made(at)
             RETURNING tableoid::regclass::text",
            day(month, 1),
            day(month + 1, 1),
            day(month + 2, 17)
        );
        let names = month_names(month..month + 3);
        assert_eq!(column::<String>(&mut client, &at), [&*names[0], &names[0], &names[2]]);
    }
    // The 20 months but for those dropped: each has the two rows of its own, and that of two months before.
    let rows: i64 = value(&mut client, "SELECT count(*) FROM readings");
    assert_eq!(rows, 3 * 7 + 2);
    let gone = format!("INSERT INTO readings VALUES (snowflake_make('{}', 1023, 0, 'snowflake'), 0)", day(12, 31));
    expect_error(&mut client, &gone, "23514");
}

#[test]
fn partitions_have_no_gaps_after_months_without_a_run_or_another_unit() {
    let (_cluster, mut client) = site();
    for (unit, as_of) in [
        ("month", day(0, 20)),
        ("month", day(9, 3)),
        ("day", day(10, 5)),
        ("week", day(11, 24)),
        ("year", day(13, 2)),
        ("month", day(25, 1)),
    ] {
        execute(&mut client, &call(unit, "NULL", &as_of));
        let names = partitions(&mut client);
        assert!(names.contains(&"readings_2026_01_01".to_owned()), "NULL keeps all: {names:?}");
        let reaches = format!(
            "SELECT max(ends) > snowflake_floor('{as_of}'::timestamptz + interval '2 months', 'snowflake')
            FROM partition_ends('readings')"
        );
        assert!(value::<bool>(&mut client, &reaches), "{unit} {as_of}: {names:?}");
    }
}

/// Names of 52 bytes, of 53 and of 63, one of two-byte characters, and two that differ in their last byte only.
#[test]
fn tables_with_long_names_have_partitions_with_names_of_their_own() {
    let (_cluster, mut client) = site();
    let names = ["a".repeat(52), "b".repeat(53), "ä".repeat(31), "c".repeat(63), "c".repeat(62) + "d"];
    for name in &names {
        execute(&mut client, &format!("CREATE TABLE {name} (LIKE readings INCLUDING ALL) PARTITION BY RANGE (id)"));
    }
    for month in [0, 1] {
        for name in &names {
            execute(&mut client, &call("month", "interval '1 year'", &day(month, 20)).replace("readings", name));
            let found: Vec<String> = column(
                &mut client,
                &format!("SELECT trim(partition::text, '\"') FROM partition_ends('{name}') ORDER BY ends"),
            );
            let months = month_names(0..month + 3);
            let suffixes: Vec<_> = months.iter().map(|name| name.trim_start_matches("readings")).collect();
            assert_eq!(found.len(), suffixes.len(), "{found:?}");
            assert!(found.iter().zip(suffixes).all(|(name, suffix)| name.ends_with(suffix)), "{found:?}");
            let begin = name.chars().take(20).collect::<String>();
            assert!(found.iter().all(|partition| partition.starts_with(&begin)), "{found:?}");
        }
    }
}

#[test]
fn partitions_outside_of_a_time_range_are_not_read() {
    let (_cluster, mut client) = site();
    execute(&mut client, &call("month", "NULL", &day(0, 20)));
    execute(&mut client, &call("month", "NULL", &day(11, 20)));
    let read = |client: &mut Client, plan: &str| -> Vec<String> {
        let plan: Vec<String> = column(client, plan);
        let names = plan.iter().filter_map(|line| line.split(" on ").nth(1)?.split(' ').next());
        let mut names: Vec<_> = names.filter(|name| !name.ends_with("_pkey")).map(str::to_owned).collect();
        names.dedup();
        names
    };
    let range = |from: &str, to: &str| {
        format!(
            "SELECT * FROM readings WHERE id >= snowflake_floor({from}, 'snowflake') AND id < snowflake_floor({to}, 'snowflake')"
        )
    };
    let constant = range("'2026-03-15Z'", "'2026-05-01Z'");
    let names = month_names(2..4);
    assert_eq!(read(&mut client, &format!("EXPLAIN {constant}")), names);
    // Known at execution only.
    let dates = ["'2026-03-15Z'", "'2026-05-01Z'"].map(|date| format!("now() + ({date}::timestamptz - now())"));
    let stable = range(&dates[0], &dates[1]);
    assert_eq!(read(&mut client, &format!("EXPLAIN {stable}")), names);
    let all = "EXPLAIN SELECT * FROM readings WHERE snowflake_time(id, 'snowflake') >= '2026-03-15Z'";
    assert_eq!(read(&mut client, all).len(), 14, "a condition on the time excludes nothing");
}

#[test]
fn run_returns_while_another_one_is_open() {
    let (cluster, mut first) = site();
    let mut second = cluster.client();
    execute(&mut first, "BEGIN");
    execute(&mut first, &call("month", "NULL", &day(0, 20)));
    // Without the lock it would wait, and then fail.
    execute(&mut second, "SET statement_timeout = '20s'");
    execute(&mut second, &call("month", "NULL", &day(0, 20)));
    assert_eq!(partitions(&mut second), [""; 0]);
    execute(&mut first, "COMMIT");
    execute(&mut second, &call("month", "NULL", &day(0, 20)));
    assert_eq!(partitions(&mut second), month_names(0..3));
}

#[test]
fn run_creates_partitions_beside_a_transaction_that_keeps_an_old_one() {
    let (cluster, mut client) = site();
    execute(&mut client, &call("month", "NULL", &day(0, 20)));
    let mut user = cluster.client();
    execute(&mut user, "BEGIN; SELECT count(*) FROM readings; INSERT INTO readings VALUES (2012000000000000000, 0)");
    let run = call("month", "interval '1 month'", &day(4, 20));
    execute(&mut client, &run);
    assert_eq!(partitions(&mut client), month_names(0..7), "the user of the table is not waited for");
    execute(&mut user, "COMMIT");
    execute(&mut client, &run);
    assert_eq!(partitions(&mut client), month_names(3..7));
}

#[test]
fn concurrent_runs_and_writers_do_no_harm() {
    let (cluster, mut client) = site();
    execute(&mut client, &call("month", "interval '2 months'", &day(0, 1)));
    let ended = AtomicBool::new(false);
    let inserted: i64 = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut writer = cluster.client();
            let mut inserted = 0;
            // A month that is kept all the time.
            while !ended.load(Ordering::Relaxed) || inserted == 0 {
                let id = format!("snowflake_make('2027-01-01Z', 1023, 0, 'snowflake') + {inserted}");
                match writer.execute(&format!("INSERT INTO readings VALUES ({id}, 0)"), &[]) {
                    Ok(_) => inserted += 1,
                    Err(error) => assert_eq!(error.code().expect("an error of the server").code(), "23514"),
                }
            }
            inserted
        });
        let runs: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = cluster.client();
                    (0..14)
                        .for_each(|month| execute(&mut client, &call("month", "interval '2 months'", &day(month, 1))));
                })
            })
            .collect();
        let outcomes: Vec<_> = runs.into_iter().map(|run| run.join()).collect();
        ended.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "no run fails");
        writer.join().expect("the writer ends")
    });
    execute(&mut client, &call("month", "interval '2 months'", &day(13, 1)));
    assert_eq!(partitions(&mut client), month_names(11..16));
    assert_eq!(tables(&mut client), month_names(11..16));
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM readings"), inserted);
}
