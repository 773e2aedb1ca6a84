//! A prepared transaction holds the settled ids back until it is committed or rolled back, over restarts and failover.

use idgen_testkit::script::{play, play_each};
use idgen_testkit::sql::{column, execute, expect_error, hint, value};
use idgen_testkit::{Builder, Cluster};

use super::settled;

fn with_prepared() -> Builder {
    Cluster::builder().conf("max_prepared_transactions", "5")
}

#[test]
fn prepared_transaction_holds_settled_ids_back_over_restarts() {
    play_each(
        &with_prepared().start_with_extension(),
        "a: CREATE TABLE t (id bigint DEFAULT snowflake_next())
        a: BEGIN
        a: INSERT INTO t DEFAULT VALUES RETURNING id -> $open
        a: PREPARE TRANSACTION 'p'
        -- The session draws on, and another prepared transaction has no ids.
        a: SELECT snowflake_next()
        a: BEGIN; CREATE TABLE none (); PREPARE TRANSACTION 'none'
        RESTART
        a: SELECT snowflake_next() -> $later > $open
        a: SELECT snowflake_settled() < $open /* RESTART */ -> t
        a: ENDING PREPARED 'p'
        a: SELECT snowflake_settled() = $later, (SELECT count(*) FROM t WHERE id = $open) /* RESTART */ -> t|COUNT
        a: ROLLBACK PREPARED 'none'
        a: DROP TABLE t",
        ["RESTART", "ENDING", "COUNT"],
        &[["a: SELECT", "COMMIT", "1"], ["server: restarts", "ROLLBACK", "0"], ["server: crashes", "COMMIT", "1"]],
    );
}

/// After the restart, the server knows the time of the first draw only by the locks of the prepared transaction.
#[test]
fn settled_id_is_the_same_after_a_clean_restart_with_a_prepared_transaction() {
    play(
        &with_prepared().start_with_extension(),
        "a: BEGIN
        a: SELECT snowflake_next() -> $open
        -- The first call: a restart forgets greater answers from before the draw.
        b: SELECT snowflake_settled() -> $before
        b: SELECT $before < $open -> t
        a: PREPARE TRANSACTION 'p'
        server: restarts
        a: SELECT snowflake_settled() = $before -> t
        a: ROLLBACK PREPARED 'p'
        a: SELECT snowflake_settled() >= $open -> t",
    );
}

#[test]
fn prepared_transaction_holds_settled_ids_back_on_a_promoted_standby() {
    let primary = with_prepared().start_with_extension();
    primary.execute("CREATE TABLE t (id bigint DEFAULT snowflake_next())");
    primary.execute("BEGIN; INSERT INTO t DEFAULT VALUES; PREPARE TRANSACTION 'p'");
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    primary.kill9_postmaster();
    standby.promote();
    play(
        &standby,
        "a: SELECT snowflake_next() -> $later
        a: SELECT snowflake_settled() -> $held
        a: COMMIT PREPARED 'p'
        a: SELECT $held < id AND id < $later, snowflake_settled() = $later FROM t -> t|t",
    );
}

#[test]
fn failed_prepare_holds_nothing_back() {
    play(
        &with_prepared().start_with_extension(),
        "a: BEGIN; CREATE TEMP TABLE t (id bigint DEFAULT snowflake_next())
        a: INSERT INTO t DEFAULT VALUES RETURNING id -> $id
        a: PREPARE TRANSACTION 'p' -> error 0A000
        a: SELECT snowflake_settled() = $id -> t",
    );
}

/// A server without idgen, or with an older one, holds no lock.
#[test]
fn prepared_transaction_without_a_lock_is_an_error_until_it_ends() {
    let cluster = with_prepared().preload(false).start_with_extension();
    execute(&mut cluster.client(), "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'old one'");
    cluster.set_conf("shared_preload_libraries", "idgen");
    cluster.restart();
    let mut client = cluster.client();
    let last: i64 = value(&mut client, "SELECT snowflake_next()");
    let error = expect_error(&mut client, "SELECT snowflake_settled()", "55000");
    let (run, _) = hint(&error).split_once(", and in").expect("a query, and what to do");
    assert_eq!(column::<String>(&mut client, run.trim_start_matches("Run ")), ["old one"]);
    execute(&mut client, "COMMIT PREPARED 'old one'");
    assert_eq!(settled(&mut client), last);
}

/// The name of a prepared transaction is in the encoding of its own database.
#[test]
fn prepared_transaction_of_a_database_in_another_encoding_holds_back() {
    play(
        &with_prepared().start_with_extension(),
        "a: CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0
        a: CREATE DATABASE euc ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0
        latin connects to latin
        latin: CREATE EXTENSION idgen
        euc connects to euc
        euc: CREATE EXTENSION idgen
        latin: BEGIN
        latin: SELECT snowflake_next() -> $open
        latin: PREPARE TRANSACTION 'gä'
        euc: SELECT snowflake_settled() < $open -> t
        latin: ROLLBACK PREPARED 'gä'
        euc: SELECT snowflake_settled() = $open -> t",
    );
}
