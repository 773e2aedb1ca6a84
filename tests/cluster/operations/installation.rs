//! What CREATE EXTENSION makes is the same, whatever was set or planted in the database before.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute};

/// The rights to everything of the extension but functions, to which default privileges apply as to others.
const PRIVILEGES: &str = "
    SELECT concat_ws(' ', object, grantee::regrole, privilege_type, is_grantable)
    FROM (SELECT relkind, oid::regclass::text, relowner, relacl FROM pg_class
          WHERE relnamespace = 'idgen'::regnamespace AND relkind IN ('r', 'v', 'S')
          UNION ALL SELECT 'n', nspname, nspowner, nspacl FROM pg_namespace WHERE nspname = 'idgen'
         ) AS created (kind, object, owner, acl),
         aclexplode(coalesce(acl, acldefault(CASE kind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", owner))) ORDER BY 1";

/// Whatever the role that creates the extension gives to others by default.
#[test]
fn default_privileges_give_no_rights_to_tables() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen; CREATE ROLE app");
    cluster.execute("CREATE DATABASE generous");
    let mut generous = cluster.client_in("generous");
    for kind in ["TABLES", "SEQUENCES", "SCHEMAS"] {
        let roles = "TO app, pg_database_owner, pg_monitor WITH GRANT OPTION";
        execute(
            &mut generous,
            &format!(
                "ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} {roles};
                 ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO PUBLIC"
            ),
        );
    }
    execute(&mut generous, "CREATE EXTENSION idgen");
    let expected: Vec<String> = column(&mut cluster.client(), PRIVILEGES);
    assert_eq!(column::<String>(&mut generous, PRIVILEGES), expected);
}

/// Operators with other types than those of `pg_catalog`, which PostgreSQL would prefer where it has none for exactly these
/// types. The owner of a database may plant them in the schema of the extension, before a superuser creates it.
#[test]
fn planted_operators_neither_run_nor_become_a_part_of_the_extension() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    execute(
        &mut client,
        r#"DO $$
        DECLARE
            types CONSTANT text[] := '{bool,"\"char\"",name,text,int2,int4,int8,float4,float8,numeric,oid,xid,xid8,tid,
                bytea,uuid,jsonb,timestamptz,interval,regclass,regrole,regproc,regprocedure,text[],int8[],oid[],regrole[]}';
            one text;
            other text;
            operator text;
        BEGIN
            FOREACH one IN ARRAY types LOOP
                FOREACH other IN ARRAY types LOOP
                    EXECUTE format('CREATE FUNCTION public.planted(%s, %s) RETURNS bool LANGUAGE plpgsql '
                        'AS $body$BEGIN RAISE EXCEPTION ''a planted operator ran''; END$body$', one, other);
                    FOREACH operator IN ARRAY '{=,<>,<,<=,>,>=,+,-,*,/,%,||,~,!~,&,|,@>,&&}'::text[] LOOP
                        EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.planted)',
                            operator, one, other);
                    END LOOP;
                END LOOP;
            END LOOP;
        END $$"#,
    );
    // Rewrite rules, constraints, indexes and defaults belong to the relations of the extension.
    let bound = "
        SELECT DISTINCT concat_ws(' ', pg_describe_object(classid, objid, 0), 'uses', refobjid::regoperator)
        FROM pg_depend JOIN pg_operator AS used ON used.oid = refobjid
        WHERE refclassid = 'pg_operator'::regclass AND oprnamespace = 'public'::regnamespace
            AND classid <> 'pg_operator'::regclass";
    for create in ["CREATE EXTENSION idgen", "CREATE EXTENSION idgen VERSION '0.14.0'; ALTER EXTENSION idgen UPDATE"] {
        execute(&mut client, create);
        execute(&mut client, "SET search_path = pg_catalog");
        assert_eq!(column::<String>(&mut client, bound), [""; 0], "{create}");
        execute(&mut client, "RESET search_path; DROP EXTENSION idgen");
    }
}

/// The library reads their rows as those of a heap.
#[test]
fn tables_are_heaps_whatever_the_default_access_method_which_stays() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    execute(&mut client, "CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler");
    execute(&mut client, "SET default_table_access_method = other");
    let others = |client: &mut _| {
        let sql =
            "SELECT relname::text FROM pg_class JOIN pg_am ON pg_am.oid = relam WHERE amname = 'other' ORDER BY 1";
        column::<String>(client, sql)
    };
    execute(&mut client, "BEGIN; CREATE EXTENSION idgen; CREATE TABLE own (); COMMIT");
    assert_eq!(others(&mut client), ["own"]);
    execute(&mut client, "DROP TABLE own; DROP EXTENSION idgen; CREATE EXTENSION idgen VERSION '0.21.1'");
    assert!(others(&mut client).contains(&"segment".to_owned()));
    execute(&mut client, "ALTER EXTENSION idgen UPDATE");
    assert_eq!(others(&mut client), [""; 0]);
}
