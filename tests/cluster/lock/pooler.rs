//! PgBouncer in transaction mode: each transaction of a client can run in another session.

use idgen_testkit::Cluster;
use idgen_testkit::pooler::{Pooler, simple_value};
use idgen_testkit::sql::{PATIENCE, column, value};
use postgres::Client;

use crate::{builder, locks};

/// All named locks.
fn named_locks(client: &mut Client) -> Vec<String> {
    column(client, "SELECT name || ' ' || scope FROM idgen.locks WHERE granted ORDER BY name")
}

/// Transaction locks suit a pooler: they end when the pooler takes the connection away.
fn transactions_locks_exclude_and_end(cluster: &Cluster, pooler: &Pooler) {
    let (mut client, mut direct) = (pooler.client(), cluster.client());
    simple_value(
        &mut client,
        "BEGIN; SELECT lock_acquire_xact('x'); SELECT lock_try_acquire_many_xact('{y,z}', '1 s')",
    );
    assert_eq!(named_locks(&mut direct), ["x transaction", "y transaction", "z transaction"]);
    assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('y')"));
    assert_eq!(simple_value(&mut client, "SELECT lock_release('x')"), "f", "the session does not hold it");
    simple_value(&mut client, "COMMIT");
    assert_eq!(locks(&mut direct), 0);
}

#[test]
fn session_lock_ends_with_the_transaction_if_the_pooler_always_resets() {
    let cluster = builder().start_with_extension();
    let pooler = Pooler::start(&cluster, 1, true);
    transactions_locks_exclude_and_end(&cluster, &pooler);

    let (mut client, mut second, mut direct) = (pooler.client(), pooler.client(), cluster.client());
    for _ in 0..2 {
        simple_value(&mut client, "BEGIN; SELECT lock_acquire('s'), lock_acquire('s')");
        assert_eq!(value::<i32>(&mut direct, "SELECT depth FROM idgen.locks"), 2, "a reset clears the depth");
        assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"));
        simple_value(&mut client, "COMMIT");
        cluster.wait_for(PATIENCE, "the pooler to reset the connection", || locks(&mut direct) == 0);
        assert_eq!(named_locks(&mut direct), [""; 0]);
        assert_eq!(simple_value(&mut client, "SELECT lock_release('s')"), "f");
    }
    // No client holds it, though the first one believes so.
    simple_value(&mut second, "BEGIN; SELECT lock_acquire('s')");
    assert_eq!(named_locks(&mut direct), ["s session"]);
    assert_eq!(simple_value(&mut second, "SELECT lock_release('s')"), "t");
    assert!(value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"));
    simple_value(&mut second, "COMMIT");
    // Runs after the reset, because there is only one connection.
    simple_value(&mut client, "SELECT 1");
    assert_eq!(named_locks(&mut direct), ["s session"], "a reset frees only the locks of its own connection");
}

#[test]
fn session_lock_outlives_its_client_if_the_pooler_does_not_reset() {
    let cluster = builder().start_with_extension();
    let pooler = Pooler::start(&cluster, 1, false);
    transactions_locks_exclude_and_end(&cluster, &pooler);

    let (mut client, mut second, mut direct) = (pooler.client(), pooler.client(), cluster.client());
    assert_eq!(simple_value(&mut client, "SELECT lock_try_acquire('s')"), "t");
    assert_eq!(
        simple_value(&mut second, "SELECT lock_try_acquire('s')"),
        "t",
        "both clients use the only server session"
    );
    assert_eq!(value::<i32>(&mut direct, "SELECT depth FROM idgen.locks"), 2);
    drop((client, second));
    let mut third = pooler.client();
    assert_eq!(simple_value(&mut third, "SELECT lock_release('s')"), "t", "another client can release it");
    assert_eq!(named_locks(&mut direct), ["s session"]);
    assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"), "no client is left to release it");
}
