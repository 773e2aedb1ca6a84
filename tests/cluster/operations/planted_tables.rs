//! idgen finds its tables by name and accesses them with more rights than its callers have. After DROP EXTENSION, or when the
//! schema was renamed, a role that may create schemas can plant tables with these names while calls still run. Code attached
//! to a planted table must not get more rights than its owner has, and idgen must not use its rows.

use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};
use idgen_testkit::{Cluster, Paused, pause};
use postgres::Client;
use postgres::error::SqlState;

/// A server with a role that may create schemas and draw from a segment.
fn start() -> Cluster {
    let cluster = Cluster::builder().conf("statement_timeout", "1min").start_with_extension();
    cluster.execute(
        "CREATE ROLE mallory LOGIN; GRANT CREATE ON DATABASE postgres TO mallory;
         SELECT segment_create('ticket', step => 1, max_step => 1), segment_grant('ticket', 'mallory')",
    );
    cluster
}

fn mallory(cluster: &Cluster) -> Client {
    cluster.client_as("postgres", "mallory")
}

/// Creates mallory's tables with the names of idgen's. Reading or writing them runs a function of mallory's.
fn plant(mallory: &mut Client) {
    execute(
        mallory,
        "CREATE SCHEMA idgen;
         CREATE FUNCTION idgen.seize() RETURNS bool LANGUAGE plpgsql AS $$
         BEGIN
             ALTER ROLE mallory SUPERUSER;
             RETURN true;
         EXCEPTION WHEN insufficient_privilege THEN
             RETURN true;
         END $$;
         CREATE FUNCTION idgen.seize_by_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM idgen.seize();
             RETURN NEW;
         END $$;
         CREATE SEQUENCE idgen.lease_token;
         CREATE TABLE idgen.lease_definition (name text, slots int, ttl interval, lock_delay interval, owner regrole);
         CREATE TABLE idgen.lease (name text, slot int, token bigint, depth int, owner text, role regrole, data jsonb,
             acquired_at timestamptz, ttl_us bigint, ends_us bigint, clock text, revoked bool, session bigint,
             session_key bigint, UNIQUE (name, slot));
         INSERT INTO idgen.lease VALUES
             ('x', 0, 1, 1, NULL, 'mallory', NULL, now(), 1000000, 0, '', false, NULL, NULL);
         CREATE TRIGGER seize BEFORE INSERT OR UPDATE ON idgen.lease FOR EACH ROW EXECUTE FUNCTION idgen.seize_by_trigger();
         CREATE TABLE idgen.segment_rows (tag text, max_id bigint, step bigint, min_step bigint, max_step bigint,
             target_duration interval, stride bigint, residue bigint, upper_bound bigint, owner regrole, drawers regrole[],
             creation bigint, version bigint, created_in bigint, changed_in bigint, server bigint, reserve interval,
             source text, history text, received bigint, servers regrole[] DEFAULT '{}');
         INSERT INTO idgen.segment_rows VALUES
             ('ticket', 0, 1, 1, 1, '1 second', 1, 0, 1000000, 'mallory', '{}', 1, 1, 0, 0);
         CREATE TRIGGER seize BEFORE UPDATE ON idgen.segment_rows
             FOR EACH ROW EXECUTE FUNCTION idgen.seize_by_trigger();
         CREATE VIEW idgen.segment AS SELECT * FROM idgen.segment_rows WHERE idgen.seize()",
    );
}

fn assert_no_superuser(cluster: &Cluster) {
    let is_superuser = "SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'";
    assert!(!value::<bool>(&mut cluster.client(), is_superuser), "mallory has become a superuser");
}

/// Runs a statement of mallory's on planted tables: it must fail and must not make mallory a superuser.
fn assert_harmless(cluster: &Cluster, mallory: &mut Client, sql: &str, code: &SqlState) {
    let outcome = mallory.simple_query(sql);
    execute(mallory, "COMMIT");
    assert_no_superuser(cluster);
    let error = outcome.expect_err("the planted table was used");
    assert_eq!(error.code(), Some(code), "{error:?}");
}

/// Fetches from a cursor that was declared before the drop, which still finds its function by OID.
fn fetch_after_the_drop(call: &str) {
    let cluster = start();
    let mut mallory = mallory(&cluster);
    execute(&mut mallory, &format!("BEGIN; DECLARE c CURSOR FOR SELECT {call}"));
    cluster.execute("DROP EXTENSION idgen");
    plant(&mut mallory);
    assert_harmless(&cluster, &mut mallory, "FETCH c", &SqlState::UNDEFINED_TABLE);
}

#[test]
fn planted_table_is_not_written_smoke() {
    fetch_after_the_drop("lease_renew('x', 1)");
}

#[test]
fn planted_view_is_not_read() {
    fetch_after_the_drop("segment_next('ticket')");
}

/// The session has found the tables under their names before.
#[test]
fn table_in_the_place_of_a_renamed_schema_is_not_used() {
    let cluster = start();
    let mut mallory = mallory(&cluster);
    execute(&mut mallory, "SELECT segment_next('ticket'), lease_acquire('x')");
    cluster.execute("ALTER SCHEMA idgen RENAME TO moved");
    plant(&mut mallory);
    for call in
        ["SELECT segment_alter('ticket', step => 1)", "SELECT segment_next('other')", "SELECT lease_acquire('y')"]
    {
        assert_harmless(&cluster, &mut mallory, call, &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    }
}

/// Neither where the schema alone has another name, nor where the table has.
#[test]
fn table_that_gets_the_name_is_not_used() {
    for rename in [
        "ALTER SCHEMA idgen RENAME TO moved; ALTER SCHEMA planted RENAME TO idgen",
        "ALTER TABLE idgen.segment RENAME TO moved; ALTER TABLE idgen.planted RENAME TO segment",
    ] {
        let cluster = start();
        cluster.execute("CREATE SCHEMA planted CREATE TABLE segment (); CREATE TABLE idgen.planted ()");
        let mut client = cluster.client();
        let call = "SELECT segment_alter('ticket', step => 1)";
        execute(&mut client, call);
        cluster.execute(rename);
        expect_error(&mut client, call, "55000");
    }
}

/// The head of a queue sleeps without a table lock.
#[test]
fn waiter_does_not_use_a_planted_table() {
    let cluster = start();
    let [mut waiter, mut planter] = [mallory(&cluster), mallory(&cluster)];
    let pid = backend_pid(&mut waiter);
    cluster.execute("SELECT lease_acquire('x', ttl => '1 hour')");
    std::thread::scope(|scope| {
        let call = "SELECT lease_acquire('x')";
        let waiter = scope.spawn(|| assert_harmless(&cluster, &mut waiter, call, &SqlState::UNDEFINED_TABLE));
        let asleep = pause_asleep(&cluster, pid);
        cluster.execute("DROP EXTENSION idgen");
        plant(&mut planter);
        asleep.resume();
        waiter.join().unwrap();
    });
}

/// Pauses a sleeping process of the server.
fn pause_asleep(cluster: &Cluster, pid: i32) -> Paused {
    let mut client = cluster.client();
    let sleeps =
        format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Extension'");
    let mut paused = None;
    cluster.wait_for(PATIENCE, "the process to sleep", || {
        paused = Some(pause(pid)).filter(|_| value(&mut client, &sleeps));
        paused.is_some()
    });
    paused.expect("waited for")
}

/// The refill worker is a superuser. The planted row has the creation number by which the worker finds its row.
#[test]
fn refill_worker_takes_no_range_from_a_planted_table_smoke() {
    let cluster = start();
    let [mut drawer, mut planter] = [mallory(&cluster), mallory(&cluster)];
    let mut client = cluster.client();
    let creation: i64 = value(&mut client, "SELECT creation FROM idgen.segment");
    execute(&mut drawer, "SELECT segment_next('ticket')");
    let worker = value(&mut client, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen refill'");
    // Pause it between transactions, when it holds no table lock.
    let paused = pause_asleep(&cluster, worker);
    // Draw until the ring is empty and a refill is requested.
    let dry = drawer
        .simple_query("SET idgen.segment_timeout = '10ms'; SELECT segment_next('ticket') FROM generate_series(1, 9)");
    assert!(dry.is_err());
    cluster.execute("DROP EXTENSION idgen");
    plant(&mut planter);
    execute(&mut planter, &format!("UPDATE idgen.segment_rows SET creation = {creation}"));
    paused.resume();
    let ended = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {worker})");
    cluster.wait_for(PATIENCE, "the worker to end", || value(&mut client, &ended));
    assert_no_superuser(&cluster);
    assert_eq!(value::<i64>(&mut planter, "SELECT max_id FROM idgen.segment_rows"), 0, "the worker took a range");
}
