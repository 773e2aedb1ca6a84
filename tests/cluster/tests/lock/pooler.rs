//! PgBouncer in transaction mode: what the client calls its session is another one at every transaction.

use std::os::unix::fs::chown;
use std::process::{Child, Stdio};

use idgen_cluster_tests::Cluster;
use idgen_cluster_tests::sql::{PATIENCE, column, value};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use postgres::{Client, NoTls, SimpleQueryMessage};

use crate::{builder, locks};

/// A PgBouncer of its own before a cluster, with one connection to the server.
struct Pooler<'cluster> {
    cluster: &'cluster Cluster,
    process: Child,
}

impl Pooler<'_> {
    fn start(cluster: &Cluster, reset_always: bool) -> Pooler<'_> {
        let data = cluster.data_dir();
        let dir = data.parent().expect("a data directory has a parent");
        let (file, shown) = (dir.join("pgbouncer.ini"), dir.display());
        let text = format!(
            "[databases]
             postgres = host={shown} port=5432 dbname=postgres user=postgres pool_size=1
             [pgbouncer]
             listen_port = 6432
             unix_socket_dir = {shown}
             auth_type = any
             pool_mode = transaction
             server_reset_query_always = {}
             ",
            u8::from(reset_always)
        );
        let trimmed: Vec<&str> = text.lines().map(str::trim_start).collect();
        std::fs::write(&file, trimmed.join("\n")).expect("the cluster's directory is writable");
        if let Some(user) = User::from_name("postgres").expect("the user database is readable") {
            let _ = chown(&file, Some(user.uid.as_raw()), Some(user.gid.as_raw()));
        }
        let mut command = cluster.program("/usr/sbin/pgbouncer");
        let process = command.arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let pooler = Pooler { cluster, process: process.expect("pgbouncer can be started: make setup installs it") };
        cluster.wait_for(PATIENCE, "pgbouncer to take connections", || pooler.connect().is_ok());
        pooler
    }

    fn connect(&self) -> Result<Client, postgres::Error> {
        let direct = self.cluster.connect_string("postgres", "postgres");
        Client::connect(&direct.replace("port=5432", "port=6432"), NoTls)
    }

    fn client(&self) -> Client {
        self.connect().expect("pgbouncer runs")
    }
}

impl Drop for Pooler<'_> {
    fn drop(&mut self) {
        let pid = i32::try_from(self.process.id()).expect("a process id is an i32");
        // The child is not reaped yet, so the id is its own.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let _ = self.process.wait();
    }
}

/// One transaction, without prepared statements, which this pooler does not know. The first column of the last row.
fn call(client: &mut Client, sql: &str) -> String {
    let messages = client.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    rows.last().unwrap_or_default().to_owned()
}

/// Named locks that anybody has.
fn shown(client: &mut Client) -> Vec<String> {
    column(client, "SELECT name || ' ' || scope FROM idgen.locks WHERE granted ORDER BY name")
}

/// The transaction's locks are the ones for a pooler: they end where the pooler takes the connection away.
fn transactions_locks_exclude_and_end(cluster: &Cluster, pooler: &Pooler) {
    let (mut client, mut direct) = (pooler.client(), cluster.client());
    call(&mut client, "BEGIN; SELECT lock_acquire_xact('x'); SELECT lock_try_acquire_many_xact('{y,z}', '1 s')");
    assert_eq!(shown(&mut direct), ["x transaction", "y transaction", "z transaction"]);
    assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('y')"));
    assert_eq!(call(&mut client, "SELECT lock_release('x')"), "f", "the session does not hold it");
    call(&mut client, "COMMIT");
    assert_eq!(locks(&mut direct), 0);
}

#[test]
fn with_a_reset_after_each_transaction_a_sessions_lock_ends_with_the_transaction() {
    let cluster = builder().start_with_extension();
    let pooler = Pooler::start(&cluster, true);
    transactions_locks_exclude_and_end(&cluster, &pooler);

    let (mut client, mut second, mut direct) = (pooler.client(), pooler.client(), cluster.client());
    for _ in 0..2 {
        call(&mut client, "BEGIN; SELECT lock_acquire('s'), lock_acquire('s')");
        assert_eq!(value::<i32>(&mut direct, "SELECT depth FROM idgen.locks"), 2, "what was reset does not count");
        assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"));
        call(&mut client, "COMMIT");
        cluster.wait_for(PATIENCE, "the pooler to reset the connection", || locks(&mut direct) == 0);
        assert_eq!(shown(&mut direct), [""; 0]);
        assert_eq!(call(&mut client, "SELECT lock_release('s')"), "f");
    }
    // Nobody has it, whatever the client thinks.
    call(&mut second, "BEGIN; SELECT lock_acquire('s')");
    assert_eq!(shown(&mut direct), ["s session"]);
    assert_eq!(call(&mut second, "SELECT lock_release('s')"), "t");
    assert!(value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"));
    call(&mut second, "COMMIT");
    // It comes after the reset: there is one connection.
    call(&mut client, "SELECT 1");
    assert_eq!(shown(&mut direct), ["s session"], "a reset frees what is of its own connection");
}

#[test]
fn without_a_reset_a_sessions_lock_is_everybodys_and_outlives_its_client() {
    let cluster = builder().start_with_extension();
    let pooler = Pooler::start(&cluster, false);
    transactions_locks_exclude_and_end(&cluster, &pooler);

    let (mut client, mut second, mut direct) = (pooler.client(), pooler.client(), cluster.client());
    assert_eq!(call(&mut client, "SELECT lock_try_acquire('s')"), "t");
    assert_eq!(call(&mut second, "SELECT lock_try_acquire('s')"), "t", "both have the server's one session");
    assert_eq!(value::<i32>(&mut direct, "SELECT depth FROM idgen.locks"), 2);
    drop((client, second));
    let mut third = pooler.client();
    assert_eq!(call(&mut third, "SELECT lock_release('s')"), "t", "it was never this client's");
    assert_eq!(shown(&mut direct), ["s session"]);
    assert!(!value::<bool>(&mut direct, "SELECT lock_try_acquire('s')"), "nobody is left who would let go of it");
}
