//! The extension and its database are dropped and created again under waiters and bound leases.

use idgen_testkit::lease::{acquire, take_if_free};
use idgen_testkit::script::play;
use idgen_testkit::sql::{column, execute, expect_error, in_new_database, value};

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

/// The same name in another database is another lease, with the same condition variable.
#[test]
fn database_can_be_dropped_under_waiters_and_bound_leases() {
    let cluster = builder().start_with_extension();
    in_new_database(&cluster, "shop");
    play(
        &cluster,
        "here: SELECT token FROM lease_acquire('a', bind_session => true) -> $kept
         holder connects to shop as postgres
         -- whichever session ends first
         holder: SELECT lease_define('a', lock_delay => '5 min')
         holder: SELECT token FROM lease_acquire('a', bind_session => true) -> $token
         waiter waits for Extension: SELECT lease_acquire('a')
         head connects to shop as postgres
         head waits for Extension: SELECT lease_acquire('a')
         second connects to shop as postgres
         second waits for advisory: SELECT lease_acquire('a')
         other: DROP DATABASE shop WITH (FORCE)
         head ends -> error
         second ends -> error
         holder: SELECT 1 -> error
         other: SELECT state FROM idgen.leases WHERE name = 'a' -> held
         other: SELECT lease_try_acquire('a') -> nothing
         here: SELECT lease_release('a', $kept) -> t
         waiter ends
         other: CREATE DATABASE shop
         new connects to shop as postgres
         new: CREATE EXTENSION idgen
         new: SELECT token FROM lease_try_acquire('a', ttl => '1 hour') -> $again > $token
         new: SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid
             WHERE locktype = 'advisory' AND datname = 'shop' -> 0",
    );
}

/// What an index with another order would do: a search passes rows over.
#[test]
fn names_are_found_by_a_server_that_sorts_in_another_order() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE DATABASE moved TEMPLATE template0 ENCODING UTF8 LOCALE_PROVIDER icu ICU_LOCALE 'en'");
    let mut client = cluster.client_in("moved");
    execute(&mut client, "CREATE EXTENSION idgen");
    let names = ["a", "B", "c", "D", "e", "F", "a-b", "ab", "A_b"];
    for name in names {
        execute(
            &mut client,
            &format!(
                "SELECT lease_acquire('{name}', '1 hour'), worker_pool_define('{name}', count => 1, ttl => '1 h')"
            ),
        );
        execute(&mut client, &format!("SELECT worker_acquire('{name}')"));
        execute(&mut client, &format!("SELECT segment_create('{name}')"));
    }
    drop(client);
    cluster.execute(
        "UPDATE pg_database SET datlocprovider = 'c', datcollate = 'C', datctype = 'C' WHERE datname = 'moved'",
    );
    let mut client = cluster.client_in("moved");
    assert!(value::<bool>(&mut client, "SELECT 'a' > 'B'"), "the database has another order now");
    for name in names {
        let acquired = client.query(&format!("SELECT FROM lease_try_acquire('{name}')"), &[]).expect("an answer");
        assert!(acquired.is_empty(), "\"{name}\" has two holders");
        expect_error(&mut client, &format!("SELECT worker_acquire('{name}')"), "53400");
        execute(&mut client, &format!("SELECT segment_next('{name}')"));
    }
}

/// An index that sorts by the rules of the operating system is wrong on another one.
#[test]
fn no_index_depends_on_the_operating_system() {
    let cluster = builder().start_with_extension();
    let dependent =
        "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_depend ON objid = indrelid AND deptype = 'e'
         WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idgen')
           AND EXISTS (SELECT FROM unnest(indclass::oid[]) AS used JOIN pg_opclass AS class ON class.oid = used
                       WHERE opcname = 'text_ops')";
    assert_eq!(column::<String>(&mut cluster.client(), dependent), [""; 0]);
}
