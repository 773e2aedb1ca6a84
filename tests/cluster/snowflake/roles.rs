//! The rights of an ordinary role.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{execute, expect_error, value};

const SETTINGS: [(&str, &str); 6] = [
    ("idgen.layout", "pgedge"),
    ("idgen.worker_id", "3"),
    ("idgen.datacenter_id", "1"),
    ("idgen.max_drift", "5s"),
    ("idgen.clock_window", "10s"),
    ("idgen.max_generators", "16"),
];

fn with_an_app() -> Cluster {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("CREATE ROLE app LOGIN");
    cluster
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
