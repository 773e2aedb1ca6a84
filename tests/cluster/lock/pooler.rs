//! PgBouncer in transaction mode: what the client calls its session is another one at every transaction.

use idgen_testkit::Cluster;
use idgen_testkit::pooler::{Pooler, call};
use idgen_testkit::sql::{PATIENCE, column, value};
use postgres::Client;

use crate::{builder, locks};

/// Named locks that anybody has.
fn shown(client: &mut Client) -> Vec<String> {
    column(client, "SELECT name || ' ' || scope FROM idgen.locks WHERE granted ORDER BY name")
}

/// The transaction's locks are the ones for a pooler: they end where the pooler takes the connection away.
fn transactions_locks_exclude_and_end(cluster: &Cluster, pooler: &Pooler) {
    let (mut client, mut direct) = (pooler.client(), cluster.client());
    call(&mut client, "BEGIN; SELECT lock_acquire_xact('x'); SELECT lock_try_acquire_many_xact('{y,z}', '1 s')");
    assert_eq!(shown(&mut direct), ["x transaction", "y transaction", "z transaction"]);
    assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('y')"));
    assert_eq!(call(&mut client, "SELECT lock_release('x')"), "f", "the session does not hold it");
    call(&mut client, "COMMIT");
    assert_eq!(locks(&mut direct), 0);
}

#[test]
fn with_a_reset_after_each_transaction_a_sessions_lock_ends_with_the_transaction() {
    let cluster = builder().start_with_extension();
    let pooler = Pooler::start(&cluster, 1, true);
    transactions_locks_exclude_and_end(&cluster, &pooler);

    let (mut client, mut second, mut direct) = (pooler.client(), pooler.client(), cluster.client());
    for _ in 0..2 {
        call(&mut client, "BEGIN; SELECT lock_acquire('s'), lock_acquire('s')");
        assert_eq!(value::<i32>(&mut direct, "SELECT depth FROM idgen.locks"), 2, "what was reset does not count");
        assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"));
        call(&mut client, "COMMIT");
        cluster.wait_for(PATIENCE, "the pooler to reset the connection", || locks(&mut direct) == 0);
        assert_eq!(shown(&mut direct), [""; 0]);
        assert_eq!(call(&mut client, "SELECT lock_release('s')"), "f");
    }
    // Nobody has it, whatever the client thinks.
    call(&mut second, "BEGIN; SELECT lock_acquire('s')");
    assert_eq!(shown(&mut direct), ["s session"]);
    assert_eq!(call(&mut second, "SELECT lock_release('s')"), "t");
    assert!(value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"));
    call(&mut second, "COMMIT");
    // It comes after the reset: there is one connection.
    call(&mut client, "SELECT 1");
    assert_eq!(shown(&mut direct), ["s session"], "a reset frees what is of its own connection");
}

#[test]
fn without_a_reset_a_sessions_lock_is_everybodys_and_outlives_its_client() {
    let cluster = builder().start_with_extension();
    let pooler = Pooler::start(&cluster, 1, false);
    transactions_locks_exclude_and_end(&cluster, &pooler);

    let (mut client, mut second, mut direct) = (pooler.client(), pooler.client(), cluster.client());
    assert_eq!(call(&mut client, "SELECT lock_try_acquire('s')"), "t");
    assert_eq!(call(&mut second, "SELECT lock_try_acquire('s')"), "t", "both have the server's one session");
    assert_eq!(value::<i32>(&mut direct, "SELECT depth FROM idgen.locks"), 2);
    drop((client, second));
    let mut third = pooler.client();
    assert_eq!(call(&mut third, "SELECT lock_release('s')"), "t", "it was never this client's");
    assert_eq!(shown(&mut direct), ["s session"]);
    assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"), "nobody is left who would let go of it");
}
