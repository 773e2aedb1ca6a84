//! PgBouncer in transaction mode in front of a cluster: each transaction of a client can run in another session.

use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use postgres::{Client, NoTls, SimpleQueryMessage};

use crate::cluster::Cluster;
use crate::connect::connect_string;
use crate::programs::chown_to_server;
use crate::sql::PATIENCE;

/// Stopped when dropped.
pub struct Pooler<'cluster> {
    cluster: &'cluster Cluster,
    process: Child,
    port: u16,
    database: String,
}

impl Pooler<'_> {
    /// Starts it with this many server connections. `reset_always` resets a connection after each transaction.
    pub fn start(cluster: &Cluster, connections: usize, reset_always: bool) -> Pooler<'_> {
        let shown = cluster.dir().display();
        let text = format!(
            "[databases]
             postgres = host={shown} port=5432 dbname=postgres user=postgres pool_size={connections}
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
        Pooler::start_with(cluster, &trimmed.join("\n"), 6432, "postgres")
    }

    /// Starts it with this pgbouncer.ini, which has this port, this database, and the cluster's directory for its socket.
    pub fn start_with<'cluster>(cluster: &'cluster Cluster, ini: &str, port: u16, database: &str) -> Pooler<'cluster> {
        let file = cluster.dir().join("pgbouncer.ini");
        std::fs::write(&file, ini).expect("the cluster's directory is writable");
        chown_to_server(&file);
        let mut command = cluster.program("/usr/sbin/pgbouncer");
        let process = command.arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.expect("make dev-deps installs pgbouncer");
        let pooler = Pooler { cluster, process, port, database: database.to_owned() };
        cluster.wait_for(PATIENCE, "pgbouncer to accept connections", || pooler.connect(database).is_ok());
        pooler
    }

    pub fn client(&self) -> Client {
        self.client_in(&self.database)
    }

    pub fn client_in(&self, database: &str) -> Client {
        self.connect(database).unwrap_or_else(|error| panic!("cannot connect to pgbouncer: {error:?}"))
    }

    fn connect(&self, database: &str) -> Result<Client, postgres::Error> {
        Client::connect(&connect_string(&self.cluster.host(), &self.port.to_string(), "postgres", database), NoTls)
    }
}

impl Drop for Pooler<'_> {
    fn drop(&mut self) {
        let pid = i32::try_from(self.process.id()).expect("a process id is an i32");
        // The child is not reaped yet, so its id is not reused.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let _ = self.process.wait();
    }
}

/// The first column of the last row, without prepared statements, which this pooler does not support.
pub fn simple_value(client: &mut Client, sql: &str) -> String {
    let messages = client.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    rows.last().unwrap_or_default().to_owned()
}
