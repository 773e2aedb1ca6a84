//! The extension and its database are dropped and created again under waiters and bound leases.

use idgen_testkit::lease::{acquire, assert_held, take_if_free};
use idgen_testkit::sql::{backend_pid, execute, value, wait_for_event};

use crate::{builder, scenario};

#[test]
fn recreated_extension_has_no_holders_and_repeats_no_token() {
    let cluster = builder().start_with_extension();
    let [mut holder, mut client] = [cluster.client(), cluster.client()];
    let bound = acquire(&mut holder, "'bound', bind_session => true").token;
    let token = acquire(&mut client, "'a', ttl => '1 hour'").token;
    assert!(token > bound);
    cluster.execute("DROP EXTENSION idgen; CREATE EXTENSION idgen");
    // Two sessions that used the old extension, and a new one.
    let mut highest = token;
    for client in [&mut holder, &mut client, &mut cluster.client()] {
        for name in ["a", "bound", "new"] {
            let token = take_if_free(client, name).expect("the lease is free");
            assert!(token > highest, "{token} after {highest}");
            highest = token;
            execute(client, &format!("SELECT lease_fence('{name}', {token}), lease_release('{name}', {token})"));
        }
    }
}

#[test]
fn extension_can_be_dropped_under_waiters() {
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    let script = "holder: SELECT token FROM lease_acquire('a', bind_session => true) -> $token
         head waits for Extension: SELECT lease_acquire('a')
         second waits for advisory: SELECT lease_acquire('a')
         -- Waiters hold no table lock, so an ALTER TABLE does not queue and block renewals.
         observer: BEGIN; LOCK TABLE idgen.lease, idgen.lease_definition; COMMIT
         holder: SELECT lease_renew('a', $token)
         head waits for Extension
         observer: DROP EXTENSION idgen
         head ends -> error 42P01
         second ends -> error 42P01
         -- Only the lock of the bound session is left, until that session ends.
         observer: LOCKS -> 1
         observer: CREATE EXTENSION idgen
         head: SELECT lease_release('a', token) FROM lease_try_acquire('a', ttl => '1 hour') -> t
         second: SELECT lease_release('a', token) FROM lease_try_acquire('a', ttl => '1 hour') -> t
         holder: SELECT lease_release('a', token) FROM lease_try_acquire('a', ttl => '1 hour') -> t
         holder leaves
         until: LOCKS -> 0";
    scenario(&script.replace("LOCKS", locks));
}

#[test]
fn database_can_be_dropped_under_waiters_and_bound_leases() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE DATABASE shop");
    let shop = || cluster.client_in("shop");
    execute(&mut shop(), "CREATE EXTENSION idgen");
    let [mut holder, mut head, mut second] = [shop(), shop(), shop()];
    let [mut here, mut other, mut waiter] = [cluster.client(), cluster.client(), cluster.client()];
    let [head_pid, second_pid, waiter_pid] = [&mut head, &mut second, &mut waiter].map(backend_pid);
    // The same name in another database is another lease, with the same condition variable.
    let kept = acquire(&mut here, "'a', bind_session => true").token;
    let highest = acquire(&mut holder, "'a', bind_session => true").token;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut waiter, "'a'").token);
        wait_for_event(&cluster, waiter_pid, "Extension");
        let head = scope.spawn(|| head.simple_query("SELECT lease_acquire('a')").is_err());
        wait_for_event(&cluster, head_pid, "Extension");
        let second = scope.spawn(|| second.simple_query("SELECT lease_acquire('a')").is_err());
        wait_for_event(&cluster, second_pid, "advisory");
        execute(&mut other, "DROP DATABASE shop WITH (FORCE)");
        assert!(head.join().unwrap() && second.join().unwrap());
        assert!(holder.simple_query("SELECT 1").is_err());
        assert_held(&mut other, "a");
        execute(&mut here, &format!("SELECT lease_release('a', {kept})"));
        waiter.join().unwrap();
    });
    cluster.execute("CREATE DATABASE shop");
    let mut client = shop();
    execute(&mut client, "CREATE EXTENSION idgen");
    let token = take_if_free(&mut client, "a").expect("the lease is free");
    assert!(token > highest, "{token} after {highest}");
    let locks = "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid
                 WHERE locktype = 'advisory' AND datname = 'shop'";
    assert_eq!(value::<i64>(&mut client, locks), 0);
}
