//! An open transaction holds the settled ids back, however it has drawn, until it has ended.

use idgen_testkit::Cluster;
use idgen_testkit::parallel::{run_in_workers, with_workers};
use idgen_testkit::script::{filled_in, play, play_each};
use idgen_testkit::sql::{execute, expect_error, hint, value};

use super::super::tagged;
use super::settled;

/// Draws in an open transaction hold back those of others. A session takes all turns.
#[test]
fn open_transaction_holds_settled_ids_back_until_it_ends() {
    let turn = "other: SELECT snowflake_next() /* BEGIN DRAW AFTER */ -> $before > 0
        other: SELECT snowflake_settled() = $before /* no transaction is open before DRAW */ -> t
        open: BEGIN
        open: DRAW -> $first > $before
        open: SELECT; AFTER
        other: SELECT snowflake_next() -> $later > $first
        other: SELECT snowflake_settled() BETWEEN $before AND $first - 1 /* open are BEGIN DRAW AFTER */ -> t
        open: ENDING
        other: SELECT snowflake_settled() = $later /* after ENDING of BEGIN DRAW AFTER */ -> t
        ";
    let (begin, next) = ("BEGIN; SELECT", "SELECT snowflake_next()");
    let of_set = "SELECT min(id) FROM snowflake_next_many(1000) AS id";
    let insert = "INSERT INTO t DEFAULT VALUES RETURNING id";
    let cursor = "BEGIN; DECLARE c CURSOR FOR SELECT snowflake_next_many(100)";
    let turns = [
        [begin, next, "", "COMMIT"],
        [begin, next, "", "ROLLBACK"],
        [begin, "SELECT snowflake_next('snowflake')", "", "COMMIT"],
        [begin, "SELECT snowflake_next('snowflake')", "", "ROLLBACK"],
        [begin, of_set, "", "COMMIT"],
        [begin, of_set, "", "ROLLBACK"],
        [begin, insert, "", "COMMIT"],
        [begin, insert, "", "ROLLBACK"],
        // The client has seen the id, and can still insert it.
        ["BEGIN; SAVEPOINT s", next, "ROLLBACK TO s; SELECT snowflake_next()", "COMMIT"],
        // Ids of another layout first, with coarser and then with finer ticks.
        ["BEGIN; DO 'BEGIN PERFORM snowflake_next(''js53''); END'", next, "", "COMMIT"],
        [cursor, "FETCH c", "", "CLOSE ALL; COMMIT"],
    ];
    let names = ["BEGIN", "DRAW", "AFTER", "ENDING"];
    let script: String = turns.iter().map(|case| filled_in(turn, names, case)).collect();
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("CREATE TABLE t (id bigint DEFAULT snowflake_next(), n int)");
    play(&cluster, &script);
}

#[test]
fn draws_of_parallel_workers_hold_back_until_their_leader_ends() {
    let (_cluster, [mut open, mut other]) = Cluster::builder().start_with_clients();
    with_workers(&mut open, "big", 20_000);
    let before: i64 = value(&mut other, "SELECT snowflake_next()");
    execute(&mut open, "BEGIN");
    run_in_workers(&mut open, "SELECT min(snowflake_next()) FROM big");
    let first: i64 = value(&mut open, "SELECT min(snowflake_next()) FROM big");
    let later: i64 = value(&mut other, "SELECT snowflake_next()");
    let held = settled(&mut other);
    assert!((before..first).contains(&held) && first < later, "{held} is settled, {first} is open, {later} is later");
    execute(&mut open, "COMMIT");
    assert_eq!(settled(&mut other), later);
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
    let script = "open: SELECT count(id) FROM snowflake_next_many(16000, 'BUSY') AS id
        open: BEGIN; SELECT snowflake_next('BUSY')
        open: SELECT snowflake_next('IDLE') -> $drawn
        other: SELECT snowflake_next('IDLE') -> $later > $drawn
        other: SELECT snowflake_settled('IDLE') < $drawn -> t";
    let layouts = ["time:41 tag:10=1 sequence:1 epoch:2020-01-01", &tagged(2)];
    play(&builder.start_with_extension(), &filled_in(script, ["BUSY", "IDLE"], &layouts));
}

/// The commit is durable and waits for a standby that does not exist. No session sees the row yet.
#[test]
fn transaction_that_waits_for_a_standby_is_open() {
    play(
        &Cluster::builder().start_with_extension(),
        "open: CREATE TABLE t (id bigint DEFAULT snowflake_next())
        setting: synchronous_standby_names = nobody
        open waits for SyncRep: INSERT INTO t DEFAULT VALUES RETURNING id
        other: SELECT snowflake_next() -> $later
        other: SELECT id FROM t -> nothing
        other: SELECT snowflake_settled() -> $held
        setting: synchronous_standby_names = ''
        open ends -> $committed > $held
        other: SELECT $held < $later, snowflake_settled() = $later -> t|t",
    );
}

/// A transaction that begins in the tick of the last id announces the start of that tick.
#[test]
fn settled_ids_never_fall() {
    let turn = "other: SELECT snowflake_next('seconds') -> $last > 0
        other: SELECT snowflake_settled('seconds') = $last -> t
        open: BEGIN; SELECT snowflake_next('seconds') -> $open > $last
        other: SELECT snowflake_settled('seconds') BETWEEN $last AND $open - 1 /* more than $last in a new tick */ -> t
        open: COMMIT
        ";
    play(&Cluster::builder().start_with_extension(), &turn.repeat(3));
}

#[test]
fn transaction_of_a_lost_session_ends() {
    play_each(
        &Cluster::builder().start_with_extension(),
        "open: BEGIN; SELECT snowflake_next()
        other: SELECT snowflake_next() -> $later
        other: SELECT snowflake_settled() < $later -> t
        END
        until: SELECT snowflake_settled() >= $later -> t",
        ["END"],
        &[["other: SELECT pg_terminate_backend($open_pid)"], ["open is killed"]],
    );
}

#[test]
fn ids_of_earlier_starts_are_settled_before_the_first_draw() {
    play_each(
        &Cluster::builder().start_with_extension(),
        "a: SELECT snowflake_next() -> $last
        server: RESTARTS
        a: SELECT snowflake_settled() -> $settled
        a: SELECT $settled >= $last, snowflake_next() > $settled -> t|t",
        ["RESTARTS"],
        &[["restarts"], ["crashes"]],
    );
}

#[test]
fn settled_ids_need_a_primary_preload_and_read_committed() {
    let cluster = Cluster::builder().start_with_extension();
    play(
        &cluster,
        "a: BEGIN ISOLATION LEVEL REPEATABLE READ
        a: SELECT snowflake_settled() -> error 25001 READ COMMITTED
        b: BEGIN ISOLATION LEVEL SERIALIZABLE
        b: SELECT snowflake_settled() -> error 25001 READ COMMITTED
        -- All statements of a function share the snapshot of the statement that calls it, without a transaction block.
        c: SET default_transaction_isolation = 'repeatable read'
        c: DO $$ BEGIN PERFORM snowflake_settled(); END $$ -> error 25001",
    );
    let error = expect_error(&mut cluster.standby().client(), "SELECT snowflake_settled()", "25006");
    assert_eq!(error.message(), "cannot tell which ids are settled during recovery");
    assert!(hint(&error).contains("primary"), "{error:?}");
    let bare = Cluster::builder().preload(false).start_with_extension();
    play(&bare, "a: SELECT snowflake_settled('js53') -> error 55000 shared_preload_libraries");
}

/// A draw that fails while the clock is ahead announces no time for later ones. The layout ends within two days.
#[test]
fn draw_after_a_failed_one_holds_settled_ids_back() {
    play(
        &Cluster::builder().fake_clock().start_with_extension(),
        "other: SELECT format('time:32 worker:10 sequence:12 epoch:%s', current_date - 48) -> $layout
        -- The session knows the generator before the transaction begins.
        open: SELECT snowflake_next('$layout')
        open: BEGIN; SAVEPOINT s
        clock: 259200 s
        open: SELECT snowflake_next('$layout') -> error 22003
        clock: 0 s
        open: ROLLBACK TO s
        open: SELECT snowflake_next('$layout') -> $first
        other: SELECT snowflake_next('$layout') -> $later > $first
        other: SELECT snowflake_settled('$layout') < $first -> t",
    );
}
