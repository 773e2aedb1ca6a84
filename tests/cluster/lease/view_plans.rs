//! A query for one name of the views reads the rows of that name.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, lease_rows_read};
use postgres::Client;

use crate::{builder, scenario};

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
