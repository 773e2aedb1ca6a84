//! A prepared transaction holds the settled ids back until it is committed or rolled back, over restarts and failover.

use idgen_testkit::sql::{column, execute, expect_error, hint, value};
use idgen_testkit::{Builder, Cluster, Stop};
use postgres::Client;

use super::settled;

fn with_prepared() -> Builder {
    Cluster::builder().conf("max_prepared_transactions", "5")
}

/// Prepares a transaction that has inserted a row, and returns the row's id.
fn prepare(client: &mut Client, gid: &str) -> i64 {
    execute(client, "CREATE TABLE t (id bigint DEFAULT snowflake_next())");
    execute(client, "BEGIN");
    let id = value(client, "INSERT INTO t DEFAULT VALUES RETURNING id");
    execute(client, &format!("PREPARE TRANSACTION '{gid}'"));
    id
}

#[test]
fn prepared_transaction_holds_settled_ids_back_over_restarts() {
    let cluster = with_prepared().start_with_extension();
    for (how, ending) in [(None, "COMMIT"), (Some(Stop::Fast), "ROLLBACK"), (Some(Stop::Immediate), "COMMIT")] {
        let mut client = cluster.client();
        let open = prepare(&mut client, "p");
        // The session draws on, and another prepared transaction has no ids.
        execute(&mut client, "SELECT snowflake_next()");
        execute(&mut client, "BEGIN; CREATE TABLE none (); PREPARE TRANSACTION 'none'");
        if let Some(how) = how {
            drop(client);
            cluster.stop(how);
            cluster.start_again();
            client = cluster.client();
        }
        let later: i64 = value(&mut client, "SELECT snowflake_next()");
        let held = settled(&mut client);
        assert!(held < open && open < later, "{held} settled, {open} prepared");
        execute(&mut client, &format!("{ending} PREPARED 'p'"));
        assert_eq!(settled(&mut client), later);
        assert_eq!(column::<i64>(&mut client, "SELECT id FROM t").contains(&open), ending == "COMMIT");
        execute(&mut client, "ROLLBACK PREPARED 'none'");
        execute(&mut client, "DROP TABLE t");
    }
}

/// After the restart, the server knows the time of the first draw only by the locks of the prepared transaction.
#[test]
fn settled_id_is_the_same_after_a_clean_restart_with_a_prepared_transaction() {
    let cluster = with_prepared().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "BEGIN");
    let open: i64 = value(&mut client, "SELECT snowflake_next()");
    // The first call: a restart forgets greater answers from before the draw.
    let before = settled(&mut cluster.client());
    assert!(before < open);
    execute(&mut client, "PREPARE TRANSACTION 'p'");
    drop(client);
    cluster.restart();
    let mut client = cluster.client();
    assert_eq!(settled(&mut client), before, "before {open}");
    execute(&mut client, "ROLLBACK PREPARED 'p'");
    assert!(settled(&mut client) >= open);
}

#[test]
fn prepared_transaction_holds_settled_ids_back_on_a_promoted_standby() {
    let primary = with_prepared().start_with_extension();
    let open = prepare(&mut primary.client(), "p");
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    primary.kill9_postmaster();
    standby.promote();
    let mut client = standby.client();
    let later: i64 = value(&mut client, "SELECT snowflake_next()");
    assert!(settled(&mut client) < open);
    execute(&mut client, "COMMIT PREPARED 'p'");
    assert_eq!(settled(&mut client), later);
}

#[test]
fn failed_prepare_holds_nothing_back() {
    let cluster = with_prepared().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "BEGIN; CREATE TEMP TABLE t (id bigint DEFAULT snowflake_next())");
    let id: i64 = value(&mut client, "INSERT INTO t DEFAULT VALUES RETURNING id");
    expect_error(&mut client, "PREPARE TRANSACTION 'p'", "0A000");
    assert_eq!(settled(&mut client), id);
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
    let cluster = with_prepared().start_with_extension();
    for (database, encoding) in [("latin", "LATIN1"), ("euc", "EUC_JP")] {
        cluster.execute(&format!("CREATE DATABASE {database} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"));
        execute(&mut cluster.client_in(database), "CREATE EXTENSION idgen");
    }
    let mut latin = cluster.client_in("latin");
    execute(&mut latin, "BEGIN");
    let open: i64 = value(&mut latin, "SELECT snowflake_next()");
    execute(&mut latin, "PREPARE TRANSACTION 'gä'");
    assert!(settled(&mut cluster.client_in("euc")) < open);
    execute(&mut latin, "ROLLBACK PREPARED 'gä'");
    assert_eq!(settled(&mut cluster.client_in("euc")), open);
}
