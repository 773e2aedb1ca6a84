//! Pools and leases over the update to 0.18.0. Before it, a worker id was a slot of a lease, and `first_slot` the lowest one.
//!
//! The library asks for the update before it grants worker ids. So these tests write the rows of earlier versions.

use std::sync::{Arc, Mutex};

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, expect_error, value};
use postgres::Client;

use super::{install, place, releases_before_pools, write_history};

/// Worker ids, each with an owner that says what became of it, and a pool that has granted none.
const DEFINE: &str = "
    INSERT INTO idgen.lease_definition (name, slots, ttl, lock_delay, owner, first_slot)
    VALUES ('pods', 8, '1 hour', '0', 'definer', 10), ('unused', 4, '2 hours', '0', 'postgres', 20),
           ('importer', 2, '1 hour', '0', 'postgres', 0)";
const BEFORE_INTERRUPTION: &str = "SELECT lease_acquire('pods', owner => 'interrupted')";
const INTERRUPT: &str = "UPDATE idgen.worker_history SET first_token = (SELECT token + 1 FROM idgen.lease)";
const ACQUIRE: &str = "
    SELECT lease_acquire('pods', owner => owner) FROM unnest('{held,expired,released,revoked,bare}'::text[]) AS owner;
    SELECT lease_acquire('importer')";
const GRANT: &str = "
    UPDATE idgen.lease SET slot = slot + 10 WHERE name = 'pods';
    INSERT INTO idgen.worker_number (pool, number, not_before, not_after, token, owner, released)
    SELECT name, slot, acquired_at, acquired_at + '1 hour', token, owner, owner = 'released'
    FROM idgen.lease WHERE name = 'pods' AND owner <> 'bare';
    INSERT INTO idgen.worker_number (pool, number, not_before, not_after, token, owner, released)
    VALUES ('dropped', 3, now(), now() + '1 second', 1, 'former', true);
    UPDATE idgen.worker_number SET not_before = not_before - interval '2 hours', not_after = not_after - interval '2 hours'
    WHERE owner = 'expired';
    UPDATE idgen.lease SET depth = 0, revoked = owner = 'revoked' WHERE owner IN ('released', 'revoked');
    CREATE TABLE tokens AS SELECT owner, token FROM idgen.lease WHERE name = 'pods';
    GRANT SELECT ON tokens TO PUBLIC;
    CREATE VIEW granted AS SELECT pool, worker_id, token, role, expires_at, bound, not_before FROM idgen.workers";

/// The id times before and after the update.
const RECTANGLES_BEFORE: &str =
    "SELECT concat_ws(' ', pool, number, not_before, not_after, owner) FROM idgen.worker_number ORDER BY pool, number";
const RECTANGLES: &str = "
    SELECT concat_ws(' ', pool, worker_id, not_before, not_after, owner) FROM idgen.worker_id
    WHERE acquired_at IS NOT NULL ORDER BY pool, worker_id";

const HOLDERS: &str = "
    SELECT concat_ws(' ', worker.pool, worker.worker_id, worker.state, worker.owner, worker.role,
                     CASE WHEN worker.token = tokens.token THEN 'with its token' ELSE worker.token::text END)
    FROM idgen.workers AS worker LEFT JOIN tokens USING (owner) ORDER BY worker.pool, worker.worker_id";

/// Runs the update. Returns its warnings, with their details.
fn update(cluster: &Cluster, database: &str) -> Vec<String> {
    let notices = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&notices);
    let mut config: postgres::Config = cluster.connect_string(database, "postgres").parse().expect("a string");
    config.notice_callback(move |notice| {
        let text = format!("{}: {}", notice.message(), notice.detail().unwrap_or_default());
        seen.lock().expect("no panic").push(text);
    });
    execute(&mut config.connect(postgres::NoTls).expect("a session"), "ALTER EXTENSION idgen UPDATE");
    let seen = notices.lock().expect("no panic");
    seen.clone()
}

#[test]
fn worker_ids_keep_their_holders_and_id_times_over_the_update_from_any_release_smoke() {
    let cluster = Cluster::start();
    cluster.execute("CREATE ROLE app LOGIN; CREATE ROLE definer");
    let place = place(&cluster);
    for release in releases_before_pools(&cluster) {
        let (database, mut client) = install(&cluster, &release);
        let mut app = cluster.client_as(&database, "app");
        write_history(&mut client, &place);
        execute(&mut client, DEFINE);
        execute(&mut app, BEFORE_INTERRUPTION);
        execute(&mut client, INTERRUPT);
        execute(&mut app, ACQUIRE);
        execute(&mut client, GRANT);
        let rectangles: Vec<String> = column(&mut client, RECTANGLES_BEFORE);

        let warnings = update(&cluster, &database);

        let expected = [("pods", 1), ("unused", 0)].map(|(pool, lost)| {
            let fate = "Holders of its worker ids keep them. Holders of the lease itself that have lost it";
            format!("lease \"{pool}\" is now a worker pool: {fate}: {lost}.")
        });
        assert_eq!(warnings, expected, "from {release}");
        let pools = "SELECT concat_ws(' ', name, first, count, ttl, owner) FROM idgen.worker_pool ORDER BY name";
        assert_eq!(
            column::<String>(&mut client, pools),
            ["pods 10 8 01:00:00 definer", "unused 20 4 02:00:00 postgres"]
        );
        for leases in ["idgen.lease_definition", "idgen.leases"] {
            assert_eq!(column::<String>(&mut client, &format!("SELECT name FROM {leases}")), ["importer"]);
        }
        assert_eq!(column::<String>(&mut client, RECTANGLES), rectangles, "from {release}");
        let expected = [
            "dropped 3 free former",
            "pods 10 held interrupted app",
            "pods 11 held held app with its token",
            "pods 12 expired expired app with its token",
            "pods 13 free released",
            "pods 14 free revoked",
        ];
        assert_eq!(column::<String>(&mut client, HOLDERS), expected, "from {release}");
        let kept = "SELECT count(*) FROM granted WHERE pool = 'pods' AND NOT bound AND expires_at > not_before";
        assert_eq!(value::<i64>(&mut client, kept), 5);
        assert_holders_go_on(&mut app);
        assert_pools_go_on(&mut client);
    }
}

/// Holders whose lease was held renew. Others are refused.
fn assert_holders_go_on(app: &mut Client) {
    for owner in ["held", "expired"] {
        let renew = format!(
            "SELECT renewed.not_after >= worker.not_after AND renewed.not_after > now()
             FROM idgen.workers AS worker, worker_renew(pool, token, not_after) AS renewed WHERE owner = '{owner}'"
        );
        assert!(value::<bool>(app, &renew), "{owner}");
    }
    for owner in ["interrupted", "released", "revoked", "bare"] {
        let token: i64 = value(app, &format!("SELECT token FROM tokens WHERE owner = '{owner}'"));
        expect_error(app, &format!("SELECT worker_renew('pods', {token}, now())"), "55000");
    }
    assert!(value::<bool>(app, "SELECT worker_release(pool, token) FROM idgen.workers WHERE owner = 'held'"));
}

/// Pools grant worker ids that were never granted, and a pool that is defined again begins after its former holders.
fn assert_pools_go_on(client: &mut Client) {
    for (pool, worker_id) in [("pods", 15), ("unused", 20)] {
        let acquire =
            format!("SELECT worker_id = {worker_id} AND not_before <= clock_timestamp() FROM worker_acquire('{pool}')");
        assert!(value::<bool>(client, &acquire), "{pool}");
    }
    execute(client, "SET ROLE definer; SELECT worker_pool_alter('pods', count => 9); RESET ROLE");
    execute(client, "SELECT worker_pool_define('dropped', 3, 1)");
    let former: String = value(client, "SELECT not_after::text FROM idgen.workers WHERE pool = 'dropped'");
    let acquire = format!("SELECT worker_id = 3 AND not_before >= '{former}' FROM worker_acquire('dropped')");
    assert!(value::<bool>(client, &acquire));
}

const LEASES: &str = "
    INSERT INTO idgen.lease_definition (name, slots, ttl, lock_delay, owner, first_slot)
    VALUES ('near', 3, '1 hour', '0', 'postgres', 1), ('far', 2, '1 hour', '0', 'postgres', 100),
           ('last', 1, '1 hour', '0', 'postgres', 65535), ('readers', 1, '1 hour', '0', 'postgres', 100);
    SELECT lease_acquire('near'), lease_acquire('near'), lease_acquire('near'), lease_acquire('far'), lease_acquire('far'),
           lease_acquire('last');
    SELECT lease_release(name, token) FROM lease_acquire('readers');
    SELECT lease_acquire('readers', shared => true), lease_acquire('readers', shared => true);
    UPDATE idgen.lease SET slot = slot + first_slot FROM idgen.lease_definition AS defined
    WHERE defined.name = lease.name AND slot < 65536 AND lease.name <> 'near';
    UPDATE idgen.lease SET slot = -slot - 1 WHERE name = 'near';
    UPDATE idgen.lease SET slot = -slot WHERE name = 'near';
    UPDATE idgen.lease SET slot = 0 WHERE name = 'far' AND slot = 101";

/// One is held in a slot below the first one. A pool that has granted nothing is told from a lease by this too.
#[test]
fn leases_keep_their_terms_when_slots_begin_at_0_over_the_update_from_any_release() {
    let cluster = Cluster::start();
    let terms = |first: &str| {
        format!(
            "SELECT concat_ws(' ', lease.name, CASE WHEN slot < 65536 THEN (slot - {first} + 65536) % 65536 ELSE slot END, token)
             FROM idgen.lease JOIN idgen.lease_definition USING (name) ORDER BY name, 1"
        )
    };
    for release in releases_before_pools(&cluster) {
        let (database, mut client) = install(&cluster, &release);
        execute(&mut client, LEASES);
        let before: Vec<String> = column(&mut client, &terms("first_slot"));

        assert_eq!(update(&cluster, &database), [""; 0], "from {release}");

        assert_eq!(column::<String>(&mut client, &terms("0")), before, "from {release}");
        let slots = "SELECT concat(name, slot) FROM idgen.leases WHERE slot < 65536 ORDER BY 1";
        assert_eq!(column::<String>(&mut client, slots), ["far0", "far65436", "last0", "near0", "near1", "near2"]);
        let renewed = "SELECT count(lease_renew(name, token)) FROM idgen.leases WHERE state = 'held'";
        assert_eq!(value::<i64>(&mut client, renewed), 8, "from {release}");
        execute(&mut client, "SELECT lease_define('near', 3, '1 hour'), lease_alter('readers', 1)");
        assert!(column::<i64>(&mut client, "SELECT token FROM lease_try_acquire('readers')").is_empty());
        execute(&mut client, "SELECT lease_release(name, token) FROM idgen.leases WHERE state = 'held'");
        execute(&mut client, "SELECT lease_acquire('readers'), lease_acquire('last')");
    }
}
