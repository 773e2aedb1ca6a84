//! Servers without preload and standbys cannot generate ids, but decode them.

use idgen_testkit::Cluster;
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{check, execute, expect_error, hint, ids, row, value};
use postgres::Client;

const GENERATE: [&str; 4] = [
    "SELECT snowflake_next()",
    "SELECT snowflake_next('js53')",
    "SELECT * FROM snowflake_next_many(2)",
    "SELECT snowflake_next_many(2, 'js53')",
];

/// Every function that reads ids or makes bounds, with the default layout and with a given one.
fn assert_decodes(client: &mut Client, spec: &str) {
    assert_eq!(value::<String>(client, "SELECT spec FROM snowflake_layout()"), spec);
    assert!(value::<bool>(client, "SELECT idgen.status() ? 'checks'"));
    for layout in ["", ", 'pgedge'", &format!(", '{spec}'")] {
        let sql = format!(
            "SELECT id BETWEEN snowflake_floor(ts{layout}) AND snowflake_ceil(ts{layout}),
                    snowflake_time(id{layout}) = ts,
                    (SELECT (p.ts, p.worker, p.sequence) = (moment.ts, 5, 77) FROM snowflake_parts(id{layout}) AS p)
             FROM (VALUES (timestamptz '2024-05-06 07:08:09.123Z')) AS moment (ts),
                  snowflake_make(ts, 5, 77{layout}) AS id"
        );
        let row = row(client, &sql);
        assert_eq!((row.get(0), row.get(1), row.get(2)), (true, true, true), "{sql}");
    }
}

const JS53: &str = "time:41 worker:3 sequence:9 unit:1ms epoch:2020-01-01";

#[test]
fn ids_are_decoded_but_not_generated_without_preload_smoke() {
    let builder = Cluster::builder().preload(false);
    let cluster = builder.conf("idgen.layout", "js53").conf("idgen.worker_id", "5").start_with_extension();
    // The first call of a session loads the library, so each call gets its own session.
    assert_decodes(&mut cluster.client(), JS53);
    for sql in GENERATE {
        let error = expect_error(&mut cluster.client(), sql, "55000");
        assert!(hint(&error).contains("shared_preload_libraries = 'idgen'"), "{error:?}");
    }
    let mut client = cluster.client();
    execute(&mut client, "LOAD 'idgen'; LOAD 'idgen'");
    for sql in GENERATE {
        expect_error(&mut client, sql, "55000");
        assert_decodes(&mut client, JS53);
    }
    let (ok, message) = check(&mut client, "preloaded");
    assert!(!ok && message.contains("shared_preload_libraries"), "{message}");
    assert_eq!(value::<i64>(&mut cluster.client(), "SELECT count(*) FROM idgen.stat_snowflake"), 0);
    execute(&mut cluster.client(), "SELECT idgen.reset_stats()");
    assert_eq!(value::<String>(&mut client, "SELECT idgen.status()->'settings'->>'layout'"), "js53");

    cluster.set_conf("shared_preload_libraries", "idgen");
    cluster.restart();
    assert_decodes(&mut cluster.client(), JS53);
    let id: i64 = value(&mut cluster.client(), "SELECT snowflake_next()");
    assert_eq!((id >> 9) & 7, 5);
}

/// Before the library is loaded, any role can set its settings as placeholders. Loading the library corrects that.
#[test]
fn role_cannot_set_the_layout_before_the_library_is_loaded() {
    let cluster = Cluster::builder().preload(false).conf("idgen.layout", "js53").start_with_extension();
    cluster.execute("CREATE ROLE app LOGIN");
    let mut client = cluster.client_as("postgres", "app");
    execute(&mut client, "SET idgen.layout = 'pgedge'; SET idgen.max_drift = '2s'");
    assert_eq!(value::<String>(&mut client, "SELECT spec FROM snowflake_layout()"), JS53);
    expect_error(&mut client, "SET idgen.layout = 'pgedge'", "55P02");
    assert_eq!(value::<String>(&mut client, "SHOW idgen.max_drift"), "1s");
}

#[test]
fn standby_decodes_ids_and_generates_them_once_promoted() {
    let primary = Cluster::builder().conf("idgen.layout", "js53").conf("idgen.worker_id", "5").start_with_extension();
    let made: i64 = value(&mut primary.client(), "SELECT snowflake_next()");
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);

    let mut session = standby.client();
    let mut app = standby.client();
    for sql in GENERATE {
        let error = expect_error(&mut session, sql, "25006");
        assert!(hint(&error).contains("primary"), "{error:?}");
    }
    let prepared = app.prepare("SELECT snowflake_next()").unwrap();
    assert!(app.query_one(&prepared, &[]).is_err());
    assert_decodes(&mut session, JS53);
    assert_eq!(value::<i64>(&mut session, "SELECT count(*) FROM idgen.stat_snowflake"), 0);

    primary.kill9_postmaster();
    standby.promote();
    // Sessions from before the promotion can generate now, also with prepared statements.
    let first: i64 = app.query_one(&prepared, &[]).unwrap().get(0);
    assert!(first > made);
    let more: Vec<i64> = GENERATE[..1].iter().flat_map(|sql| ids(&mut session, sql)).collect();
    assert!(more[0] > first);
    assert_increasing(&ids(&mut session, "SELECT snowflake_next_many(100, 'js53')"));
    assert_decodes(&mut session, JS53);
}

/// An open cursor sees a setting that changes while it runs.
#[test]
fn running_statement_follows_a_change_of_max_drift() {
    let cluster = Cluster::builder().conf("idgen.max_drift", "0").start_with_extension();
    let mut client = cluster.client();
    let narrow = "time:41 sequence:1 epoch:2020-01-01";
    execute(
        &mut client,
        &format!(
            "BEGIN;
             DECLARE single CURSOR FOR
                 SELECT (extract(epoch FROM snowflake_time(id, '{narrow}') - clock_timestamp()) * 1000)::float8
                 FROM (SELECT snowflake_next('{narrow}') AS id FROM generate_series(1, 1000) OFFSET 0) AS drawn;
             DECLARE batch CURSOR FOR SELECT snowflake_next_many(2000, '{narrow}');"
        ),
    );
    let borrowed = "SELECT borrowed FROM idgen.stat_snowflake";
    let leads_ms = |client: &mut Client| -> Vec<f64> {
        let rows = client.query("FETCH 50 FROM single", &[]).unwrap();
        assert_eq!(rows.len(), 50);
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert!(leads_ms(&mut client).iter().all(|lead_ms| *lead_ms <= 0.0));
    assert!(!ids(&mut client, "FETCH 1 FROM batch").is_empty());
    assert_eq!(value::<i64>(&mut client, borrowed), 0);

    cluster.set_conf("idgen.max_drift", "1min");
    cluster.reload();
    // The rest is drawn at once, up to a second ahead.
    assert_increasing(&ids(&mut client, "FETCH 1900 FROM batch"));
    assert!(value::<i64>(&mut client, borrowed) > 1900);

    cluster.set_conf("idgen.max_drift", "0");
    cluster.reload();
    // The ids go on where they are, and the statement waits for each tick of two ids.
    let leads_ms = leads_ms(&mut client);
    assert!(leads_ms[0] > 0.0, "the ids are not ahead");
    assert!(leads_ms.iter().all(|lead_ms| *lead_ms <= leads_ms[0] + 2.0), "the lead grows: {leads_ms:?}");
}
