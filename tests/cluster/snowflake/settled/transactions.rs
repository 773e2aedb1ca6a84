//! An open transaction holds the settled ids back, however it has drawn, until it has ended.

use idgen_testkit::parallel::{run_in_workers, with_workers};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, hint, ids, value, wait_for_event};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

use super::super::tagged;
use super::settled;

fn next(client: &mut Client) -> i64 {
    value(client, "SELECT snowflake_next()")
}

/// Draws in an open transaction hold back those of others. `draw` leaves a transaction open and returns its first id.
fn assert_holds_back(cluster: &Cluster, open: &mut Client, ending: &str, draw: impl FnOnce(&mut Client) -> i64) {
    let mut other = cluster.client();
    let before = next(&mut other);
    assert_eq!(settled(&mut other), before, "no transaction is open");
    let first = draw(open);
    let later = next(&mut other);
    assert!(first < later);
    let held = settled(&mut other);
    assert!((before..first).contains(&held), "{held} is settled, {first} is open");
    execute(open, ending);
    assert_eq!(settled(&mut other), later, "after {ending}");
}

#[test]
fn open_transaction_holds_settled_ids_back_until_it_ends() {
    let cluster = Cluster::builder().start_with_extension();
    let mut open = cluster.client();
    execute(&mut open, "CREATE TABLE t (id bigint DEFAULT snowflake_next(), n int)");
    let statements = [
        "SELECT snowflake_next()",
        "SELECT snowflake_next('snowflake')",
        "SELECT min(id) FROM snowflake_next_many(1000) AS id",
        "WITH row AS (INSERT INTO t DEFAULT VALUES RETURNING id) SELECT id FROM row",
    ];
    for statement in statements {
        for ending in ["COMMIT", "ROLLBACK"] {
            assert_holds_back(&cluster, &mut open, ending, |open| {
                execute(open, "BEGIN");
                value(open, statement)
            });
        }
    }
    assert_holds_back(&cluster, &mut open, "COMMIT", |open| {
        execute(open, "BEGIN; SAVEPOINT s");
        let first = next(open);
        // The client has seen the id, and can still insert it.
        execute(open, "ROLLBACK TO s; SELECT snowflake_next()");
        first
    });
    assert_holds_back(&cluster, &mut open, "COMMIT", |open| {
        // Ids of another layout first, with coarser and then with finer ticks.
        execute(open, "BEGIN; SELECT snowflake_next('js53')");
        next(open)
    });
    assert_holds_back(&cluster, &mut open, "CLOSE ALL; COMMIT", |open| {
        execute(open, "BEGIN; DECLARE c CURSOR FOR SELECT snowflake_next_many(100)");
        value(open, "FETCH c")
    });
}

#[test]
fn draws_of_parallel_workers_hold_back_until_their_leader_ends() {
    let cluster = Cluster::builder().start_with_extension();
    let mut open = cluster.client();
    with_workers(&mut open, "big", 20_000);
    assert_holds_back(&cluster, &mut open, "COMMIT", |open| {
        execute(open, "BEGIN");
        run_in_workers(open, "SELECT min(snowflake_next()) FROM big");
        value(open, "SELECT min(snowflake_next()) FROM big")
    });
}

/// Each layout has its own line of ids. A transaction holds back all layouts, also if its generator goes to another one.
#[test]
fn transaction_holds_back_all_layouts_that_it_draws_from() {
    let cluster = Cluster::builder().conf("idgen.max_generators", "4").start_with_extension();
    let [mut open, mut other] = [cluster.client(), cluster.client()];
    execute(&mut open, "BEGIN");
    let drawn: Vec<(String, i64)> = (0..12)
        .map(|tag| {
            let layout = tagged(tag);
            let id = value(&mut open, &format!("SELECT snowflake_next('{layout}')"));
            (layout, id)
        })
        .collect();
    for (layout, id) in &drawn {
        let later: i64 = value(&mut other, &format!("SELECT snowflake_next('{layout}')"));
        let settled: i64 = value(&mut other, &format!("SELECT snowflake_settled('{layout}')"));
        assert!(settled < *id && *id < later, "{settled} settled, {id} open in {layout}");
    }
    execute(&mut open, "COMMIT");
    for (layout, id) in &drawn {
        let settled: i64 = value(&mut other, &format!("SELECT snowflake_settled('{layout}')"));
        assert!(settled >= *id, "{settled} settled, {id} committed in {layout}");
    }
}

/// Ids of a busy layout are ahead of the clock, and those of another one are not. With two generators, the second layout
/// gets the generator of the first one while the transaction is open.
#[test]
fn transaction_that_goes_on_in_another_layout_holds_that_back_too() {
    let builder = Cluster::builder().conf("idgen.max_generators", "2").conf("idgen.max_drift", "10s");
    let cluster = builder.start_with_extension();
    let [mut open, mut other] = [cluster.client(), cluster.client()];
    let busy = "time:41 tag:10=1 sequence:1 epoch:2020-01-01";
    let idle = tagged(2);
    execute(&mut open, &format!("SELECT count(id) FROM snowflake_next_many(16000, '{busy}') AS id"));
    execute(&mut open, &format!("BEGIN; SELECT snowflake_next('{busy}')"));
    let drawn: i64 = value(&mut open, &format!("SELECT snowflake_next('{idle}')"));
    let later: i64 = value(&mut other, &format!("SELECT snowflake_next('{idle}')"));
    let settled: i64 = value(&mut other, &format!("SELECT snowflake_settled('{idle}')"));
    assert!(drawn < later && settled < drawn, "{settled} settled, {drawn} open");
}

/// The commit is durable and waits for a standby that does not exist. No session sees the row yet.
#[test]
fn transaction_that_waits_for_a_standby_is_open() {
    let cluster = Cluster::builder().start_with_extension();
    let [mut open, mut other] = [cluster.client(), cluster.client()];
    execute(&mut open, "CREATE TABLE t (id bigint DEFAULT snowflake_next())");
    cluster.set_conf("synchronous_standby_names", "nobody");
    cluster.reload();
    let pid = backend_pid(&mut open);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| execute(&mut open, "INSERT INTO t DEFAULT VALUES"));
        wait_for_event(&cluster, pid, "SyncRep");
        let later = next(&mut other);
        let visible = ids(&mut other, "SELECT id FROM t");
        let held = settled(&mut other);
        // A failure before this would wait for the session forever.
        cluster.set_conf("synchronous_standby_names", "");
        cluster.reload();
        waiter.join().unwrap();
        assert_eq!(visible, []);
        assert!(held < later);
        let committed = ids(&mut other, "SELECT id FROM t")[0];
        assert!(held < committed, "{held} was settled, {committed} was open");
        assert_eq!(settled(&mut other), later);
    });
}

/// A transaction that begins in the tick of the last id announces the start of that tick.
#[test]
fn settled_ids_never_fall() {
    let cluster = Cluster::builder().start_with_extension();
    let [mut open, mut other] = [cluster.client(), cluster.client()];
    for _ in 0..3 {
        let last: i64 = value(&mut other, "SELECT snowflake_next('seconds')");
        assert_eq!(value::<i64>(&mut other, "SELECT snowflake_settled('seconds')"), last);
        execute(&mut open, "BEGIN; SELECT snowflake_next('seconds')");
        assert_eq!(value::<i64>(&mut other, "SELECT snowflake_settled('seconds')"), last);
        execute(&mut open, "COMMIT");
    }
}

#[test]
fn transaction_of_a_lost_session_ends() {
    let cluster = Cluster::builder().start_with_extension();
    for kill in [false, true] {
        let [mut open, mut other] = [cluster.client(), cluster.client()];
        let pid = backend_pid(&mut open);
        execute(&mut open, "BEGIN; SELECT snowflake_next()");
        let later = next(&mut other);
        assert!(settled(&mut other) < later);
        if kill {
            cluster.kill9(pid);
            cluster.wait_until_ready();
            other = cluster.client();
        } else {
            execute(&mut other, &format!("SELECT pg_terminate_backend({pid})"));
        }
        cluster.wait_for(PATIENCE, "the transaction to end", || settled(&mut other) >= later);
    }
}

#[test]
fn ids_of_earlier_starts_are_settled_before_the_first_draw() {
    let cluster = Cluster::builder().start_with_extension();
    for how in [Stop::Fast, Stop::Immediate] {
        let last = next(&mut cluster.client());
        cluster.stop(how);
        cluster.start_again();
        let mut client = cluster.client();
        let settled = settled(&mut client);
        assert!(settled >= last, "{settled} after {last}");
        assert!(next(&mut client) > settled);
    }
}

#[test]
fn settled_ids_need_a_primary_preload_and_read_committed() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        execute(&mut client, &format!("BEGIN ISOLATION LEVEL {level}"));
        let error = expect_error(&mut client, "SELECT snowflake_settled()", "25001");
        assert!(hint(&error).contains("READ COMMITTED"), "{error:?}");
        execute(&mut client, "ROLLBACK");
    }
    // All statements of a function share the snapshot of the statement that calls it, without a transaction block.
    execute(&mut client, "SET default_transaction_isolation = 'repeatable read'");
    expect_error(&mut client, "DO $$ BEGIN PERFORM snowflake_settled(); END $$", "25001");
    let standby = cluster.standby();
    let error = expect_error(&mut standby.client(), "SELECT snowflake_settled()", "25006");
    assert_eq!(error.message(), "cannot tell which ids are settled during recovery");
    assert!(hint(&error).contains("primary"), "{error:?}");
    let bare = Cluster::builder().preload(false).start_with_extension();
    let error = expect_error(&mut bare.client(), "SELECT snowflake_settled('js53')", "55000");
    assert!(hint(&error).contains("shared_preload_libraries"), "{error:?}");
}

/// A draw that fails while the clock is ahead announces no time for later ones.
#[test]
fn draw_after_a_failed_one_holds_settled_ids_back() {
    let cluster = Cluster::builder().fake_clock().start_with_extension();
    let [mut open, mut other] = [cluster.client(), cluster.client()];
    // It ends within two days.
    let spec = "SELECT format('time:32 worker:10 sequence:12 epoch:%s', current_date - 48)";
    let layout: String = value(&mut other, spec);
    let [next, settled] = ["next", "settled"].map(|name| format!("SELECT snowflake_{name}('{layout}')"));
    // The session knows the generator before the transaction begins.
    execute(&mut open, &next);
    execute(&mut open, "BEGIN; SAVEPOINT s");
    cluster.clock().set_offset_ms(3 * 86_400_000);
    expect_error(&mut open, &next, "22003");
    cluster.clock().set_offset_ms(0);
    execute(&mut open, "ROLLBACK TO s");
    let first: i64 = value(&mut open, &next);
    let later: i64 = value(&mut other, &next);
    let held: i64 = value(&mut other, &settled);
    assert!(held < first && first < later, "{held} is settled, {first} is open");
}
