//! The guide on PgBouncer in transaction mode, with `pgbouncer.ini`, `job.py` and `Pooled.java` of `examples/pgbouncer`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::thread;

use idgen_testkit::ids::assert_distinct;
use idgen_testkit::lease::take_if_free;
use idgen_testkit::pooler::{Pooler, simple_value};
use idgen_testkit::sql::{PATIENCE, column, execute, value};
use idgen_testkit::{Cluster, run};
use postgres::Client;

use crate::frameworks::python;
use crate::repository;

const DIRECTORY: &str = "examples/pgbouncer";
/// The size that the tests give to the pool `shop`.
const SIZE: usize = 2;

/// A server with the database `shop`.
fn shop() -> (Cluster, Client) {
    let cluster = Cluster::builder().conf("fsync", "off").conf("statement_timeout", "60s").start();
    cluster.execute("CREATE DATABASE shop");
    let mut direct = cluster.client_in("shop");
    execute(&mut direct, "CREATE EXTENSION idgen");
    (cluster, direct)
}

/// PgBouncer with the example's configuration, but for its paths, its port, its users and the size of the pool.
struct Site<'cluster> {
    cluster: &'cluster Cluster,
    pooler: Pooler<'cluster>,
    port: u16,
}

impl Site<'_> {
    fn new(cluster: &Cluster) -> Site<'_> {
        Site::without(cluster, "")
    }

    /// Without this part of the configuration.
    fn without<'cluster>(cluster: &'cluster Cluster, part: &str) -> Site<'cluster> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let users = Path::new(&cluster.host()).join("userlist.txt");
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("the cluster's directory is writable");
        let example = repository(DIRECTORY).join("pgbouncer.ini");
        let mut ini = std::fs::read_to_string(example).expect("the example is readable");
        assert!(ini.contains(part));
        ini = ini.replace(part, "");
        for (shown, here) in [
            ("pool_size=20", format!("pool_size={SIZE}")),
            ("/run/postgresql", cluster.host()),
            ("port=5432", format!("port={}", cluster.port())),
            ("listen_port = 6432", format!("listen_port = {port}")),
            ("/run/pgbouncer", cluster.host()),
            ("scram-sha-256", "trust".to_owned()),
            ("/etc/pgbouncer/userlist.txt", users.display().to_string()),
        ] {
            assert!(ini.contains(shown), "{shown} is in pgbouncer.ini");
            ini = ini.replace(shown, &here);
        }
        Site { cluster, pooler: Pooler::start_with(cluster, &ini, port, "shop"), port }
    }

    fn client(&self) -> Client {
        self.pooler.client()
    }

    fn renewals(&self) -> Client {
        self.pooler.client_in("shop_renew")
    }

    fn conninfo(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname={database}", self.port)
    }

    /// Python in the directory of the example. It connects to the pool `shop` unless told otherwise.
    fn python(&self) -> Command {
        let mut command = python(self.cluster, "shop", "postgres", DIRECTORY);
        command.env("PGHOST", "127.0.0.1").env("PGPORT", self.port.to_string());
        command
    }

    /// The output of the example in Java, or its errors.
    fn java(&self, options: &str) -> Result<String, String> {
        let url = format!("jdbc:postgresql://127.0.0.1:{}/shop{options}", self.port);
        let mut command = Command::new("java");
        command.args(["-XX:TieredStopAtLevel=1", "-cp", "/usr/share/java/postgresql.jar", "Pooled.java"]);
        let output = command.args([&url, "postgres", "20"]).current_dir(repository(DIRECTORY)).output();
        let output = output.expect("make dev-deps installs Java");
        let [printed, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if output.status.success() { Ok(printed) } else { Err(errors) }
    }
}

#[test]
fn pgbouncer_ids_are_unique_over_a_pool() {
    const CLIENTS: usize = 6;
    const EACH: usize = 200;
    let (cluster, mut direct) = shop();
    execute(&mut direct, "SELECT segment_create('ticket')");
    let site = Site::new(&cluster);
    let draw = |mut client: Client| -> Vec<[i64; 3]> {
        let sql = "SELECT snowflake_next() || ' ' || segment_next('ticket') || ' ' || pg_backend_pid()";
        let mut drawn = || {
            let text = simple_value(&mut client, sql);
            let mut fields = text.split(' ').map(|field| field.parse().expect("a number"));
            [(); 3].map(|()| fields.next().expect("three fields"))
        };
        (0..EACH).map(|_| drawn()).collect()
    };
    let drawn: Vec<[i64; 3]> = thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| draw(site.client()))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client draws")).collect()
    });
    assert_eq!(drawn.len(), CLIENTS * EACH);
    assert_distinct(drawn.iter().map(|[snowflake, ..]| *snowflake).collect());
    assert_distinct(drawn.iter().map(|[_, segment, _]| *segment).collect());
    let sessions: BTreeSet<i64> = drawn.iter().map(|[.., session]| *session).collect();
    assert_eq!(sessions.len(), SIZE, "the clients share all sessions");
}

#[test]
fn pgbouncer_transaction_locks_exclude_each_other() {
    const CLIENTS: usize = 6;
    const EACH: usize = 50;
    let (cluster, mut direct) = shop();
    execute(&mut direct, "CREATE TABLE counter (n bigint NOT NULL); INSERT INTO counter VALUES (0)");
    let site = Site::new(&cluster);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = site.client();
                for _ in 0..EACH {
                    simple_value(&mut client, "BEGIN; SELECT lock_acquire_xact('counter')");
                    let n = simple_value(&mut client, "SELECT n + 1 FROM counter");
                    simple_value(&mut client, &format!("UPDATE counter SET n = {n}; COMMIT"));
                }
            });
        }
    });
    assert_eq!(value::<i64>(&mut direct, "SELECT n FROM counter"), (CLIENTS * EACH) as i64);
    assert_eq!(value::<i64>(&mut direct, "SELECT count(*) FROM idgen.locks"), 0);
}

#[test]
fn pgbouncer_strands_a_session_lock() {
    let (cluster, mut direct) = shop();
    let site = Site::new(&cluster);
    let (mut owner, mut other) = (site.client(), site.client());
    assert_eq!(simple_value(&mut owner, "SELECT lock_try_acquire('job')"), "t");
    let first = simple_value(&mut owner, "SELECT pg_backend_pid()");
    // The other client comes upon the session of the lock, and stays there.
    simple_value(&mut other, "BEGIN");
    assert_eq!(simple_value(&mut other, "SELECT pg_backend_pid()"), first);
    assert_eq!(
        simple_value(&mut other, "SELECT lock_try_acquire('job')"),
        "t",
        "two clients believe that they hold it"
    );
    assert_ne!(simple_value(&mut owner, "SELECT pg_backend_pid()"), first);
    assert_eq!(simple_value(&mut owner, "SELECT lock_release('job')"), "f");
    assert_eq!(simple_value(&mut owner, "SELECT lock_try_acquire('job')"), "f", "its owner is refused");
    simple_value(&mut other, "COMMIT");
    drop((owner, other));
    let holder = "SELECT pid::text FROM idgen.locks WHERE name = 'job' AND granted";
    assert_eq!(value::<String>(&mut direct, holder), first, "it outlives its clients");
}

#[test]
fn pgbouncer_lease_with_a_ttl_works_in_any_session() {
    let (cluster, mut direct) = shop();
    execute(
        &mut direct,
        "CREATE TABLE work (n int); SELECT lease_define('w', ttl => '1 day');
         CREATE TRIGGER guard BEFORE INSERT ON work FOR EACH ROW EXECUTE FUNCTION lease_guard('w')",
    );
    let site = Site::new(&cluster);
    let (mut holder, mut other) = (site.client(), site.client());
    let acquired = simple_value(&mut holder, "SELECT token || ' ' || pg_backend_pid() FROM lease_acquire('w')");
    let (token, first) = acquired.split_once(' ').expect("a token and a session");
    simple_value(&mut other, "BEGIN; SELECT 1");
    let renewed = format!("SELECT pg_backend_pid() FROM lease_renew('w', {token}) WHERE lease_renew IS NOT NULL");
    assert_ne!(simple_value(&mut holder, &renewed), first, "another session renews");
    let fenced = format!("BEGIN; SELECT lease_fence('w', {token}); INSERT INTO work VALUES (1); COMMIT");
    simple_value(&mut holder, &fenced);
    simple_value(&mut other, "COMMIT");
    let refused = other.simple_query("INSERT INTO work VALUES (2)").expect_err("the fence ended with its transaction");
    assert_eq!(refused.code().expect("an error of the server").code(), "55000");
    assert_eq!(simple_value(&mut other, "SELECT count(*) FROM lease_try_acquire('w')"), "0");
    assert_eq!(simple_value(&mut holder, &format!("SELECT lease_release('w', {token})")), "t");
    assert_eq!(column::<i32>(&mut direct, "SELECT n FROM work"), [1]);
}

#[test]
fn pgbouncer_bound_lease_outlives_its_client() {
    let (cluster, mut direct) = shop();
    let site = Site::new(&cluster);
    let mut client = site.client();
    simple_value(&mut client, "SELECT token FROM lease_acquire('b', bind_session => true)");
    drop(client);
    assert_eq!(simple_value(&mut site.client(), "SELECT count(*) FROM lease_try_acquire('b')"), "0");
    let state = "SELECT state FROM idgen.leases WHERE name = 'b'";
    assert_eq!(value::<String>(&mut direct, state), "held");
    drop(site);
    cluster.wait_for(PATIENCE, "the pooler's sessions to end", || value::<String>(&mut direct, state) == "expired");
}

/// Clients that wait for the lease until they fill the pool.
fn fill_with_waiters<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    site: &'scope Site,
) -> Vec<thread::ScopedJoinHandle<'scope, String>> {
    let wait = || simple_value(&mut site.client(), "SELECT token FROM lease_acquire('w', '1 day')");
    let waiters = (0..SIZE).map(|_| scope.spawn(wait)).collect();
    let mut direct = site.cluster.client_in("shop");
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE state = 'active' AND wait_event_type IN ('Extension', 'Lock') AND query LIKE '%lease_acquire(%'
                     AND pid <> pg_backend_pid()";
    site.cluster
        .wait_for(PATIENCE, "the waiters to fill the pool", || value::<i64>(&mut direct, waiting) == SIZE as i64);
    waiters
}

#[test]
fn pgbouncer_renewal_waits_behind_the_waiters_of_its_own_pool() {
    let (cluster, mut direct) = shop();
    let site = Site::new(&cluster);
    let mut holder = site.client();
    let token = simple_value(&mut holder, "SELECT token FROM lease_acquire('w', '1 day')");
    thread::scope(|scope| {
        let waiters = fill_with_waiters(scope, &site);
        execute(&mut direct, &format!("SELECT lease_renew('w', {token}, '2 s')"));
        // It gets no session before one of the waiters has got the lease, when that has ended.
        let error = holder.simple_query(&format!("SELECT lease_renew('w', {token})")).expect_err("the lease is lost");
        assert_eq!(error.code().expect("an error of the server").code(), "55000", "{error:?}");
        revoke_until_all_have_it(&mut direct, waiters);
    });
}

#[test]
fn pgbouncer_renewal_over_a_pool_of_its_own_keeps_the_lease() {
    let (cluster, mut direct) = shop();
    let site = Site::new(&cluster);
    let token = simple_value(&mut site.client(), "SELECT token FROM lease_acquire('w', '1 hour')");
    thread::scope(|scope| {
        let waiters = fill_with_waiters(scope, &site);
        let renew = format!("SELECT lease_renew('w', {token}, '1 day') > now() + interval '23 h'");
        assert_eq!(simple_value(&mut site.renewals(), &renew), "t");
        let held = "SELECT token::text FROM idgen.leases WHERE state = 'held'";
        assert_eq!(value::<String>(&mut direct, held), token);
        assert_eq!(simple_value(&mut site.renewals(), &format!("SELECT lease_release('w', {token})")), "t");
        revoke_until_all_have_it(&mut direct, waiters);
    });
}

/// Takes the lease from each waiter that got it, so that the next one ends.
fn revoke_until_all_have_it(direct: &mut Client, waiters: Vec<thread::ScopedJoinHandle<String>>) {
    let mut tokens = BTreeSet::new();
    let mut waiters: Vec<_> = waiters.into_iter().collect();
    while !waiters.is_empty() {
        let (ended, waiting): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|waiter| waiter.is_finished());
        for waiter in ended {
            tokens.insert(waiter.join().expect("a waiter gets the lease"));
            execute(direct, "SELECT lease_revoke('w')");
        }
        waiters = waiting;
        thread::yield_now();
    }
    assert_eq!(tokens.len(), SIZE);
}

#[test]
fn pgbouncer_jobs_of_the_example_lose_no_step() {
    const JOBS: usize = 5;
    const STEPS: usize = 40;
    let (cluster, mut direct) = shop();
    execute(&mut direct, "CREATE TABLE counter (n bigint NOT NULL); INSERT INTO counter VALUES (0)");
    let site = Site::new(&cluster);
    thread::scope(|scope| {
        for _ in 0..JOBS {
            let mut job = site.python();
            job.arg("job.py").args(["shop", "shop_renew"].map(|database| site.conninfo(database)));
            job.args(["counter", "10", &STEPS.to_string()]);
            scope.spawn(move || run(&mut job));
        }
    });
    assert_eq!(value::<i64>(&mut direct, "SELECT n FROM counter"), (JOBS * STEPS) as i64);
    assert!(take_if_free(&mut direct, "counter").is_some(), "the last job has released it");
}

#[test]
fn pgbouncer_clients_must_not_prepare_statements() {
    let (cluster, _direct) = shop();
    let site = Site::new(&cluster);
    // Two connections, each of which prepares after five executions, in the same session.
    let psycopg = |options: &str| {
        format!(
            "import psycopg
for _ in range(2):
    with psycopg.connect(autocommit=True{options}) as connection:
        for _ in range(10):
            connection.execute('SELECT snowflake_next()')"
        )
    };
    let sqlalchemy = |options: &str| {
        format!(
            "from sqlalchemy import NullPool, create_engine, text
engine = create_engine('postgresql+psycopg://', poolclass=NullPool{options})
for _ in range(2):
    with engine.connect() as connection:
        for _ in range(10):
            connection.execute(text('SELECT snowflake_next()'))
            connection.commit()"
        )
    };
    let fails = |code: String, message: &str| {
        let output = site.python().args(["-c", &code]).output().expect("Python runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(message), "{errors}");
    };
    fails(psycopg(""), "prepared statement \"_pg3_0\" already exists");
    run(site.python().args(["-c", &psycopg(", prepare_threshold=None")]));
    fails(sqlalchemy(""), "prepared statement \"_pg3_0\" already exists");
    run(site.python().args(["-c", &sqlalchemy(", connect_args={'prepare_threshold': None}")]));

    let ids = site.java("?prepareThreshold=0").expect("the ids");
    let ids: Vec<i64> = ids.lines().map(|id| id.parse().expect("an id")).collect();
    assert_eq!(ids.len(), 60);
    assert_distinct(ids);
    let error = site.java("").expect_err("it prepares statements");
    assert!(error.contains("prepared statement \"S_1\" already exists"), "{error}");
}

#[test]
fn pgbouncer_refuses_jdbc_and_options_unless_told_to_ignore_parameters() {
    let (cluster, _direct) = shop();
    let site = Site::without(&cluster, "ignore_startup_parameters = extra_float_digits");
    let error = site.java("?prepareThreshold=0").expect_err("a parameter is not known");
    assert!(error.contains("unsupported startup parameter: extra_float_digits"), "{error}");
    let code = "import psycopg; psycopg.connect(options='-c idgen.segment_timeout=1s')";
    let output = site.python().args(["-c", code]).output().expect("Python runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("unsupported startup parameter"), "{errors}");
}

#[test]
fn pgbouncer_needs_django_without_server_side_cursors() {
    let (cluster, mut direct) = shop();
    let site = Site::new(&cluster);
    let project = "examples/django";
    run(python(&cluster, "shop", "postgres", project).args(["manage.py", "migrate"]));
    execute(&mut direct, "INSERT INTO shop_customer (name) SELECT 'a' FROM generate_series(1, 10)");
    let code = |disable: &str| {
        format!(
            "import os, django, psycopg
os.environ['DJANGO_SETTINGS_MODULE'] = 'settings'
import settings
settings.DATABASES['default']['DISABLE_SERVER_SIDE_CURSORS'] = {disable}
django.setup()
from django.db import connection
from shop.models import Customer
for _ in range(2):
    for _ in range(10):
        Customer.objects.create(name='b')
    connection.close()
rows = Customer.objects.iterator(chunk_size=1)
next(rows)
with psycopg.connect(prepare_threshold=None) as other:
    other.execute('SELECT 1')
    print(len(list(rows)))"
        )
    };
    let iterate = |disable: &str| {
        let mut command = site.python();
        let output = command.current_dir(repository(project)).args(["-c", &code(disable)]).output();
        let output = output.expect("Python runs");
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned())
    };
    let [_, errors] = iterate("False");
    assert!(errors.contains("cursor \"_django_curs_") && errors.contains("does not exist"), "{errors}");
    let [printed, errors] = iterate("True");
    // 10, and 20 of each run: Django prepares no statements by default.
    assert_eq!(printed.trim_end(), "49", "{errors}");
}

#[test]
fn pgbouncer_worker_ids_need_no_session() {
    let (cluster, mut direct) = shop();
    execute(&mut direct, "SELECT worker_pool_define('ids', count => 4)");
    let site = Site::new(&cluster);
    let (mut holder, mut other) = (site.client(), site.client());
    let acquired = simple_value(&mut holder, "SELECT token || '|' || not_after FROM worker_acquire('ids')");
    let (token, not_after) = acquired.split_once('|').expect("a token and an end");
    simple_value(&mut other, "BEGIN; SELECT 1");
    let renew =
        format!("SELECT not_after >= '{not_after}' FROM worker_renew('ids', {token}, timestamptz '{not_after}')");
    assert_eq!(simple_value(&mut holder, &renew), "t", "another session renews");
    assert_eq!(simple_value(&mut holder, &format!("SELECT worker_release('ids', {token})")), "t");
}

#[test]
fn pgbouncer_passes_settings_of_a_session_to_other_clients() {
    let (cluster, mut direct) = shop();
    let site = Site::new(&cluster);
    simple_value(&mut site.client(), "SET idgen.segment_timeout = '1234 ms'");
    assert_eq!(simple_value(&mut site.client(), "SHOW idgen.segment_timeout"), "1234ms");
    simple_value(&mut site.client(), "BEGIN; SET LOCAL idgen.segment_timeout = '2345 ms'; COMMIT");
    assert_eq!(simple_value(&mut site.client(), "SHOW idgen.segment_timeout"), "1234ms");
    // A setting of the role is that of new connections.
    execute(&mut direct, "ALTER ROLE postgres SET idgen.segment_timeout = '3456 ms'");
    assert_eq!(simple_value(&mut site.renewals(), "SHOW idgen.segment_timeout"), "3456ms");
}

/// A function that is added must be placed there.
#[test]
fn pgbouncer_guide_names_every_function() {
    let (_cluster, mut direct) = shop();
    let guide = std::fs::read_to_string(repository("docs/guides/pgbouncer.md")).expect("the guide is readable");
    let rows =
        guide.lines().skip_while(|line| !line.starts_with("| functions |")).take_while(|line| line.starts_with('|'));
    let cells: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).collect();
    // Every other part is in backticks. `lease_...` stands for a family.
    let named: Vec<&str> = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let is_named = |function: &String| {
        named.iter().any(|name| match name.strip_suffix("...") {
            Some(family) => function.starts_with(family),
            None => function == name,
        })
    };
    let functions: Vec<String> = column(
        &mut direct,
        "SELECT DISTINCT proname::text FROM pg_depend JOIN pg_proc ON pg_proc.oid = objid
         WHERE classid = 'pg_proc'::regclass AND deptype = 'e' AND pronamespace = 'public'::regnamespace
           AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idgen')",
    );
    assert!(functions.len() > 30, "{functions:?}");
    let missing: Vec<&String> = functions.iter().filter(|function| !is_named(function)).collect();
    assert!(missing.is_empty(), "{missing:?} not in the table of {cells:?}");
}
