//! pg_upgrade to the version of `$PG_CONFIG`, with idgen preloaded and in use. `make test-upgrade` names the old server.

use std::path::PathBuf;
use std::process::Command;

use idgen_testkit::grants::{self, Seen, assert_ids_granted, rectangles, worker_id_of};
use idgen_testkit::ids::last;
use idgen_testkit::lease::{acquire, assert_held, take_if_free, term};
use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, ids, row, value};
use idgen_testkit::{Builder, Cluster, Stop, run};
use postgres::Client;

const MODES: [&[&str]; 2] = [&[], &["--link"]];

/// A server of the old version.
fn old_builder() -> Builder {
    let pg_config = std::env::var_os("IDGEN_OLD_PG_CONFIG").expect("make test-upgrade names a server to upgrade from");
    let bin_dir = run(Command::new(pg_config).arg("--bindir"));
    Cluster::builder().bin_dir(PathBuf::from(bin_dir.trim_end()))
}

fn major(client: &mut Client) -> i32 {
    value(client, "SELECT current_setting('server_version_num')::int / 10000")
}

/// The server with the data of this one, after a clean stop.
fn upgraded(old: &Cluster, options: &[&str]) -> Cluster {
    let before = major(&mut old.client());
    old.stop(Stop::Fast);
    let new = old.upgrade(options);
    assert!(major(&mut new.client()) > before, "{options:?}");
    new
}

/// Ids in a table, and ids that only their client has seen.
fn draw(client: &mut Client) -> Vec<i64> {
    let mut seen = ids(client, "INSERT INTO orders SELECT FROM generate_series(1, 1000) RETURNING id");
    execute(client, "BEGIN");
    seen.extend(ids(client, "INSERT INTO orders SELECT FROM generate_series(1, 1000) RETURNING id"));
    execute(client, "ROLLBACK");
    seen
}

const LEASED: &str = "SELECT state = 'leased' FROM idgen.stat_worker";

/// A server of the old version that has leased its worker id.
fn pooled(coordinator: &Cluster) -> Cluster {
    let builder = old_builder().conf("idgen.worker_pool", "servers");
    let old = builder.conf("idgen.coordinator", &coordinator.conninfo()).start_with_extension();
    old.wait_for(PATIENCE, "the worker id", || value(&mut old.client(), LEASED));
    old
}

/// Copies a file or a directory from one data directory to another.
fn copy(old: &Cluster, name: &str, new: &Cluster) {
    run(new.program("/bin/cp").arg("-R").arg(old.data_dir().join(name)).arg(new.data_dir()));
}

const ORDERS: &str = "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next())";

/// What the tables and the catalog of idgen hold, without what a running server changes in them by itself.
const KEPT: &str = "SELECT s::text FROM idgen.segment s UNION ALL SELECT d::text FROM idgen.lease_definition d
     UNION ALL SELECT p::text FROM idgen.worker_pool p UNION ALL SELECT w::text FROM idgen.worker_id w
     UNION ALL SELECT concat_ws(' ', name, slot, state, token, owner, role) FROM idgen.leases WHERE state = 'held'
     UNION ALL SELECT concat_ws(' ', proname, proacl, prosrc) FROM pg_proc WHERE proname ~ '^(segment|lease|lock|worker|snowflake)_'
     UNION ALL SELECT concat_ws(' ', extname, extversion) FROM pg_extension ORDER BY 1";

#[test]
#[ignore = "needs two versions of PostgreSQL: make test-upgrade"]
fn pg_upgrade_keeps_ids_segments_leases_and_worker_ids() {
    for mode in MODES {
        let (old, [mut client]) = old_builder().conf("idgen.worker_id", "5").start_with_clients();
        execute(
            &mut client,
            "CREATE ROLE clerk;
             SELECT segment_create('ticket', step => 10), segment_grant('ticket', 'clerk');
             SELECT lease_define('importer', 1), worker_pool_define('workers', 0, 4, '1 hour');
             CREATE TABLE tickets (id bigint PRIMARY KEY DEFAULT segment_next('ticket'), note text);
             CREATE TRIGGER guard BEFORE INSERT ON tickets FOR EACH ROW EXECUTE FUNCTION lease_guard('importer');
             GRANT INSERT, SELECT ON tickets TO clerk",
        );
        execute(&mut client, ORDERS);
        let seen = draw(&mut client);
        let ticket: i64 = value(&mut client, "SELECT segment_next('ticket')");
        let token: i64 = value(&mut client, "SELECT token FROM lease_acquire('importer', ttl => '1 hour')");
        let worker = row(&mut client, "SELECT token, not_after::text FROM worker_acquire('workers', 'pod', '1 hour')");
        let (worker_token, not_after): (i64, String) = (worker.get(0), worker.get(1));
        let before: Vec<String> = column(&mut client, KEPT);
        drop(client);

        let new = upgraded(&old, mode);
        let mut client = new.client();
        assert_eq!(column::<String>(&mut client, KEPT), before, "{mode:?}");
        let after = draw(&mut client);
        assert!(after[0] > last(&seen), "{mode:?}: {} after {}", after[0], last(&seen));

        // The first value after what the old server has reserved.
        execute(&mut client, "SET ROLE clerk");
        assert_eq!(value::<i64>(&mut client, "SELECT segment_next('ticket')"), ticket + 10, "{mode:?}");
        execute(&mut client, "RESET ROLE");

        assert_eq!(take_if_free(&mut client, "importer"), None, "{mode:?}: the lease is held");
        expect_error(&mut client, "INSERT INTO tickets DEFAULT VALUES", "55000");
        let fenced = format!("SELECT lease_renew('importer', {token}); SELECT lease_fence('importer', {token})");
        execute(&mut client, &format!("BEGIN; {fenced}; INSERT INTO tickets DEFAULT VALUES; COMMIT"));

        // The new server has another system identifier: holders of worker ids acquire again, and get later id times.
        expect_error(
            &mut client,
            &format!("SELECT worker_renew('workers', {worker_token}, '{not_after}'::timestamptz)"),
            "55000",
        );
        let granted =
            "SELECT token, not_before > $1::text::timestamptz FROM worker_acquire('workers', 'pod', '1 hour')";
        let granted = client.query_one(granted, &[&not_after]).expect("a worker id is free");
        assert!(granted.get::<_, i64>(0) != worker_token && granted.get(1), "{mode:?}: {granted:?}");
    }
}

/// The mark of the old server is lost: pg_upgrade copies neither the directory idgen nor the label.
#[test]
#[ignore = "needs two versions of PostgreSQL: make test-upgrade"]
fn observed_mark_keeps_ids_above_those_before_pg_upgrade() {
    let (old, [mut client]) = old_builder().conf("idgen.worker_id", "5").start_with_clients();
    execute(&mut client, ORDERS);
    execute(&mut client, "SELECT snowflake_observe(snowflake_ceil(clock_timestamp() + interval '1 hour'))");
    let seen = draw(&mut client);
    let mark: i64 = value(&mut client, "SELECT snowflake_ceil(mark) FROM idgen.stat_clock");
    drop(client);

    let new = upgraded(&old, &[]);
    let mut client = new.client();
    // Shows that without the next step ids would repeat an hour later.
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") < seen[0]);
    execute(&mut client, &format!("SELECT snowflake_observe({mark})"));
    let after = draw(&mut client);
    assert!(after[0] > last(&seen), "{} after {}", after[0], last(&seen));
}

/// A file of the old server would be wrong in the new one, which has another system identifier.
#[test]
#[ignore = "needs two versions of PostgreSQL: make test-upgrade"]
fn copied_directory_idgen_stops_ids_after_pg_upgrade() {
    let old = old_builder().conf("idgen.worker_id", "5").start_with_extension();
    execute(&mut old.client(), "SELECT snowflake_next()");
    let new = upgraded(&old, &[]);
    new.stop(Stop::Fast);
    copy(&old, "idgen", &new);
    new.start_again();
    let mut client = new.client();
    let error = expect_error(&mut client, "SELECT snowflake_next()", "XX001");
    assert!(error.message().contains("was written by another server"), "{error:?}");
}

/// The server has had a pool, so worker id 0 may belong to another one.
#[test]
#[ignore = "needs two versions of PostgreSQL: make test-upgrade"]
fn copied_file_idgen_worker_keeps_a_server_without_its_pool_from_worker_id_0_after_pg_upgrade() {
    let coordinator = Cluster::builder().start_with_extension();
    coordinator.execute("SELECT worker_pool_define('servers', 0, 4, '1 hour')");
    let old = pooled(&coordinator);
    old.stop(Stop::Fast);
    ["idgen.worker_pool", "idgen.coordinator"].into_iter().for_each(|lost| old.set_conf(lost, ""));
    let new = old.upgrade(&[]);
    // Shows that the new server knows nothing of the pool.
    assert_eq!(worker_id_of(value(&mut new.client(), "SELECT snowflake_next()")), 0);
    new.stop(Stop::Fast);
    copy(&old, "idgen_worker", &new);
    new.start_again();
    expect_error(&mut new.client(), "SELECT snowflake_next()", "55000");
}

#[test]
#[ignore = "needs two versions of PostgreSQL: make test-upgrade"]
fn server_leases_its_worker_id_again_after_pg_upgrade() {
    for mode in MODES {
        let coordinator = Cluster::builder().start_with_extension();
        coordinator.execute("SELECT worker_pool_define('servers', 0, 1, '1 hour')");
        grants::record(&coordinator);
        let old = pooled(&coordinator);
        let mut client = old.client();
        execute(&mut client, ORDERS);
        let before = draw(&mut client);
        drop(client);

        let new = upgraded(&old, mode);
        // The pool has only one worker id: the stop of the old server has released it.
        new.wait_for(PATIENCE, "the worker id", || value(&mut new.client(), LEASED));
        let after = draw(&mut new.client());
        assert!(after[0] > last(&before), "{mode:?}: {} after {}", after[0], last(&before));
        let seen = [(&old, before), (&new, after)].map(|(server, ids)| Seen { data_dir: server.data_dir(), ids });
        assert_ids_granted(&rectangles(&mut coordinator.client()), &seen);
    }
}

/// Between two servers of one version.
#[test]
fn pg_upgrade_keeps_the_terms_of_leases() {
    let [old, new] = [Cluster::builder().start_with_extension(), Cluster::builder().new_system_identifier().start()];
    let mut client = old.client();
    execute(&mut client, "SELECT lease_define('defined', slots => 2, ttl => '1 hour')");
    acquire(&mut client, "'defined'");
    acquire(&mut client, "'bound', ttl => '1 hour', bind_session => true");
    let rows =
        "SELECT lease::text FROM idgen.lease UNION ALL SELECT d::text FROM idgen.lease_definition AS d ORDER BY 1";
    let before: Vec<String> = column(&mut client, rows);
    drop(client);
    old.stop(Stop::Fast);
    new.stop(Stop::Fast);
    let bin = new.program("postgres").get_program().to_owned();
    let bin = std::path::Path::new(&bin).parent().expect("a program is in a directory");
    // pg_upgrade starts both servers, with sockets in its working directory.
    run(new.program("pg_upgrade").arg("-b").arg(bin).arg("-d").arg(old.data_dir()).arg("-D").arg(new.data_dir()));

    new.start_again();
    let mut client = new.client();
    assert_eq!(column::<String>(&mut client, rows), before);
    assert_held(&mut client, "bound");
    let bound = term(&mut client, "bound").token;
    let next = take_if_free(&mut client, "defined").expect("the second slot is free");
    assert!(next > bound, "{next} after {bound}");
    assert_eq!(take_if_free(&mut client, "defined"), None);
}
