//! Pools of worker ids over an upgrade of their coordinator.

use idgen_testkit::sql::{PATIENCE, column, execute, row, value};
use idgen_testkit::{Cluster, Stop};

use super::{install, releases};

/// Values and terms continue, and the intervals of worker ids are kept.
#[test]
fn data_of_the_first_release_survives_its_upgrade() {
    let cluster = Cluster::start();
    cluster.execute(
        "CREATE ROLE clerk;
         CREATE EXTENSION idgen VERSION '0.14.0';
         SELECT segment_create('ticket', step => 10), segment_grant('ticket', 'clerk');
         SELECT lease_define('importer', 2), lease_define('workers', 4)",
    );
    let mut client = cluster.client();
    let id: i64 = value(&mut client, "SELECT snowflake_next()");
    let ticket: i64 = value(&mut client, "SELECT segment_next('ticket')");
    let token: i64 = value(&mut client, "SELECT token FROM lease_acquire('importer', ttl => '1 hour')");
    let worker = row(&mut client, "SELECT worker_id, token FROM worker_acquire('workers', 'pod', '1 hour')");
    let (worker_id, worker_token): (i32, i64) = (worker.get(0), worker.get(1));
    let intervals = "SELECT number || ' ' || not_before || ' ' || not_after FROM idgen.worker_number";
    let before: Vec<String> = column(&mut client, intervals);

    execute(&mut client, "ALTER EXTENSION idgen UPDATE");

    assert_eq!(column::<String>(&mut client, intervals), before);
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > id);
    execute(&mut client, "SET ROLE clerk");
    assert_eq!(value::<i64>(&mut client, "SELECT segment_next('ticket')"), ticket + 1);
    execute(&mut client, "RESET ROLE");
    execute(&mut client, &format!("SELECT lease_renew('importer', {token}), lease_fence('importer', {token})"));
    let renew =
        "SELECT renewed.expires_at > now() FROM idgen.workers, worker_renew('workers', token, not_after) AS renewed";
    assert!(value::<bool>(&mut client, renew));
    let next = row(&mut client, "SELECT worker_id, token FROM worker_acquire('workers', 'other', '1 hour')");
    assert_ne!(next.get::<_, i32>(0), worker_id);
    assert!(next.get::<_, i64>(1) > worker_token);
}

/// The keeper's requests are those of 0.14.0. So this also tells of an earlier server at a coordinator of this release.
#[test]
fn servers_keep_their_worker_ids_and_segments_over_the_upgrade_of_their_coordinator_from_any_release() {
    let coordinator = Cluster::builder().conf("max_worker_processes", "32").start();
    for release in releases(&coordinator) {
        let (database, mut client) = install(&coordinator, &release);
        execute(&mut client, "SELECT lease_define('servers', 4, '3 s'), segment_create('t')");
        let conninfo = coordinator.connect_string(&database, "postgres");
        let builder = Cluster::builder().conf("idgen.worker_pool", "servers").conf("idgen.coordinator", &conninfo);
        let server = builder.start_with_extension();
        let renewals = "SELECT renewals FROM idgen.stat_worker WHERE state = 'leased'";
        let renewed = |since: i64| {
            server.wait_for(PATIENCE, "a renewal", || {
                column::<i64>(&mut server.client(), renewals).iter().any(|n| *n > since)
            });
            value::<i64>(&mut server.client(), "SELECT renewals FROM idgen.stat_worker")
        };
        let last = renewed(0);
        server.execute("SELECT segment_attach('t', '2 seconds')");
        let mut session = server.client();
        let draw = "SELECT max(snowflake_next()), max(segment_next('t')) FROM generate_series(1, 3000)";
        execute(&mut session, draw);

        execute(&mut client, "ALTER EXTENSION idgen UPDATE");

        renewed(last);
        execute(&mut session, draw);
        let kept = "SELECT changes = 1 AND worker_id = 0 FROM idgen.stat_worker";
        assert!(value::<bool>(&mut session, kept), "from {release}");
        drop(session);
        server.stop(Stop::Fast);
        let released = "SELECT state = 'free' FROM idgen.workers WHERE pool = 'servers'";
        assert!(value::<bool>(&mut client, released), "from {release}");
    }
}
