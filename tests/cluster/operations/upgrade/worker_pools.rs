//! Pools of worker ids over an upgrade of their coordinator, with holders that still run the release before.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{column, execute, row, value};

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
    let begun = "SELECT history.since > '-infinity' AND known.not_before > clock_timestamp()
                 FROM idgen.worker_history AS history, idgen.worker_number AS known WHERE known.number = 2";
    assert!(value::<bool>(&mut client, begun), "without a record, grants may be forgotten");
    renew(&mut client, token, now_us());
    // The keeper of the new release continues under the old token.
    let told = format!("SELECT not_after FROM idgen.workers WHERE token = {token}");
    execute(&mut client, &format!("SELECT worker_renew('servers', {token}, ({told}))"));
    execute(&mut client, &format!("SELECT worker_confirm('servers', {token}), worker_release('servers', {token})"));
}

/// The SQL of 0.12 does not say which worker ids were released. The upgrade takes it from the leases.
#[test]
fn pool_of_0_12_grants_before_and_after_the_upgrade_of_its_sql() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.12.0'; SELECT lease_define('p', 4, '1 hour')");
    let mut client = cluster.client();
    let acquire = |client: &mut postgres::Client, owner: &str| -> (i32, i64) {
        let row = row(client, &format!("SELECT worker_id, token FROM worker_acquire('p', '{owner}', '1 hour')"));
        (row.get(0), row.get(1))
    };
    let grants = ["a", "b", "c"].map(|owner| acquire(&mut client, owner));
    assert_eq!(grants.map(|(worker_id, _)| worker_id), [0, 1, 2]);
    let release = |client: &mut postgres::Client, token: i64| {
        assert!(value::<bool>(client, &format!("SELECT worker_release('p', {token}, now())")));
    };
    let renew = format!("SELECT worker_renew('p', {}, not_after) FROM idgen.workers WHERE worker_id = 2", grants[2].1);
    execute(&mut client, &renew);
    release(&mut client, grants[0].1);
    release(&mut client, grants[1].1);
    let (worker_id, token) = acquire(&mut client, "b");
    assert_eq!(worker_id, 1, "the owner's last one");
    assert_eq!(
        value::<String>(&mut client, "SELECT string_agg(state, ' ' ORDER BY slot) FROM idgen.leases"),
        "free held held"
    );

    execute(&mut client, "ALTER EXTENSION idgen UPDATE");

    let known =
        "SELECT string_agg(concat_ws(' ', number, owner, released), ', ' ORDER BY number) FROM idgen.worker_number";
    assert_eq!(value::<String>(&mut client, known), "0 a t, 1 b f, 2 c f");
    execute(&mut client, &renew);
    release(&mut client, token);
    assert_eq!(acquire(&mut client, "a").0, 0);
    assert_eq!(acquire(&mut client, "b").0, 1);
    assert_eq!(acquire(&mut client, "d").0, 3);
    assert_eq!(value::<String>(&mut client, known), "0 a f, 1 b f, 2 c f, 3 d f");
}
