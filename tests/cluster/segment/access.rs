//! Privileges: a grant per tag to draw, owners who alter and drop, and changes that reach running sessions.

use idgen_testkit::Cluster;
use idgen_testkit::segment::{create, draw, next};
use idgen_testkit::sql::{execute, expect_error, hint, ids, value};
use postgres::Client;

/// A server with roles, one of which may create segments.
fn with_roles() -> (Cluster, Client) {
    let (cluster, [mut dba]) = Cluster::builder().start_with_clients();
    execute(
        &mut dba,
        "CREATE ROLE maker LOGIN; CREATE ROLE drawer LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE team;
         GRANT EXECUTE ON FUNCTION segment_create TO maker",
    );
    (cluster, dba)
}

#[test]
fn segment_grant_and_revoke_reach_running_sessions() {
    let (cluster, mut dba) = with_roles();
    create(&mut dba, "t", "");
    let mut drawer = cluster.client_as("postgres", "drawer");
    execute(
        &mut drawer,
        "SET plan_cache_mode = force_generic_plan; PREPARE n AS SELECT segment_next('t');
         CREATE FUNCTION pg_temp.wrapped(tag text) RETURNS bigint LANGUAGE plpgsql
         AS 'DECLARE id bigint; BEGIN id := segment_next(tag); RETURN id; END'",
    );
    let ways = ["EXECUTE n", "SELECT segment_next('t')", "SELECT pg_temp.wrapped('t')"];
    let mut expected = 0;
    let mut hold = |drawer: &mut Client, may: bool| {
        for sql in ways {
            if may {
                expected += 1;
                assert_eq!(value::<i64>(drawer, sql), expected, "a grant wastes no values");
            } else {
                let error = expect_error(drawer, sql, "42501");
                assert!(hint(&error).contains("segment_grant('t', 'drawer')"), "{error:?}");
            }
        }
    };
    hold(&mut drawer, false);
    for role in ["drawer", "public"] {
        execute(&mut dba, &format!("SELECT segment_grant('t', '{role}')"));
        hold(&mut drawer, true);
        execute(&mut dba, &format!("SELECT segment_revoke('t', '{role}')"));
        hold(&mut drawer, false);
    }
    // A privilege by membership in a role.
    execute(&mut dba, "SELECT segment_grant('t', 'team')");
    for (give, take) in [
        ("GRANT team TO drawer", "REVOKE team FROM drawer"),
        ("ALTER ROLE drawer SUPERUSER", "ALTER ROLE drawer NOSUPERUSER"),
        ("GRANT postgres TO drawer", "REVOKE postgres FROM drawer"),
    ] {
        execute(&mut dba, give);
        hold(&mut drawer, true);
        execute(&mut dba, take);
        hold(&mut drawer, false);
    }
}

/// Each FETCH is a statement of its own.
#[test]
fn revoke_reaches_the_next_fetch() {
    let (cluster, mut dba) = with_roles();
    create(&mut dba, "t", "");
    execute(&mut dba, "SELECT segment_grant('t', 'drawer')");
    let mut drawer = cluster.client_as("postgres", "drawer");
    execute(&mut drawer, "BEGIN; DECLARE c CURSOR FOR SELECT segment_next('t') FROM generate_series(1, 9999)");
    assert_eq!(ids(&mut drawer, "FETCH 2 FROM c"), [1, 2]);
    execute(&mut dba, "SELECT segment_revoke('t', 'drawer')");
    expect_error(&mut drawer, "FETCH 2 FROM c", "42501");
}

/// Also between statements where PostgreSQL itself does not process invalidations.
#[test]
fn revoke_reaches_a_running_transaction_smoke() {
    let (cluster, mut dba) = with_roles();
    create(&mut dba, "t", "");
    let mut drawer = cluster.client_as("postgres", "drawer");
    let next = drawer.prepare("SELECT segment_next('t')");
    let next = next.expect("a statement");
    for (give, take) in [
        ("SELECT segment_grant('t', 'drawer')", "SELECT segment_revoke('t', 'drawer')"),
        ("SELECT segment_grant('t', 'team'); GRANT team TO drawer", "REVOKE team FROM drawer"),
    ] {
        execute(&mut dba, give);
        execute(&mut drawer, "BEGIN");
        for _ in 0..3 {
            drawer.query_one(&next, &[]).expect("a value");
        }
        execute(&mut dba, take);
        let error = drawer.query_one(&next, &[]).expect_err("revoked");
        assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{error:?}");
        execute(&mut drawer, "ROLLBACK");
    }
}

/// Several roles run the same call site.
#[test]
fn draw_checks_the_privileges_of_the_current_role() {
    let (cluster, mut dba) = with_roles();
    create(&mut dba, "t", "");
    execute(&mut dba, "SELECT segment_grant('t', 'drawer')");
    execute(
        &mut dba,
        "CREATE FUNCTION in_turns() RETURNS text LANGUAGE plpgsql AS $$
         DECLARE
             drawn text := '';
         BEGIN
             FOR n IN 1..6 LOOP
                 EXECUTE 'SET LOCAL ROLE ' || (ARRAY['drawer', 'stranger', 'postgres'])[1 + n % 3];
                 BEGIN
                     drawn := drawn || ' ' || segment_next('t');
                 EXCEPTION WHEN insufficient_privilege THEN
                     drawn := drawn || ' no';
                 END;
             END LOOP;
             RETURN drawn;
         END $$;
         CREATE FUNCTION for_all() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ SELECT segment_next('t') $$",
    );
    assert_eq!(value::<String>(&mut dba, "SELECT in_turns()"), " no 1 2 no 3 4");
    // A SECURITY DEFINER function draws as its owner, while its caller draws as itself.
    let mut stranger = cluster.client_as("postgres", "stranger");
    assert_eq!(value::<i64>(&mut stranger, "SELECT for_all()"), 5);
    expect_error(&mut stranger, "SELECT for_all(), segment_next('t')", "42501");
    assert_eq!(next(&mut cluster.client(), "t"), 7);
    // An index expression draws as the owner of the table, also if another role runs ANALYZE.
    execute(
        &mut dba,
        "CREATE FUNCTION drawing(int) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN public.segment_next($$t$$); END';
         RESET ROLE; CREATE TABLE indexed AS SELECT n FROM generate_series(1, 5) AS n; ALTER TABLE indexed OWNER TO drawer;
         CREATE INDEX ON indexed (drawing(n)); ANALYZE indexed",
    );
    assert_eq!(next(&mut cluster.client(), "t"), 18);
    execute(&mut dba, "SELECT segment_revoke('t', 'drawer')");
    expect_error(&mut dba, "ANALYZE indexed", "42501");
}

/// Roles with a grant still draw, and a superuser sets a new owner.
#[test]
fn dropped_owner_is_replaced_by_a_superuser() {
    let (cluster, mut dba) = with_roles();
    let [mut maker, mut drawer] = ["maker", "drawer"].map(|role| cluster.client_as("postgres", role));
    execute(&mut dba, "GRANT team TO maker");
    create(&mut maker, "t", "");
    execute(&mut maker, "SELECT segment_grant('t', 'drawer'), segment_alter('t', owner => 'team', max_id => 5002)");
    assert_eq!(next(&mut maker, "t"), 5003);
    execute(&mut dba, "DROP ROLE team");
    expect_error(&mut maker, &draw("t"), "42501");
    assert_eq!([next(&mut drawer, "t"), next(&mut dba, "t")], [5004, 5005]);
    execute(&mut dba, "SELECT segment_alter('t', owner => 'maker')");
    assert_eq!(next(&mut maker, "t"), 5006);
    execute(&mut maker, "SELECT segment_revoke('t', 'drawer')");
    expect_error(&mut drawer, &draw("t"), "42501");
    execute(&mut maker, "SELECT segment_drop('t')");
    expect_error(&mut dba, &draw("t"), "42704");
}

/// As for PostgreSQL's own objects. From version 16 on, a member has that as an option of its own.
#[test]
fn owner_gives_its_segment_only_to_a_role_that_it_can_set_smoke() {
    let (cluster, mut dba) = with_roles();
    let version: i32 = value(&mut dba, "SELECT current_setting('server_version_num')::int");
    let [without, with] = if version < 160_000 {
        ["REVOKE team FROM maker", "GRANT team TO maker"]
    } else {
        ["GRANT team TO maker WITH ADMIN TRUE, INHERIT FALSE, SET FALSE", "GRANT team TO maker WITH SET TRUE"]
    };
    let mut maker = cluster.client_as("postgres", "maker");
    create(&mut maker, "t", "");
    execute(&mut dba, without);
    let give = "SELECT segment_alter('t', owner => 'team')";
    let error = expect_error(&mut maker, give, "42501");
    assert_eq!(error.message(), "must be able to SET ROLE \"team\"");
    execute(&mut dba, with);
    execute(&mut maker, give);
}
