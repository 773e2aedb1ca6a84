//! A query for one name of the views reads the rows of that name.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{backend_pid, column, execute, lease_rows_read, row, value};

use crate::{builder, wait_until_queued};
use postgres::Client;

fn with_many_names() -> Cluster {
    let cluster = builder().conf("autovacuum", "off").start_with_extension();
    cluster.execute("SELECT lease_define('pool', 200, '1 h')");
    cluster.execute("SELECT worker_acquire('pool', ttl => '1 h') FROM generate_series(1, 2)");
    cluster.execute(
        "INSERT INTO idgen.lease (name, slot, token, depth, role, acquired_at, ttl_us, ends_us, clock, revoked)
         SELECT 'job ' || n, 0, n, 1, role, acquired_at, ttl_us, ends_us, clock, false
         FROM idgen.lease, generate_series(1, 20000) AS n WHERE name = 'pool' AND slot = 0",
    );
    cluster.execute("VACUUM ANALYZE idgen.lease, idgen.worker_number");
    cluster
}

fn plan(client: &mut Client, query: &str) -> String {
    column::<String>(client, &format!("EXPLAIN {query}")).join("\n")
}

#[test]
fn view_of_one_name_reads_its_rows_by_index_smoke() {
    let cluster = with_many_names();
    let mut client = cluster.client();
    for query in ["SELECT * FROM idgen.leases WHERE name = 'job 7'", "SELECT * FROM idgen.workers WHERE pool = 'pool'"]
    {
        let plan = plan(&mut client, query);
        assert!(plan.contains("lease_pkey") && !plan.contains("Seq Scan on lease"), "{query}:\n{plan}");
        let ((), read) = lease_rows_read(&mut client, |client| execute(client, query));
        assert!(read > 0 && read < 50, "{query} reads {read} rows");
    }
    let ((), read) = lease_rows_read(&mut client, |client| execute(client, "SELECT * FROM idgen.leases"));
    assert!(read > 20_000, "the whole view reads the whole table, and not {read} rows");
}

#[test]
fn view_counts_the_sessions_in_the_queue_of_each_name() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut observer) = (cluster.client(), cluster.client());
    for name in ["a", "b", "idle"] {
        execute(&mut holder, &format!("SELECT lease_acquire('{name}', '1 h')"));
    }
    let queues = "SELECT string_agg(name || queue, ' ' ORDER BY name) FROM idgen.leases";
    assert_eq!(value::<String>(&mut observer, queues), "a0 b0 idle0");
    std::thread::scope(|scope| {
        let mut pids = Vec::new();
        for name in ["a", "a", "b"] {
            let mut client = cluster.client();
            let pid = backend_pid(&mut client);
            scope.spawn(move || {
                let _canceled = client.simple_query(&format!("SELECT lease_acquire('{name}')"));
            });
            // The first of a name is at the head, the others wait behind it.
            let locks = format!("SELECT count(*) = 1 FROM pg_locks WHERE pid = {pid} AND objsubid = 27761");
            cluster.wait_for(idgen_testkit::sql::PATIENCE, "the session in the queue", || value(&mut observer, &locks));
            pids.push(pid);
        }
        wait_until_queued(&cluster, pids[1]);
        assert_eq!(value::<String>(&mut observer, queues), "a2 b1 idle0");
        for pid in pids {
            row(&mut observer, &format!("SELECT pg_cancel_backend({pid})"));
        }
    });
}
