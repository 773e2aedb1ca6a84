//! Restored dumps, and an extension that is dropped and created again.

use idgen_testkit::grants::epoch_us;
use idgen_testkit::run;
use idgen_testkit::sql::{execute, value};

use super::{acquire, assert_apart, assert_pool_is_apart_from, builder, define_pool, release, renew, with_pool};

#[test]
fn recreated_extension_grants_no_id_time_again() {
    let (cluster, mut client) = with_pool();
    let mut first = acquire(&mut client);
    renew(&mut client, &mut first, "14 s");
    execute(&mut client, "DROP EXTENSION idgen; CREATE EXTENSION idgen");
    define_pool(&cluster);
    let second = acquire(&mut client);
    assert_apart(&[&first, &second]);
    // Once more, before the grants after the first time begin.
    execute(&mut client, "DROP EXTENSION idgen; CREATE EXTENSION idgen");
    define_pool(&cluster);
    let third = acquire(&mut client);
    assert_apart(&[&first, &second, &third]);
}

#[test]
fn restored_dump_grants_no_id_time_again() {
    let (cluster, mut client) = with_pool();
    let mut first = acquire(&mut client);
    let file = cluster.data_dir().with_file_name("coordinator.dump");
    run(cluster.program("pg_dump").args(["-Fc", "-d", "postgres", "-f"]).arg(&file));
    // The dump lacks everything from here on.
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    release(&mut client, &first);
    let third = acquire(&mut client);

    cluster.execute("CREATE DATABASE restored");
    run(cluster.program("pg_restore").args(["-d", "restored"]).arg(&file));
    let mut restored = cluster.client_in("restored");
    assert_pool_is_apart_from(&[&first, &second, &third], &mut restored);

    execute(&mut client, "DROP EXTENSION idgen CASCADE");
    run(cluster.program("pg_restore").args(["-d", "postgres"]).arg(&file));
    let mut client = cluster.client();
    assert_pool_is_apart_from(&[&first, &second, &third], &mut client);
    let interrupted = "SELECT since > '-infinity' AND identity <> '' FROM idgen.worker_history";
    assert!(value::<bool>(&mut client, interrupted));
}

/// The dump knows the pool. One of 0.14.1 has no history then.
#[test]
fn dump_of_a_pool_without_grants_grants_no_id_time_again() {
    for has_history in [true, false] {
        let (origin, other) = (builder().start_with_extension(), builder().start());
        define_pool(&origin);
        let mut client = origin.client();
        let history = "CREATE TABLE history AS TABLE idgen.worker_history; DELETE FROM idgen.worker_history";
        if !has_history {
            execute(&mut client, history);
        }
        let file = origin.data_dir().with_file_name("coordinator.dump");
        run(origin.program("pg_dump").args(["-Fc", "-d", "postgres", "-f"]).arg(&file));
        if !has_history {
            execute(&mut client, "INSERT INTO idgen.worker_history TABLE history");
        }
        let first = acquire(&mut client);
        run(other.program("pg_restore").args(["-d", "postgres"]).arg(&file));
        let second = acquire(&mut other.client());
        assert_apart(&[&first, &second]);
    }
}

/// The longest rectangle that was possible before counts, not the current definition of the pool.
#[test]
fn pool_with_a_shorter_ttl_begins_after_the_longer_rectangles() {
    let (cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT worker_pool_define('p', count => 4, ttl => '1 hour')");
    let until = epoch_us("not_after");
    let first_us: i64 = value(&mut client, &format!("SELECT {until} FROM worker_acquire('p', NULL, '1 hour')"));
    execute(&mut client, "DROP EXTENSION idgen; CREATE EXTENSION idgen");
    define_pool(&cluster);
    let second = acquire(&mut client);
    assert!(second.from_us >= first_us, "{} us before", first_us - second.from_us);

    // The state that a promoted standby finds, and then a shorter ttl.
    execute(&mut client, "UPDATE idgen.worker_history SET identity = ''");
    let third = acquire(&mut client);
    execute(&mut client, "SELECT worker_pool_alter('p', ttl => '1 s')");
    let from = epoch_us("not_before");
    let fourth_us: i64 = value(&mut client, &format!("SELECT {from} FROM worker_acquire('p', NULL, '1 s')"));
    assert!(fourth_us >= third.from_us, "{} us before", third.from_us - fourth_us);

    // The operator can decide otherwise.
    let begins = "SELECT worker_begin_history(now() - interval '1 min') < now()";
    assert!(value::<bool>(&mut client, begins));
    execute(&mut client, "SELECT worker_correct('p', worker_id, now(), force => true) FROM idgen.workers");
    let lead = "SELECT extract(epoch FROM not_before - now()) < 1 FROM worker_acquire('p', NULL, '1 s')";
    assert!(value::<bool>(&mut client, lead), "the grant begins at once");
}

/// A coordinator that has never granted a worker id has nothing to wait for.
#[test]
fn first_grant_of_a_coordinator_begins_at_once() {
    let (_cluster, mut client) = with_pool();
    let first = acquire(&mut client);
    let now_us: i64 = value(&mut client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
    assert!(first.from_us <= now_us);
}
