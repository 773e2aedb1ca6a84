//! A coordinator whose database has another encoding than the server's.

use std::fs;
use std::os::unix::fs::symlink;

use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::{execute, expect_error, ids, value};
use idgen_testkit::{Cluster, Stop, run};

/// Creates a tag in a new database of the coordinator. Returns the connection string.
fn database(coordinator: &Cluster, encoding: &str, tag: &str) -> String {
    let name = encoding.to_lowercase();
    coordinator.execute(&format!(
        "CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    ));
    // The postgres crate speaks UTF-8 only, which PostgreSQL cannot convert to MULE_INTERNAL.
    let client_encoding = if tag.is_ascii() { "SQL_ASCII" } else { "UTF8" };
    let mut psql = coordinator.program("psql");
    psql.env("PGCLIENTENCODING", client_encoding).args(["-d", &name, "--set=ON_ERROR_STOP=1", "-c"]);
    run(psql.arg(format!("CREATE EXTENSION idgen; SELECT segment_create('{tag}', start => 1)")));
    coordinator.connect_string(&name, "postgres")
}

#[test]
fn tag_is_the_same_in_databases_of_other_encodings() {
    let coordinator = Cluster::start();
    for (encoding, tag) in [("LATIN1", "größe"), ("EUC_JP", "山田"), ("SQL_ASCII", "größe"), ("MULE_INTERNAL", "ascii")]
    {
        // PostgreSQL 19 has no MULE_INTERNAL.
        let find_encoding = format!("SELECT pg_char_to_encoding('{encoding}')");
        if value::<i32>(&mut coordinator.client(), &find_encoding) < 0 {
            continue;
        }
        let conninfo = database(&coordinator, encoding, tag);
        // The second one has an encoding of its own, which does not count.
        for option in ["", " client_encoding=LATIN1"] {
            let builder = Cluster::builder().conf("statement_timeout", "60s");
            let (_server, [mut client]) =
                builder.conf("idgen.coordinator", &(conninfo.clone() + option)).start_with_clients();
            execute(&mut client, &format!("SELECT segment_attach('{tag}')"));
            let draw = format!("SELECT segment_next('{tag}') FROM generate_series(1, 20)");
            assert_distinct(ids(&mut client, &draw));
        }
    }
}

#[test]
fn tag_that_the_coordinator_cannot_have_delays_no_other() {
    let coordinator = Cluster::start();
    let conninfo = database(&coordinator, "LATIN1", "größe");
    let builder = Cluster::builder().conf("statement_timeout", "60s").conf("idgen.coordinator", &conninfo);
    let (server, [mut client]) = builder.start_with_clients();
    execute(&mut client, "SELECT segment_attach('größe'), segment_attach('山田')");
    execute(&mut client, "SET idgen.segment_timeout = '1s'");
    let error = expect_error(&mut client, "SELECT segment_next('山田')", "55P03");
    assert!(error.detail().is_some_and(|detail| detail.contains("has no equivalent")), "{error:?}");
    execute(&mut client, "RESET idgen.segment_timeout");
    assert_eq!(ids(&mut client, "SELECT segment_next('größe') FROM generate_series(1, 20)").len(), 20);
    let log = server.log();
    assert!(!log.contains("could not fetch values of attached segments"), "the coordinator answers:\n{log}");
}

/// The name of a server has the path of its data directory.
#[test]
fn server_whose_directory_the_coordinator_cannot_name_gets_values_and_a_worker_id() {
    let coordinator = Cluster::start();
    let conninfo = database(&coordinator, "LATIN1", "größe");
    let mut observer = coordinator.client_in("latin1");
    execute(&mut observer, "SELECT worker_pool_define('p')");
    let builder = Cluster::builder().conf("statement_timeout", "60s").conf("idgen.coordinator", &conninfo);
    let server = builder.start_with_extension();
    server.stop(Stop::Fast);
    let foreign = server.data_dir().with_file_name("данные");
    fs::rename(server.data_dir(), &foreign).expect("both are in the directory of the test");
    symlink(&foreign, server.data_dir()).expect("it has another name now");
    server.set_conf("idgen.worker_pool", "p");
    server.start_again();
    let mut client = server.client();
    execute(&mut client, "SELECT snowflake_next(), segment_attach('größe')");
    assert_eq!(ids(&mut client, "SELECT segment_next('größe') FROM generate_series(1, 20)").len(), 20);
    for name in ["SELECT owner FROM idgen.workers", "SELECT name FROM idgen.segment_server"] {
        let name: String = value(&mut observer, name);
        assert!(name.ends_with(r"/\u0434\u0430\u043D\u043D\u044B\u0435"), "{name}");
    }
}
