//! The rights of an ordinary role.

use idgen_testkit::Cluster;
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{execute, expect_error, ids, row, value};

const SETTINGS: [(&str, &str); 5] = [
    ("idgen.layout", "pgedge"),
    ("idgen.worker_id", "3"),
    ("idgen.datacenter_id", "1"),
    ("idgen.max_drift", "5s"),
    ("idgen.max_generators", "16"),
];

fn with_an_app() -> Cluster {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("CREATE ROLE app LOGIN");
    cluster
}

#[test]
fn ordinary_role_generates_and_decodes_ids() {
    let cluster = with_an_app();
    cluster.execute("CREATE SCHEMA own AUTHORIZATION app");
    let mut client = cluster.client_as("postgres", "app");
    execute(&mut client, "CREATE TABLE own.t (id bigint PRIMARY KEY DEFAULT snowflake_next(), x int)");
    let mut drawn = ids(&mut client, "INSERT INTO own.t (x) SELECT 1 FROM generate_series(1, 10) RETURNING id");
    drawn.extend(ids(&mut client, "SELECT snowflake_next_many(10)"));
    drawn.extend(ids(&mut client, "SELECT snowflake_next('snowflake')"));
    drawn.extend(ids(&mut client, "SELECT snowflake_next_many(2, 'snowflake')"));
    assert_increasing(&drawn);
    let sql = format!(
        "SELECT (SELECT ts FROM snowflake_parts({id})) = snowflake_time({id}),
                snowflake_floor(ts) <= {id} AND {id} <= snowflake_ceil(ts),
                snowflake_make(ts, 0, {id} & 4095) = {id},
                (SELECT spec FROM snowflake_layout()) = (SELECT spec FROM snowflake_layout('snowflake'))
         FROM snowflake_time({id}, 'snowflake') AS ts",
        id = drawn[0]
    );
    let row = row(&mut client, &sql);
    assert_eq!((row.get(0), row.get(1), row.get(2), row.get(3)), (true, true, true, true));
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.stat_snowflake"), 1);
    assert!(value::<bool>(&mut client, "SELECT idgen.status() ? 'checks'"));
}

#[test]
fn ordinary_role_cannot_change_settings() {
    let cluster = with_an_app();
    let mut client = cluster.client_as("postgres", "app");
    for (name, new) in SETTINGS {
        let before: String = value(&mut client, &format!("SHOW {name}"));
        for sql in [
            format!("SET {name} = '{new}'"),
            format!("SET LOCAL {name} = '{new}'"),
            format!("SELECT set_config('{name}', '{new}', false)"),
            format!("ALTER ROLE app SET {name} = '{new}'"),
            format!("CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql SET {name} = '{new}' AS 'SELECT 1'"),
            format!("UPDATE pg_settings SET setting = '{new}' WHERE name = '{name}'"),
        ] {
            expect_error(&mut client, &sql, "55P02");
        }
        for sql in [
            format!("ALTER SYSTEM SET {name} = '{new}'"),
            format!("ALTER SYSTEM RESET {name}"),
            format!("ALTER DATABASE postgres SET {name} = '{new}'"),
            format!("ALTER ROLE postgres SET {name} = '{new}'"),
        ] {
            expect_error(&mut client, &sql, "42501");
        }
        // RESET neither fails nor has an effect.
        let _ = client.simple_query(&format!("RESET {name}"));
        let _ = client.simple_query(&format!("SET {name} TO DEFAULT"));
        execute(&mut client, "RESET ALL");
        execute(&mut client, "DISCARD ALL");
        assert_eq!(value::<String>(&mut client, &format!("SHOW {name}")), before, "{name}");
        // A superuser cannot set it in a session either: these settings belong to the server.
        expect_error(&mut cluster.client(), &format!("SET {name} = '{new}'"), "55P02");
    }
    // Unknown names with the prefix are errors.
    expect_error(&mut client, "SET idgen.wroker_id = 1", "42602");
    // The options of a connection do not help either.
    for (name, new) in SETTINGS {
        let options = format!("{} options='-c {name}={new}'", cluster.connect_string("postgres", "app"));
        assert!(postgres::Client::connect(&options, postgres::NoTls).is_err(), "{name}");
    }
}

#[test]
fn ordinary_role_cannot_reset_statistics() {
    let cluster = with_an_app();
    let mut client = cluster.client_as("postgres", "app");
    let before: i64 = ids(&mut client, "SELECT snowflake_next_many(50)").len() as i64;
    expect_error(&mut client, "SELECT idgen.reset_stats()", "42501");
    let issued = "SELECT sum(issued)::bigint FROM idgen.stat_snowflake";
    assert_eq!(value::<i64>(&mut client, issued), before);

    cluster.execute("GRANT EXECUTE ON FUNCTION idgen.reset_stats() TO app");
    execute(&mut client, "SELECT idgen.reset_stats()");
    assert_eq!(value::<i64>(&mut client, issued), 0);
    // Only counters are reset, not the last id.
    let last: i64 = value(&mut client, "SELECT last_id FROM idgen.stat_snowflake");
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > last);
}
