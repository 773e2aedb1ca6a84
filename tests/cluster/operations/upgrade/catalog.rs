//! A database upgraded from any release equals one with a fresh extension: objects, definitions, privileges and comments;
//! the columns, constraints, indexes, triggers and options of tables; and the configuration tables for dumps.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, value};

use super::{current, install, releases};

/// Every object of the extension: its description, definition, privileges and comment.
const OBJECTS: &str = "
    SELECT concat_ws(' | ', object, definition, privileges, comment) FROM (
        SELECT pg_describe_object(d.classid, d.objid, 0) AS object,
               CASE d.classid WHEN 'pg_proc'::regclass THEN pg_get_functiondef(d.objid)
                              WHEN 'pg_class'::regclass THEN pg_get_viewdef(d.objid) END AS definition,
               concat(coalesce(p.proacl, c.relacl, n.nspacl), ' initially ',
                      (SELECT string_agg(i.initprivs::text, ' ' ORDER BY i.objsubid)
                       FROM pg_init_privs i WHERE i.objoid = d.objid)) AS privileges,
               obj_description(d.objid, (SELECT relname FROM pg_class k WHERE k.oid = d.classid)) AS comment
        FROM pg_depend d
        LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
        LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
        LEFT JOIN pg_namespace n ON d.classid = 'pg_namespace'::regclass AND n.oid = d.objid
        WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idgen')
    ) AS inventory ORDER BY 1";

/// The parts of the extension's tables and views, and the extension's configuration.
const PARTS: &str = "
    WITH relation AS (
        SELECT c.* FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
        WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idgen'))
    SELECT concat_ws(' | ', 'relation', oid::regclass, relkind, relpersistence, relreplident, relrowsecurity, reloptions)
    FROM relation
    UNION ALL
    SELECT concat_ws(' | ', 'column', r.oid::regclass, row_number() OVER (PARTITION BY r.oid ORDER BY attnum), attname,
                     format_type(atttypid, atttypmod), attcollation::regcollation, attnotnull, pg_get_expr(adbin, adrelid),
                     attidentity, attgenerated, attstorage, attcompression, attacl, col_description(r.oid, attnum))
    FROM relation r JOIN pg_attribute ON attrelid = r.oid
    LEFT JOIN pg_attrdef ON adrelid = r.oid AND adnum = attnum
    WHERE attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT concat_ws(' | ', 'constraint', r.oid::regclass, conname, pg_get_constraintdef(k.oid), convalidated,
                     obj_description(k.oid, 'pg_constraint'))
    FROM relation r JOIN pg_constraint k ON conrelid = r.oid
    UNION ALL
    SELECT concat_ws(' | ', 'index', pg_get_indexdef(indexrelid), indisvalid, indisclustered, indisreplident,
                     obj_description(indexrelid, 'pg_class'))
    FROM relation r JOIN pg_index ON indrelid = r.oid
    UNION ALL
    SELECT concat_ws(' | ', 'trigger', pg_get_triggerdef(t.oid), tgenabled, obj_description(t.oid, 'pg_trigger'))
    FROM relation r JOIN pg_trigger t ON tgrelid = r.oid WHERE NOT tgisinternal
    UNION ALL
    SELECT concat_ws(' | ', 'extension', obj_description(oid, 'pg_extension')) FROM pg_extension WHERE extname = 'idgen'
    UNION ALL
    SELECT concat_ws(' | ', 'dumped', config, condition)
    FROM pg_extension, unnest(extconfig::regclass[], extcondition) AS dumped (config, condition) WHERE extname = 'idgen'
    ORDER BY 1";

fn inventory(client: &mut postgres::Client) -> Vec<String> {
    [column(client, OBJECTS), column(client, PARTS)].concat()
}

/// Also if its tables are published, which asks for a key of each table that loses rows.
#[test]
fn database_upgraded_from_any_release_equals_a_fresh_one_smoke() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen");
    let mut fresh = cluster.client();
    let expected = inventory(&mut fresh);
    for release in releases(&cluster) {
        let (_, mut upgraded) = install(&cluster, &release);
        execute(&mut upgraded, "CREATE PUBLICATION every FOR ALL TABLES; ALTER EXTENSION idgen UPDATE");
        let version = "SELECT extversion FROM pg_extension WHERE extname = 'idgen'";
        assert_eq!(value::<String>(&mut upgraded, version), current(&cluster), "from {release}");
        assert_eq!(inventory(&mut upgraded), expected, "from {release}");
    }
}

/// An index that sorts by other rules than those of the operating system passes rows over, so that keys are there twice.
#[test]
fn upgrade_keeps_the_safest_of_rows_that_are_there_twice() {
    let cluster = Cluster::start();
    let (_, mut client) = install(&cluster, "0.21.2");
    execute(&mut client, "SELECT lease_define('l'), segment_create('s')");
    let token: i64 = value(&mut client, "SELECT token FROM lease_acquire('l', '1 hour')");
    execute(
        &mut client,
        "SET allow_system_table_mods = on;
         UPDATE pg_index SET indisready = false
         WHERE indexrelid::regclass::text ~ '^idgen.(lease|segment|worker_id|worker_pool).*_pkey$';
         INSERT INTO idgen.lease (name, slot, token, depth, role, acquired_at, ttl_us, ends_us, clock, revoked)
         SELECT name, slot, token + 1, depth, role, acquired_at, ttl_us, ends_us, clock, revoked FROM idgen.lease;
         INSERT INTO idgen.segment (tag, max_id, owner) SELECT tag, max_id + 7, owner FROM idgen.segment;
         INSERT INTO idgen.lease_definition SELECT name, 5, ttl, lock_delay, owner, notify FROM idgen.lease_definition;
         INSERT INTO idgen.segment_server (tag, server, name, max_id, history, reported_at)
         SELECT 's', 1, 'one', max_id, '', now() FROM unnest('{9, 8}'::bigint[]) AS max_id;
         INSERT INTO idgen.worker_pool SELECT 'p', 0, count, '1 min', current_user::regrole FROM unnest('{3, 2}'::int[]) AS count;
         INSERT INTO idgen.worker_id (pool, worker_id, not_after)
         SELECT 'p', 1, day FROM unnest('{2030-01-02, 2030-01-01}'::timestamptz[]) AS day;
         ALTER EXTENSION idgen UPDATE",
    );
    assert_eq!(column::<i64>(&mut client, "SELECT max_id FROM idgen.segment_server"), [9]);
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.worker_pool"), 1);
    assert!(value::<bool>(
        &mut client,
        "SELECT every(not_after = '2030-01-02') FROM idgen.worker_id WHERE worker_id = 1"
    ));
    assert_eq!(column::<i64>(&mut client, "SELECT token FROM idgen.lease"), [token + 1]);
    assert_eq!(column::<i64>(&mut client, "SELECT max_id FROM idgen.segment"), [7]);
    assert_eq!(column::<i32>(&mut client, "SELECT slots FROM idgen.lease_definition"), [5]);
    execute(&mut client, &format!("SELECT lease_renew('l', {})", token + 1));
}

/// A role that may not acquire one lease may not acquire several either, after the update and in a restored dump.
#[test]
fn functions_for_several_leases_have_the_privileges_of_those_for_one() {
    let cluster = Cluster::start();
    cluster.execute("CREATE ROLE worker");
    let (_, mut client) = install(&cluster, "0.18.0");
    execute(
        &mut client,
        "REVOKE EXECUTE ON FUNCTION lease_acquire, lease_try_acquire FROM PUBLIC;
         GRANT EXECUTE ON FUNCTION lease_try_acquire TO worker;
         ALTER EXTENSION idgen UPDATE",
    );
    let privileges = "SELECT proname || ' ' || coalesce(proacl::text, 'all') FROM pg_proc
                      WHERE proname ~ '^lease_.*_many$' ORDER BY proname";
    let expected = [
        "lease_acquire_many {postgres=X/postgres}",
        "lease_fence_many all",
        "lease_release_many all",
        "lease_renew_many all",
        "lease_try_acquire_many {postgres=X/postgres,worker=X/postgres}",
    ];
    assert_eq!(column::<String>(&mut client, privileges), expected);
    let error = client.batch_execute("DROP ROLE worker").unwrap_err();
    assert!(format!("{error:?}").contains("lease_try_acquire_many"), "it depends on the role: {error:?}");
    let initial = "SELECT count(*) FROM pg_init_privs WHERE objoid IN (SELECT oid FROM pg_proc WHERE proname ~ '^lease_.*_many$')";
    assert_eq!(value::<i64>(&mut client, initial), 0, "a dump has them");
}

/// The objects of the extension with another owner than it, or with rights of others that it has not granted.
const STRAYS: &str = "
    WITH member AS (
        SELECT objid AS id, extowner FROM pg_depend JOIN pg_extension e ON e.oid = refobjid
        WHERE deptype = 'e' AND extname = 'idgen')
    SELECT oid::regprocedure || ' ' || proowner::regrole || ' ' || coalesce(proacl::text, '')
    FROM pg_proc JOIN member ON id = oid WHERE proowner <> extowner OR proacl::text ~ '[0-9]{4}|X/(?!owner)'
    UNION ALL
    SELECT oid::regclass || ' ' || relowner::regrole || ' ' || coalesce(relacl::text, '')
    FROM pg_class JOIN member ON id = oid WHERE relowner <> extowner OR relacl::text ~ 'stranger'";

/// The updates from these create tables, replace functions and copy the privileges of some.
const FROM: [&str; 3] = ["0.14.1", "0.17.0", "0.18.0"];

/// A database of another superuser, in which a role has got rights by default privileges of the one that updates.
fn installed_by_another_superuser(cluster: &Cluster, release: &str) -> postgres::Client {
    let (_, mut client) = install(cluster, release);
    execute(
        &mut client,
        &format!(
            "DROP EXTENSION idgen; SET ROLE owner; CREATE EXTENSION idgen VERSION '{release}';
             GRANT EXECUTE ON FUNCTION lease_acquire TO pg_monitor; RESET ROLE;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO stranger;
             ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO stranger"
        ),
    );
    client
}

#[test]
fn update_by_another_superuser_leaves_one_owner_and_no_rights_of_strangers() {
    let cluster = Cluster::start();
    cluster.execute("CREATE ROLE owner SUPERUSER; CREATE ROLE stranger");
    for release in FROM {
        let mut client = installed_by_another_superuser(&cluster, release);
        execute(&mut client, "BEGIN; SAVEPOINT s; ALTER EXTENSION idgen UPDATE; COMMIT");
        assert_eq!(column::<String>(&mut client, STRAYS), [""; 0], "from {release}");
        execute(&mut client, "REVOKE EXECUTE ON FUNCTION lease_acquire, lease_acquire_many FROM PUBLIC");
        let may =
            "SELECT has_function_privilege('stranger', oid, 'EXECUTE') FROM pg_proc WHERE proname ~ '^lease_acquire'";
        assert_eq!(column::<bool>(&mut client, may), [false, false], "from {release}");
        execute(
            &mut client,
            "ALTER ROLE owner NOSUPERUSER; SELECT count(*) FROM idgen.workers; ALTER ROLE owner SUPERUSER",
        );
        execute(&mut client, "DROP OWNED BY stranger; DROP ROLE stranger; CREATE ROLE stranger");
    }
}

/// The tables of an earlier update keep the rights that its default privileges gave.
#[test]
fn update_repairs_what_earlier_updates_by_another_superuser_left() {
    let cluster = Cluster::start();
    for release in FROM {
        cluster.execute("CREATE ROLE owner SUPERUSER; CREATE ROLE stranger");
        let mut client = installed_by_another_superuser(&cluster, release);
        execute(
            &mut client,
            "ALTER EXTENSION idgen UPDATE TO '0.21.6'; ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM stranger;
             REVOKE ALL ON ALL TABLES IN SCHEMA idgen FROM stranger;
             ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM stranger;
             REASSIGN OWNED BY owner TO postgres; DROP OWNED BY owner; DROP ROLE owner; ALTER EXTENSION idgen UPDATE",
        );
        let strays = STRAYS.replace("owner)'", "postgres)'");
        assert_eq!(column::<String>(&mut client, &strays), [""; 0], "from {release}");
        execute(&mut client, "DROP OWNED BY stranger; DROP ROLE stranger");
    }
}
