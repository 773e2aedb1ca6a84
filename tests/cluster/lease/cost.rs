//! What calls and queries cost: a failed attempt writes no WAL and consumes no transaction id, and a query for one name of
//! the views reads the rows of that name.

use idgen_testkit::Cluster;
use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{backend_pid, column, execute, expect_error, rows_read, value};
use postgres::Client;

use crate::fairness::quiet;
use crate::{builder, scenario, wait_for_state, wait_until_head};

/// The end of WAL and the next transaction id.
fn written(client: &mut Client) -> String {
    value(client, "SELECT pg_current_wal_insert_lsn() || ' ' || pg_snapshot_xmax(pg_current_snapshot())")
}

#[test]
fn failed_attempt_writes_nothing() {
    let cluster = quiet();
    let (mut holder, mut head, mut client) = (cluster.client(), cluster.client(), cluster.client());
    let (mut fenced, mut observer) = (cluster.client(), cluster.client());
    acquire(&mut holder, "'held', '1 day'");
    acquire(&mut holder, "'bound', '1 day', bind_session => true");
    execute(
        &mut holder,
        "SELECT lease_define('slots', 2); SELECT lease_acquire('slots', '1 day') FROM generate_series(1, 2)",
    );
    execute(
        &mut holder,
        "SELECT lease_define('rests', lock_delay => '1 day'); SELECT lease_acquire('rests'); SELECT lease_revoke('rests')",
    );
    // The term has expired, but a transaction has fenced it.
    let token = acquire(&mut holder, "'fenced', '100 ms'").token;
    wait_for_state(&cluster, "fenced", "0 expired");
    execute(&mut fenced, &format!("BEGIN; SELECT lease_fence('fenced', {token})"));
    // Another session is at the head of the queue.
    acquire(&mut holder, "'queued', '1 day'");
    let pid = backend_pid(&mut head);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| head.simple_query("SELECT lease_acquire('queued')").is_err());
        wait_until_head(&cluster, pid);
        for name in ["held", "bound", "slots", "rests", "fenced", "queued"] {
            for timeout in ["0", "30 ms"] {
                let attempt = format!("SELECT lease_try_acquire('{name}', '{timeout}', '1 day', bind_session => true)");
                // The first attempt reads catalogs and prunes pages.
                execute(&mut client, &attempt);
                let before = written(&mut observer);
                for _ in 0..5 {
                    assert_eq!(client.query(&attempt, &[]).unwrap().len(), 0, "{name}");
                    assert_eq!(written(&mut observer), before, "{name}, {timeout}");
                }
            }
            let attempt = format!("SELECT lease_acquire('{name}')");
            let before = written(&mut observer);
            execute(&mut client, "SET lock_timeout = '30ms'");
            expect_error(&mut client, &attempt, "55P03");
            execute(&mut client, "RESET lock_timeout");
            assert_eq!(written(&mut observer), before, "{name}");
        }
        for call in ["lease_renew", "lease_release", "lease_fence"] {
            let attempt = format!("SELECT {call}('held', 1)");
            expect_error(&mut client, &attempt, "55000");
            let before = written(&mut observer);
            expect_error(&mut client, &attempt, "55000");
            assert_eq!(written(&mut observer), before, "{call}");
        }
        execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})"));
        assert!(waiter.join().unwrap());
    });
    // A successful attempt moves both.
    let before = written(&mut observer);
    acquire(&mut client, "'another'");
    assert_ne!(written(&mut observer), before);
}

/// The lock table has room for a few thousand locks. A new name takes a queue lock, but none for its definition.
#[test]
fn transaction_with_many_names_holds_no_definition_lock() {
    let cluster = quiet();
    let (mut holder, mut definer, mut other) = (cluster.client(), cluster.client(), cluster.client());
    execute(&mut definer, "SELECT lease_define(name) FROM unnest('{a,b}'::text[]) AS name");
    execute(&mut holder, "BEGIN; SELECT lease_acquire('name ' || i, '1 day') FROM generate_series(1, 1000) AS i");
    let of_definitions = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = x'6c64'::int";
    assert_eq!(value::<i64>(&mut other, of_definitions), 0);

    // No definition changes under an uncommitted grant, and no other one waits for it.
    execute(&mut definer, "SET lock_timeout = '30ms'");
    for name in ["name 1", "name 1000"] {
        expect_error(&mut definer, &format!("SELECT lease_define('{name}', 2)"), "55P03");
    }
    execute(&mut definer, "SELECT lease_define('a', 2), lease_define('c'), lease_drop('b')");
    execute(&mut holder, "COMMIT");
    execute(&mut definer, "BEGIN; SELECT lease_define('name 1', 2)");
    execute(&mut other, "SET lock_timeout = '30ms'; SELECT lease_define('name 1000', 2)");
}

fn with_many_names() -> Cluster {
    let cluster = builder().conf("autovacuum", "off").start_with_extension();
    cluster.execute("SELECT lease_define('servers', 200, '1 h')");
    cluster.execute("SELECT lease_acquire('servers', ttl => '1 h') FROM generate_series(1, 2)");
    cluster.execute(
        "INSERT INTO idgen.lease (name, slot, token, depth, role, acquired_at, ttl_us, ends_us, clock, revoked)
         SELECT 'job ' || n, 0, n, 1, role, acquired_at, ttl_us, ends_us, clock, false
         FROM idgen.lease, generate_series(1, 20000) AS n WHERE name = 'servers' AND slot = 0",
    );
    cluster.execute("VACUUM ANALYZE idgen.lease");
    cluster
}

fn plan(client: &mut Client, query: &str) -> String {
    column::<String>(client, &format!("EXPLAIN {query}")).join("\n")
}

#[test]
fn view_of_one_name_reads_its_rows_by_index_smoke() {
    let cluster = with_many_names();
    let mut client = cluster.client();
    for query in ["job 7", "servers"].map(|name| format!("SELECT * FROM idgen.leases WHERE name = '{name}'")) {
        let plan = plan(&mut client, &query);
        assert!(plan.contains("lease_key") && !plan.contains("Seq Scan on lease"), "{query}:\n{plan}");
        let ((), read) = rows_read(&mut client, "lease", |client| execute(client, &query));
        assert!(read > 0 && read < 50, "{query} reads {read} rows");
    }
    let ((), read) = rows_read(&mut client, "lease", |client| execute(client, "SELECT * FROM idgen.leases"));
    assert!(read > 20_000, "the whole view reads the whole table, and not {read} rows");
}

#[test]
fn view_counts_the_sessions_in_the_queue_of_each_name() {
    scenario(
        "holder: SELECT lease_acquire(name, '1 h') FROM unnest('{a,b,idle}'::text[]) AS name
         observer: SELECT name, queue FROM idgen.leases ORDER BY name -> a|0, b|0, idle|0
         head waits for Extension: SELECT lease_acquire('a')
         second waits for advisory: SELECT lease_acquire('a')
         other waits for Extension: SELECT lease_acquire('b')
         observer: SELECT name, queue FROM idgen.leases ORDER BY name -> a|2, b|1, idle|0
         observer: SELECT count(pg_cancel_backend(pid)) FROM unnest(ARRAY[$head_pid, $second_pid, $other_pid]) AS pid -> 3
         head ends -> error 57014
         second ends -> error 57014
         other ends -> error 57014",
    );
}
