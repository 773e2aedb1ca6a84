//! A database upgraded step by step equals one with a fresh extension: objects, definitions, privileges and comments; the
//! columns, constraints, indexes, triggers and options of tables; and the configuration tables for dumps.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, row, value};

/// The first release, where every upgrade path begins.
const FIRST: &str = "0.1.0";

/// Every object of the extension: its description, definition, privileges and comment.
const OBJECTS: &str = "
    SELECT concat_ws(' | ', object, definition, privileges, comment) FROM (
        SELECT pg_describe_object(d.classid, d.objid, 0) AS object,
               CASE d.classid WHEN 'pg_proc'::regclass THEN pg_get_functiondef(d.objid)
                              WHEN 'pg_class'::regclass THEN pg_get_viewdef(d.objid) END AS definition,
               concat(coalesce(p.proacl, c.relacl, n.nspacl), ' initially ',
                      (SELECT i.initprivs FROM pg_init_privs i WHERE i.objoid = d.objid)) AS privileges,
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
    SELECT concat_ws(' | ', 'dumped', config, condition)
    FROM pg_extension, unnest(extconfig::regclass[], extcondition) AS dumped (config, condition) WHERE extname = 'idgen'
    ORDER BY 1";

fn inventory(client: &mut postgres::Client) -> Vec<String> {
    [column(client, OBJECTS), column(client, PARTS)].concat()
}

#[test]
fn upgraded_database_equals_a_fresh_one_smoke() {
    let cluster = Cluster::start();
    cluster.execute("CREATE DATABASE upgraded");
    cluster.execute("CREATE EXTENSION idgen");
    let mut fresh = cluster.client();
    let mut upgraded = cluster.client_in("upgraded");

    execute(&mut upgraded, &format!("CREATE EXTENSION idgen VERSION '{FIRST}'"));
    let before = inventory(&mut upgraded);
    execute(&mut upgraded, "ALTER EXTENSION idgen UPDATE");
    let after = inventory(&mut upgraded);

    assert_ne!(before, after, "{FIRST} equals the current version");
    assert_eq!(after, inventory(&mut fresh));
    let version = |client: &mut postgres::Client| -> String {
        value(client, "SELECT extversion FROM pg_extension WHERE extname = 'idgen'")
    };
    assert_eq!(version(&mut upgraded), version(&mut fresh));
}

/// Users replace the library first, so the SQL of an old release must work with the new library.
#[test]
fn sql_of_the_first_release_works_with_this_library() {
    let cluster = Cluster::start();
    cluster.execute(&format!("CREATE EXTENSION idgen VERSION '{FIRST}'"));
    let mut client = cluster.client();
    let row = row(
        &mut client,
        "SELECT snowflake_next() < snowflake_next(), (SELECT count(*) FROM idgen.stat_snowflake),
                    (idgen.status() #>> '{version,sql}'),
                    (SELECT (c ->> 'ok')::bool FROM jsonb_array_elements(idgen.status() -> 'checks') c
                     WHERE c ->> 'check' = 'versions')",
    );
    assert!(row.get::<_, bool>(0));
    assert_eq!(row.get::<_, i64>(1), 1);
    assert_eq!(row.get::<_, String>(2), FIRST);
    assert!(!row.get::<_, bool>(3), "status() asks for ALTER EXTENSION idgen UPDATE");
}

/// The library handles REASSIGN OWNED and DROP OWNED under the tables of every release, and without tables.
#[test]
fn ownership_commands_work_with_the_sql_of_every_release() {
    let cluster = Cluster::start();
    cluster.execute("CREATE ROLE boss SUPERUSER; CREATE ROLE heir");
    let commands = "REASSIGN OWNED BY boss TO heir; DROP OWNED BY heir";
    execute(&mut cluster.client(), commands);
    let releases: Vec<String> = column(
        &mut cluster.client(),
        "SELECT version FROM pg_available_extension_versions WHERE name = 'idgen'
         UNION SELECT target FROM pg_extension_update_paths('idgen') WHERE source = '0.1.0' AND path IS NOT NULL",
    );
    assert!(releases.len() > 7, "{releases:?}");
    for (index, release) in releases.iter().enumerate() {
        cluster.execute(&format!("CREATE DATABASE release_{index}"));
        let mut client = cluster.client_in(&format!("release_{index}"));
        execute(&mut client, &format!("CREATE EXTENSION idgen VERSION '{release}'"));
        execute(&mut client, commands);
        execute(&mut client, "DROP EXTENSION idgen; SET ROLE boss");
        execute(&mut client, &format!("CREATE EXTENSION idgen VERSION '{release}'"));
        // This also drops the extension.
        execute(&mut client, "DROP OWNED BY boss");
        assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM pg_extension WHERE extname = 'idgen'"), 0);
    }
}

/// The view of the previous release calls the function of this library.
#[test]
fn statistics_view_of_the_previous_release_works_with_this_library() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.7.0'; SELECT segment_create('t', step => 10)");
    let mut client = cluster.client();
    execute(&mut client, "SELECT segment_next('t')");
    let sql = "SELECT remaining FROM idgen.stat_segment WHERE tag = 't'";
    assert_eq!(value::<i64>(&mut client, sql), 9);
}

/// Users replace the library first and run ALTER EXTENSION idgen UPDATE later. Holders continue, also within a session.
#[test]
fn leases_continue_under_the_sql_of_the_previous_release_and_over_its_upgrade() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.7.1'");
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('p', slots => 4, ttl => '1 hour')");
    let acquire = "SELECT token FROM lease_acquire('p')";
    let [renewed, released]: [i64; 2] = [(); 2].map(|()| value(&mut client, acquire));
    let states = "SELECT slot || ' ' || state || ' of ' || slots FROM idgen.leases WHERE name = 'p' ORDER BY slot";
    let mut hold = |token: i64| {
        execute(&mut client, &format!("SELECT lease_renew('p', {token})"));
        execute(&mut client, &format!("SELECT lease_renew_many('{{p}}', ARRAY[{token}])"));
        execute(&mut client, &format!("BEGIN; SELECT lease_fence('p', {token}); COMMIT"));
        assert_eq!(value::<i32>(&mut client, "SELECT slot FROM lease_try_acquire('other', ttl => '1 s')"), 0);
        execute(&mut client, "SELECT lease_revoke('other')");
        column::<String>(&mut client, states)
    };
    assert_eq!(hold(renewed)[..2], ["0 held of 4", "1 held of 4"]);
    execute(&mut cluster.client(), &format!("SELECT lease_release('p', {released})"));
    cluster.execute("ALTER EXTENSION idgen UPDATE");
    assert_eq!(hold(renewed)[..2], ["0 held of 4", "1 free of 4"]);
    let first_slot = "SELECT first_slot FROM idgen.lease_definition WHERE name = 'p'";
    assert_eq!(value::<i32>(&mut client, first_slot), 0);
    execute(&mut client, "SELECT lease_define('p', slots => 4, ttl => '1 hour', first_slot => 100)");
    assert_eq!(value::<i32>(&mut client, "SELECT slot FROM lease_acquire('p')"), 100);
}

/// Values and terms continue, and the intervals of worker ids are kept.
#[test]
fn data_of_the_previous_release_survives_the_upgrade() {
    let cluster = Cluster::start();
    cluster.execute(
        "CREATE ROLE clerk;
         CREATE EXTENSION idgen VERSION '0.7.0';
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
    execute(&mut client, &format!("SELECT worker_renew('workers', {worker_token}, '1 hour'::interval)"));
    let next = row(&mut client, "SELECT worker_id, token FROM worker_acquire('workers', 'other', '1 hour')");
    assert_ne!(next.get::<_, i32>(0), worker_id);
    assert!(next.get::<_, i64>(1) > worker_token);
}

/// The acquire of a keeper of 0.7. $3 is the time that its ids have reached, in microseconds since 1970.
const ACQUIRE_OF_0_7: &str = "
    WITH turn AS MATERIALIZED (SELECT 1 AS came FROM public.lock_acquire_xact(
        'idgen keeper ' OPERATOR(pg_catalog.||) pg_catalog.md5($1 OPERATOR(pg_catalog.||) $2)))
    SELECT granted.worker_id, granted.token, granted.not_after
    FROM turn, LATERAL public.worker_acquire($1, $2, CASE turn.came WHEN 1 THEN TTL END) AS granted";
const RENEW_OF_0_7: &str = "SELECT renewed.not_after FROM public.worker_renew($1, $2::pg_catalog.int8, TTL) AS renewed";
/// The ttl of the pool plus the lead of the server's ids.
const TTL_OF_0_7: &str = "
    GREATEST(LEAST((SELECT ttl FROM idgen.lease_definition WHERE name OPERATOR(pg_catalog.=) $1) OPERATOR(pg_catalog.+)
        (LEAST(GREATEST($3::pg_catalog.int8 OPERATOR(pg_catalog.-)
            (EXTRACT(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, 0),
            3155760000000000) OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval),
        pg_catalog.current_setting('idgen.lease_max_ttl', true)::pg_catalog.interval),
        pg_catalog.current_setting('idgen.lease_min_ttl', true)::pg_catalog.interval)";

/// Keepers of 0.7 hold worker ids while the library and then the extension are upgraded: none is lost and none waits.
#[test]
fn keepers_of_0_7_continue_over_the_upgrade_of_their_coordinator() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.7.1'; SELECT lease_define('servers', 4)");
    let mut client = cluster.client();
    let acquire_sql = ACQUIRE_OF_0_7.replace("TTL", TTL_OF_0_7);
    let renew_sql = RENEW_OF_0_7.replace("TTL", TTL_OF_0_7);
    let now_us = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        now.as_micros() as i64
    };
    let acquire = |client: &mut postgres::Client, owner: &str, reached_us: i64| -> (i32, i64, std::time::SystemTime) {
        let row = client.query_one(&acquire_sql, &[&"servers", &owner, &reached_us]).expect(&acquire_sql);
        (row.get(0), row.get(1), row.get(2))
    };
    let renew = |client: &mut postgres::Client, token: i64, reached_us: i64| -> std::time::SystemTime {
        client.query_one(&renew_sql, &[&"servers", &token, &reached_us]).expect(&renew_sql).get(0)
    };
    // The ids of one keeper are 20 s ahead of the clock.
    let (_, token, told) = acquire(&mut client, "a", now_us());
    let (_, ahead, _) = acquire(&mut client, "b", now_us() + 20_000_000);
    assert!(renew(&mut client, token, now_us()) > told);
    execute(&mut client, &format!("SELECT lease_renew('servers', {token})"));

    execute(&mut client, "ALTER EXTENSION idgen UPDATE");

    let told = renew(&mut client, token, now_us());
    let far = renew(&mut client, ahead, now_us() + 20_000_000);
    assert!(far.duration_since(told).expect("later").as_secs() >= 18, "{far:?} and {told:?}");
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.worker_history"), 0, "a renewal adds no history");
    let (third, _, _) = acquire(&mut client, "c", now_us());
    assert_eq!(third, 2);
    let begun = "SELECT history.since = '-infinity' AND known.not_before <= clock_timestamp()
                 FROM idgen.worker_history AS history, idgen.worker_number AS known WHERE known.number = 2";
    assert!(value::<bool>(&mut client, begun), "the history of an upgraded database is complete");
    renew(&mut client, token, now_us());
    // The keeper of the new release continues under the old token.
    let told = format!("SELECT not_after FROM idgen.workers WHERE token = {token}");
    execute(&mut client, &format!("SELECT worker_renew('servers', {token}, ({told}))"));
    execute(&mut client, &format!("SELECT worker_confirm('servers', {token}), worker_release('servers', {token})"));
}
