//! `snowflake_adopt` beside sessions that read and write the table, over a crash, and in a dump.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use idgen_testkit::ids::{assert_increasing, last};
use idgen_testkit::script::play;
use idgen_testkit::sql::{
    PATIENCE, backend_pid, column, execute, expect_error, hint, in_new_database, value, wait_for_event,
};
use idgen_testkit::{Cluster, run};
use postgres::Client;

/// Ids of a sequence are below, snowflake ids above.
const BETWEEN: i64 = 1_000_000;

const ADOPT: &str = "SELECT * FROM snowflake_adopt('t', dry_run => false)";

/// Without load a wait ends after 100 ms. Here it shares two cores with other tests.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[test]
fn inserts_do_not_wait_for_a_reader_that_blocks_the_lock() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("CREATE TABLE t (id bigserial PRIMARY KEY); INSERT INTO t SELECT FROM generate_series(1, 1000)");
    let inserted = AtomicUsize::new(0);
    let (drawn, longest) = thread::scope(|scope| {
        let mut reader = cluster.client();
        execute(&mut reader, "BEGIN; SELECT FROM t LIMIT 1");
        let writer = scope.spawn(|| {
            let mut client = cluster.client();
            let (mut drawn, mut longest, first) = (Vec::<i64>::new(), Duration::ZERO, Instant::now());
            while drawn.last().is_none_or(|id| *id < BETWEEN) && first.elapsed() < PATIENCE {
                let begun = Instant::now();
                drawn.push(value(&mut client, "INSERT INTO t DEFAULT VALUES RETURNING id"));
                longest = longest.max(begun.elapsed());
                inserted.fetch_add(1, Ordering::Relaxed);
            }
            (drawn, longest)
        });
        let mut adopter = cluster.client();
        let pid = backend_pid(&mut adopter);
        let adoption = scope.spawn(move || column::<String>(&mut adopter, ADOPT));
        for _ in 0..2 {
            wait_for_event(&cluster, pid, "Lock");
            // It has given up, and the reader still reads.
            wait_for_event(&cluster, pid, "PgSleep");
            let before = inserted.load(Ordering::Relaxed);
            cluster.wait_for(PATIENCE, "inserts beside it", || inserted.load(Ordering::Relaxed) > before + 10);
        }
        execute(&mut reader, "COMMIT");
        assert_eq!(adoption.join().expect("the adoption succeeds").len(), 2);
        writer.join().expect("no insert fails")
    });
    assert_increasing(&drawn);
    assert!(drawn[0] < BETWEEN && last(&drawn) > BETWEEN, "{} to {}", drawn[0], last(&drawn));
    assert!(longest < LONGEST_WAIT, "{longest:?}");
}

/// The bystander has read the table and waits for its lock, as the call does. Neither may hold a lock that the other waits
/// for.
#[test]
fn bystander_that_locks_the_table_too_is_not_in_a_deadlock() {
    play(
        &Cluster::builder().start_with_extension(),
        "reader: CREATE TABLE t (id bigserial PRIMARY KEY); INSERT INTO t VALUES (7)
         reader: SET deadlock_timeout = '1ms'; BEGIN; SELECT FROM t LIMIT 1
         bystander: SET deadlock_timeout = '1ms'; BEGIN; SELECT FROM t LIMIT 1
         adopter waits for Lock: SELECT count(*) FROM snowflake_adopt('t', dry_run => false)
         bystander waits for Lock: TRUNCATE t; COMMIT
         adopter waits for PgSleep
         adopter waits for Lock
         adopter waits for PgSleep
         reader: COMMIT
         bystander ends
         adopter ends -> 2",
    );
}

#[test]
fn concurrent_calls_wait_in_turn_and_one_adopts() {
    play(
        &Cluster::builder().conf("deadlock_timeout", "1ms").start_with_extension(),
        "reader: CREATE TABLE t (id bigserial PRIMARY KEY)
         reader: BEGIN; SELECT FROM t
         one waits for PgSleep: SELECT count(*) FROM snowflake_adopt('t', dry_run => false)
         two waits for PgSleep: SELECT count(*) FROM snowflake_adopt('t', dry_run => false)
         three waits for PgSleep: SELECT count(*) FROM snowflake_adopt('t', dry_run => false)
         one waits for Lock
         two waits for Lock
         three waits for Lock
         one waits for PgSleep
         two waits for PgSleep
         three waits for PgSleep
         reader: COMMIT
         one ends -> $one
         two ends -> $two
         three ends -> $three
         reader: SELECT greatest($one, $two, $three), $one + $two + $three -> 2|2",
    );
}

/// It cannot even read the default of the column.
#[test]
fn table_that_is_locked_is_tried_again() {
    play(
        &Cluster::builder().start_with_extension(),
        "owner: CREATE TABLE t (id bigserial PRIMARY KEY)
         owner: BEGIN; LOCK TABLE t
         adopter waits for PgSleep: SELECT count(*) FROM snowflake_adopt('t', dry_run => false)
         owner: COMMIT
         adopter ends -> 2",
    );
}

/// PostgreSQL then shows its functions without a schema.
#[test]
fn column_is_recognised_with_the_extension_in_pg_catalog() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    execute(&mut client, "CREATE EXTENSION idgen SCHEMA pg_catalog; CREATE TABLE t (id bigserial PRIMARY KEY)");
    for statements in [2, 0] {
        assert_eq!(column::<String>(&mut client, ADOPT).len(), statements);
    }
    expect_error(&mut client, "SELECT snowflake_adopt('t', layout => 'js53')", "22023");
    execute(&mut client, "ALTER TABLE t ALTER COLUMN id SET DEFAULT snowflake_next('js53')");
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM snowflake_adopt('t', layout => 'js53')"), 0);
}

/// It is no directive of format().
#[test]
fn schema_of_the_extension_can_have_a_percent_sign() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    execute(
        &mut client,
        "CREATE SCHEMA \"100%s\"; CREATE EXTENSION idgen SCHEMA \"100%s\"; SET search_path = \"100%s\", public;
         CREATE TABLE public.t (id bigserial PRIMARY KEY);
         CREATE TABLE public.part (PRIMARY KEY (id)) INHERITS (public.t);
         INSERT INTO t VALUES (snowflake_make(now() + interval '5 seconds', 1, 0))",
    );
    let error = expect_error(&mut client, "SELECT snowflake_adopt('part', 'id')", "22023");
    let repeated = "Run SELECT \"100%s\".snowflake_adopt('public.t', column_name => 'id').";
    assert_eq!(hint(&error), repeated);
    for statements in [3, 0] {
        assert_eq!(column::<String>(&mut client, ADOPT).len(), statements);
    }
}

/// The row commits after the call has read the greatest id, and before it has the lock.
#[test]
fn ids_begin_after_a_row_that_commits_while_the_lock_is_waited_for() {
    play(
        &Cluster::builder().start_with_extension(),
        "writer: CREATE TABLE t (id bigserial PRIMARY KEY)
         writer: BEGIN; INSERT INTO t VALUES (snowflake_make(now() + interval '1 hour', 1, 0)) RETURNING id -> $ahead
         adopter waits for Lock: SELECT (array_agg(s))[1] FROM snowflake_adopt('t', dry_run => false) AS s
         writer: COMMIT
         adopter ends -> SELECT public.snowflake_observe($ahead);
         writer: INSERT INTO t DEFAULT VALUES RETURNING id -> $next > $ahead",
    );
}

#[test]
fn schema_continues_after_a_crash_in_the_middle() {
    const ADOPT_ALL: &str = "CALL snowflake_adopt_schema('public', dry_run => false)";
    const ADOPTED: &str = "SELECT count(*) FROM pg_attrdef WHERE pg_get_expr(adbin, adrelid) = 'snowflake_next()'";
    let cluster = Cluster::builder().start_with_extension();
    for table in 1..=9 {
        cluster.execute(&format!("CREATE TABLE t{table} (id bigserial PRIMARY KEY); INSERT INTO t{table} VALUES (7)"));
    }
    let mut reader = cluster.client();
    execute(&mut reader, "BEGIN; SELECT FROM t5");
    let mut adopter = cluster.client();
    let pid = backend_pid(&mut adopter);
    thread::scope(|scope| {
        let adoption = scope.spawn(move || adopter.batch_execute(ADOPT_ALL));
        wait_for_event(&cluster, pid, "PgSleep");
        cluster.kill9_postmaster();
        adoption.join().expect("no panic").expect_err("the connection is lost");
    });
    cluster.start_again();
    let mut client = cluster.client();
    assert_eq!(value::<i64>(&mut client, ADOPTED), 4);
    execute(&mut client, ADOPT_ALL);
    assert_eq!(value::<i64>(&mut client, ADOPTED), 9);
    for table in 1..=9 {
        let sql = format!("INSERT INTO t{table} DEFAULT VALUES RETURNING id");
        assert!(value::<i64>(&mut client, &sql) > BETWEEN, "{sql}");
    }
}

/// As an application has them, and as its owner would alter them by hand.
const TABLES: &str = "
    CREATE TABLE customers (id bigserial PRIMARY KEY, name text);
    CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint REFERENCES customers);
    CREATE TABLE readings (id bigint GENERATED BY DEFAULT AS IDENTITY, at date, PRIMARY KEY (id, at))
        PARTITION BY RANGE (at);
    CREATE TABLE readings_1 PARTITION OF readings FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
    CREATE TABLE events (id bigserial, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
    CREATE TABLE tags (name text PRIMARY KEY, place serial);
    INSERT INTO customers (name) VALUES ('Ada');
    INSERT INTO orders (customer) VALUES (1);
    INSERT INTO readings (at) VALUES ('2026-01-01');
    INSERT INTO events (at) VALUES ('2026-01-01')";
const BY_HAND: &str = "
    ALTER TABLE customers ALTER COLUMN id SET DEFAULT snowflake_next('js53');
    DROP SEQUENCE customers_id_seq;
    ALTER TABLE orders ALTER COLUMN id DROP IDENTITY;
    ALTER TABLE orders ALTER COLUMN id SET DEFAULT snowflake_next('js53');
    ALTER TABLE readings ALTER COLUMN id DROP IDENTITY;
    ALTER TABLE readings ALTER COLUMN id SET DEFAULT snowflake_next('js53');
    ALTER TABLE events ALTER COLUMN id SET DEFAULT snowflake_next('js53');
    DROP SEQUENCE events_id_seq";

#[test]
fn dump_equals_that_of_tables_altered_by_hand_or_by_the_statements_shown_smoke() {
    let cluster = Cluster::start();
    let shown = |client: &mut Client| {
        let adopt = |table| format!("SELECT * FROM snowflake_adopt('{table}', layout => 'js53')");
        let tables = ["customers", "orders", "readings", "events"];
        tables.map(|table| column::<String>(client, &adopt(table)).concat()).concat()
    };
    let by_call = |_: &mut Client| "CALL snowflake_adopt_schema('public', 'js53', dry_run => false)".to_owned();
    let by_hand = |_: &mut Client| BY_HAND.to_owned();
    let dump = |database: &str, change: &dyn Fn(&mut Client) -> String| {
        let mut client = in_new_database(&cluster, database);
        execute(&mut client, TABLES);
        let change = change(&mut client);
        execute(&mut client, &change);
        execute(&mut client, "INSERT INTO readings_1 (id, at) VALUES (2, '2026-01-02')");
        let dump = run(cluster.program("pg_dump").args(["-d", database]));
        // The key in these lines is random.
        dump.lines().filter(|line| !line.contains("restrict ")).collect::<Vec<_>>().join("\n")
    };
    let by_call = dump("by_call", &by_call);
    assert_eq!(dump("by_hand", &by_hand), by_call);
    assert_eq!(dump("as_shown", &shown), by_call);
    assert_eq!(by_call.matches("snowflake_next('js53'::text)").count(), 6, "{by_call}");
}

#[test]
fn standby_refuses() {
    let primary = Cluster::builder().start_with_extension();
    primary.execute("CREATE TABLE t (id bigserial PRIMARY KEY)");
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    for sql in ["SELECT snowflake_adopt('t')", ADOPT, "CALL snowflake_adopt_schema('public')"] {
        expect_error(&mut standby.client(), sql, "25006");
    }
}
