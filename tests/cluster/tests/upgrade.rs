//! A database that was upgraded step by step equals one with a fresh extension: objects, definitions, privileges and
//! comments.

use idgen_cluster_tests::Cluster;
use idgen_cluster_tests::sql::{column, execute, row, value};

/// The first release: every upgrade path begins here.
const FIRST: &str = "0.1.0";

/// Everything that belongs to the extension, one line each: what it is, how it is defined, who may use it, its comment.
const INVENTORY: &str = "
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

fn inventory(client: &mut postgres::Client) -> Vec<String> {
    column(client, INVENTORY)
}

#[test]
fn an_upgraded_database_equals_a_fresh_one() {
    let cluster = Cluster::start();
    cluster.execute("CREATE DATABASE upgraded");
    cluster.execute("CREATE EXTENSION idgen");
    let mut fresh = cluster.client();
    let mut upgraded = cluster.client_in("upgraded");

    execute(&mut upgraded, &format!("CREATE EXTENSION idgen VERSION '{FIRST}'"));
    let before = inventory(&mut upgraded);
    execute(&mut upgraded, "ALTER EXTENSION idgen UPDATE");
    let after = inventory(&mut upgraded);

    assert_ne!(before, after, "{FIRST} has nothing to upgrade");
    assert_eq!(after, inventory(&mut fresh));
    let version = |client: &mut postgres::Client| -> String {
        value(client, "SELECT extversion FROM pg_extension WHERE extname = 'idgen'")
    };
    assert_eq!(version(&mut upgraded), version(&mut fresh));
}

/// The SQL of an old release goes on working with the new library: users replace the library first.
#[test]
fn the_sql_of_the_first_release_works_with_this_library() {
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
