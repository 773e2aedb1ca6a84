//! P1 for values: no transaction commits a row with a value at or below one that `segment_settled()` has returned.

use idgen_testkit::Cluster;
use idgen_testkit::script::{filled_in, play, play_each};
use idgen_testkit::sql::{execute, expect_error, value};

use super::with_segment;

/// Draws in an open transaction hold back those of others. A session takes all turns.
#[test]
fn open_transaction_holds_settled_values_back_until_it_ends() {
    let turn = "other: SELECT segment_next('t') /* BEGIN DRAW AFTER */ -> $before > 0
        other: SELECT segment_settled('t') = $before /* no transaction is open before DRAW */ -> t
        open: BEGIN
        open: DRAW -> $first > $before
        open: SELECT; AFTER
        other: SELECT segment_next('t') -> $later > $first
        other: SELECT segment_settled('t') < $first /* open are BEGIN DRAW AFTER */ -> t
        open: ENDING
        other: SELECT segment_settled('t') >= $later /* after ENDING of BEGIN DRAW AFTER */ -> t
        ";
    let (begin, next) = ("BEGIN; SELECT", "SELECT segment_next('t')");
    let of_set = "SELECT min(value) FROM segment_next_many('t', 100) AS value";
    let of_block = "SELECT first_id FROM segment_reserve('t', 50)";
    let insert = "INSERT INTO row DEFAULT VALUES RETURNING id";
    let cursor = "BEGIN; DECLARE c CURSOR FOR SELECT segment_next_many('t', 100)";
    // The call and its place in the statement stay, and the transaction does not.
    let same_statement = "BEGIN; DO 'BEGIN PERFORM segment_next(''t''); END'";
    let turns = [
        [begin, next, "", "COMMIT"],
        [begin, next, "", "ROLLBACK"],
        [begin, of_set, "", "COMMIT"],
        [begin, of_block, "", "ROLLBACK"],
        [begin, insert, "", "COMMIT"],
        ["BEGIN; PREPARE draw AS SELECT segment_next('t')", "EXECUTE draw", "", "COMMIT"],
        // The client has seen the value, and can still insert it.
        ["BEGIN; SAVEPOINT s", next, "ROLLBACK TO s; SELECT segment_next('t')", "COMMIT"],
        [same_statement, next, "", "COMMIT"],
        [cursor, "FETCH c", "", "CLOSE ALL; COMMIT"],
        ["BEGIN; COPY row (n) FROM PROGRAM 'echo 1'", "SELECT max(id) FROM row", "", "COMMIT"],
    ];
    let script: String = turns.iter().map(|case| filled_in(turn, ["BEGIN", "DRAW", "AFTER", "ENDING"], case)).collect();
    let cluster = with_segment(Cluster::builder(), 1000);
    cluster.execute("CREATE TABLE row (id bigint DEFAULT segment_next('t'), n int)");
    play(&cluster, &script);
}

/// Each statement of the loop commits what it has drawn. PL/pgSQL keeps the call over the commits.
#[test]
fn value_that_a_procedure_draws_after_a_commit_is_held_back() {
    play(
        &with_segment(Cluster::builder(), 1000),
        "a: CREATE TABLE row (id bigint)
        a: BEGIN; LOCK TABLE row IN EXCLUSIVE MODE
        b waits for relation: DO $$
            DECLARE drawn bigint;
            BEGIN
                FOR turn IN 1..2 LOOP
                    drawn := segment_next('t');
                    IF turn = 2 THEN INSERT INTO row VALUES (drawn); END IF;
                    COMMIT;
                END LOOP;
            END $$
        c: SELECT segment_next('t') -> $later
        c: SELECT segment_settled('t') < $later - 1 -> t
        a: COMMIT
        b ends
        c: SELECT segment_settled('t') >= $later, id < $later FROM row -> t|t",
    );
}

/// There is always a transaction open. Each call of a reader settles what was drawn before those that are open began.
#[test]
fn values_are_settled_although_transactions_overlap() {
    play(
        &with_segment(Cluster::builder(), 1000),
        "a: BEGIN; SELECT segment_next('t') -> $a1
        c: SELECT segment_settled('t') < $a1 -> t
        b: BEGIN; SELECT segment_next('t') -> $b1 > $a1
        c: SELECT segment_settled('t') < $a1 -> t
        a: COMMIT
        c: SELECT segment_settled('t') < $b1 -> t
        a: BEGIN; SELECT segment_next('t') -> $a2 > $b1
        b: COMMIT
        c: SELECT segment_settled('t') BETWEEN $a1 AND $a2 - 1 -> t
        b: BEGIN; SELECT segment_next('t') -> $b2 > $a2
        a: COMMIT
        c: SELECT segment_settled('t') BETWEEN $b1 AND $b2 - 1 -> t
        a: BEGIN; SELECT segment_next('t') -> $a3 > $b2
        b: COMMIT
        c: SELECT segment_settled('t') BETWEEN $a2 AND $a3 - 1 -> t",
    );
}

#[test]
fn prepared_transaction_holds_settled_values_back_over_restarts() {
    let cluster = with_segment(Cluster::builder().conf("max_prepared_transactions", "5"), 10);
    cluster.execute("CREATE TABLE row (id bigint DEFAULT segment_next('t'))");
    play_each(
        &cluster,
        "-- So many readings that the count of a new start is lower for a while.
        c: SELECT count(segment_settled('t')) FROM generate_series(1, 100) -> 100
        a: BEGIN
        a: INSERT INTO row DEFAULT VALUES RETURNING id -> $open
        a: PREPARE TRANSACTION 'p'
        a: SELECT segment_next('t')
        a: BEGIN; CREATE TABLE none (); PREPARE TRANSACTION 'none'
        RESTART
        a: SELECT segment_next('t') -> $later > $open
        a: SELECT max(segment_settled('t')) < $open FROM generate_series(1, 5) /* RESTART */ -> t
        a: ENDING PREPARED 'p'
        a: SELECT segment_settled('t') >= $later, (SELECT count(*) FROM row WHERE id = $open) /* RESTART */ -> t|COUNT
        a: ROLLBACK PREPARED 'none'
        a: TRUNCATE row",
        ["RESTART", "ENDING", "COUNT"],
        &[["a: SELECT", "COMMIT", "1"], ["server: restarts", "ROLLBACK", "0"], ["server: crashes", "COMMIT", "1"]],
    );
}

/// One that 0.20.0 has prepared has the lock of its ids only.
#[test]
fn prepared_transaction_of_an_earlier_version_is_an_error_until_it_ends() {
    let builder = Cluster::builder().conf("max_prepared_transactions", "5").preload(false);
    let cluster = builder.start_with_extension();
    execute(&mut cluster.client(), "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'old one'");
    cluster.set_conf("shared_preload_libraries", "idgen");
    cluster.restart();
    play(
        &cluster,
        "a: SELECT segment_create('t')
        a: SELECT segment_settled('t') -> error 55000 may have drawn any value
        a: ROLLBACK PREPARED 'old one'
        a: SELECT segment_settled('t') >= 0 -> t",
    );
}

/// Where a start has left no value in memory, rows of the start before it are settled, also if the tag has none left.
#[test]
fn values_of_earlier_starts_are_settled() {
    play_each(
        &with_segment(Cluster::builder(), 10),
        "a: SELECT segment_create('few', upper_bound => 3, step => 3, min_step => 3)
        a: SELECT max(value) FROM segment_next_many('few', 3) AS value -> 3
        a: SELECT segment_next('few') -> error 2200H
        a: SELECT segment_next('t') -> $last
        server: RESTARTS
        a: SELECT segment_settled('few') -> 3
        a: SELECT segment_settled('t') -> $settled
        a: SELECT $settled >= $last, segment_next('t') > $settled -> t|t
        a: SELECT segment_drop('few')",
        ["RESTARTS"],
        &[["restarts"], ["crashes"]],
    );
}

/// The tag has no place in memory of its own while others draw.
#[test]
fn values_of_a_tag_without_a_ring_are_settled() {
    let cluster = with_segment(Cluster::builder().conf("idgen.max_segments", "2"), 10);
    let others = "b: SELECT count(segment_next(tag)) FROM unnest(ARRAY['b', 'c', 'd']) AS tag -> 3\n";
    play(
        &cluster,
        &format!(
            "a: SELECT segment_create(tag) FROM unnest(ARRAY['b', 'c', 'd']) AS tag
            a: SELECT segment_next('t') -> $first
            open: BEGIN; SELECT segment_next('t') -> $open
            {others}
            a: SELECT segment_settled('t') < $open -> t
            {others}
            open: COMMIT
            {others}
            a: SELECT segment_settled('t') >= $open -> t
            -- There is always a transaction open, and the tag loses its place between any two readings.
            open: BEGIN; SELECT segment_next('t')
            a: SELECT segment_next('t') -> $later
            a: SELECT segment_settled('t') < $later -> t
            {others}
            next: BEGIN; SELECT segment_next('b')
            open: COMMIT
            {others}
            a: SELECT segment_settled('t') >= $later -> t"
        ),
    );
}

#[test]
fn settled_values_need_a_primary_preload_and_a_privilege() {
    let cluster = with_segment(Cluster::builder(), 10);
    play(
        &cluster,
        "a: SELECT segment_settled(NULL) -> error 22004
        a: SELECT segment_settled('none') -> error 42704
        a: BEGIN ISOLATION LEVEL REPEATABLE READ
        a: SELECT segment_settled('t') -> error 25001 READ COMMITTED
        a: ROLLBACK
        a: CREATE ROLE consumer
        a: SET ROLE consumer
        a: SELECT segment_settled('t') -> error 42501 segment_grant
        a: RESET ROLE
        a: BEGIN; SELECT segment_create('mine'), segment_next('mine')
        a: SELECT segment_settled('mine') -> -1",
    );
    let error = expect_error(&mut cluster.standby().client(), "SELECT segment_settled('t')", "25006");
    assert_eq!(error.message(), "cannot tell which values are settled during recovery");
    let bare = Cluster::builder().preload(false).start_with_extension();
    play(&bare, "a: SELECT segment_settled('t') -> error 55000 shared_preload_libraries");
}

/// Unless a transaction is open for long, and then by its process.
#[test]
fn check_of_settled_values_is_there() {
    let cluster = with_segment(Cluster::builder(), 10);
    let message = "SELECT message FROM idgen.checks WHERE \"check\" = 'settled values'";
    let mut client = cluster.client();
    assert_eq!(value::<String>(&mut client, message), "no session has asked since the start");
    execute(&mut client, "SELECT segment_settled('t')");
    assert_eq!(value::<String>(&mut client, message), "no transaction holds settled values back");
}
