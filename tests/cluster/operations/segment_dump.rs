//! Dumps of segments: an ordinary owner of the database can dump and restore them, and segments of a dropped role do not pass
//! to another role.

use idgen_testkit::dump::file;
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{column, execute, in_new_database, value};
use idgen_testkit::{Cluster, run};
use postgres::Client;

/// A database of the role keeper, with a table that draws from the segment t, a lease, a pool, and keys of public ids: in
/// use, rotated and retired.
pub fn with_database_of_an_ordinary_role() -> (Cluster, Client) {
    // Each database that draws has a worker, until it has been idle for a while.
    let cluster = Cluster::builder().conf("max_worker_processes", "32").start_with_extension();
    cluster.execute("CREATE ROLE keeper LOGIN; CREATE ROLE maker; CREATE ROLE drawer LOGIN");
    let mut dba = in_new_database(&cluster, "shop");
    execute(
        &mut dba,
        "ALTER DATABASE shop OWNER TO keeper;
         GRANT EXECUTE ON FUNCTION segment_create, lease_define, worker_pool_define, public_id_define TO maker;
         SET ROLE maker;
         SELECT segment_create('t', step => 20, min_step => 20, max_step => 20, stride => 10, residue => 3);
         SELECT segment_grant('t', 'drawer');
         SELECT segment_grant('t', 'keeper');
         SELECT public_id_define('ord'), public_id_define('inv', 'long');
         SELECT public_id_grant('ord', 'drawer'), public_id_grant('inv', 'public');
         SELECT public_id_rotate('ord', 'long'), public_id_rotate('inv', 'short'), public_id_retire('inv', 1);
         SELECT lease_define('job', 3, '5 min', lock_delay => '7 s', notify => true);
         SELECT lease_acquire('job');
         SELECT worker_pool_define('pods', 5, 2, '1 hour')",
    );
    // In its own transaction.
    execute(&mut dba, "SELECT worker_id FROM worker_acquire('pods', 'pod')");
    execute(
        &mut dba,
        "RESET ROLE;
         REVOKE EXECUTE ON FUNCTION segment_create, lease_define, worker_pool_define, public_id_define FROM maker;
         CREATE TABLE drawn (id bigint PRIMARY KEY DEFAULT segment_next('t'), n int);
         ALTER TABLE drawn OWNER TO keeper;
         INSERT INTO drawn (n) SELECT generate_series(1, 30)",
    );
    (cluster, dba)
}

pub const ROWS: &str = "SELECT concat_ws(' ', tag, step, stride, residue, owner, drawers) FROM idgen.segment
     UNION ALL SELECT key::text FROM idgen.public_key AS key
     UNION ALL SELECT definition::text FROM idgen.lease_definition AS definition
     UNION ALL SELECT pool::text FROM idgen.worker_pool AS pool
     UNION ALL SELECT concat_ws(' ', pool, worker_id, owner, acquired_at, not_before, not_after)
               FROM idgen.worker_id ORDER BY 1";

/// A role that owns segments is dropped. On the server of the restore another role has its OID.
#[test]
fn segments_of_a_dropped_role_do_not_pass_to_another_role_smoke() {
    let (origin, [mut dba]) = Cluster::builder().start_with_clients();
    execute(&mut dba, "CREATE ROLE leaver; CREATE ROLE stays; CREATE ROLE \"odd 'name'\"");
    for tag in ["t", "other"] {
        create(&mut dba, tag, "");
    }
    execute(
        &mut dba,
        "SELECT segment_grant('t', 'leaver'); SELECT segment_grant('t', 'stays'); SELECT segment_grant('t', 'odd ''name''');
         SELECT segment_grant('other', 'public'); SELECT segment_grant('other', 'leaver');
         SELECT segment_alter('t', owner => 'leaver'); SELECT segment_alter('other', owner => 'stays');
         GRANT EXECUTE ON FUNCTION lease_define, worker_pool_define TO leaver;
         SET ROLE leaver; SELECT lease_define('job'), worker_pool_define('pods'); RESET ROLE;
         REVOKE EXECUTE ON FUNCTION lease_define, worker_pool_define FROM leaver",
    );
    let leaver: u32 = value(&mut dba, "SELECT 'leaver'::regrole::oid");
    execute(&mut dba, "DROP ROLE leaver");
    let drawn = next(&mut dba, "t");

    // Creates roles until one gets the OID of the dropped role.
    let target = Cluster::start();
    target.execute("CREATE ROLE stays; CREATE ROLE \"odd 'name'\"");
    let mut strangers = 0;
    while value::<bool>(
        &mut target.client(),
        &format!("SELECT to_regrole('{leaver}') IS NULL AND NOT EXISTS (SELECT FROM pg_roles WHERE oid = {leaver})"),
    ) {
        strangers += 1;
        assert!(strangers < 1000, "no role gets the OID {leaver}");
        target.execute(&format!("CREATE ROLE stranger_{strangers}"));
    }
    for (index, options) in
        [&[][..], &["--inserts"], &["--column-inserts", "--rows-per-insert=2"]].into_iter().enumerate()
    {
        let (database, dump) = (format!("restored_{index}"), file(&target, &format!("dump_{index}")));
        run(origin.program("pg_dump").args(["-d", "postgres"]).args(options).arg("-f").arg(&dump));
        target.execute(&format!("CREATE DATABASE {database}"));
        run(target.program("psql").args(["-d", &database, "--set=ON_ERROR_STOP=1", "-f"]).arg(&dump));

        let mut restored = target.client_in(&database);
        let rows: Vec<String> = column(
            &mut restored,
            "SELECT concat_ws(' ', tag, owner, drawers) FROM idgen.segment
             UNION ALL SELECT concat_ws(' ', name, owner) FROM idgen.lease_definition
             UNION ALL SELECT concat_ws(' ', name, owner) FROM idgen.worker_pool ORDER BY 1",
        );
        let expected = [
            "job pg_database_owner",
            "other stays {-}",
            "pods pg_database_owner",
            "t pg_database_owner {stays,\"\\\"odd 'name'\\\"\"}",
        ];
        assert_eq!(rows, expected, "{options:?}");
        assert!(next(&mut restored, "t") > drawn);
    }
}
