//! Connections to a cluster.

use std::process::Command;
use std::time::Duration;

use postgres::{Client, Config, NoTls};

use crate::cluster::Cluster;
use crate::programs::program_in;

/// Every cluster can have the same port, because the directory of its socket is private.
pub(crate) const PORT: &str = "5432";

impl Cluster {
    /// A session of the superuser in the database postgres.
    pub fn client(&self) -> Client {
        self.client_in("postgres")
    }

    /// A session of the superuser in a database.
    pub fn client_in(&self, database: &str) -> Client {
        self.client_as(database, "postgres")
    }

    pub fn client_as(&self, database: &str, user: &str) -> Client {
        self.connect(database, user).unwrap_or_else(|error| panic!("cannot connect: {error:?}\n{}", self.log_tail()))
    }

    /// As [`Cluster::client`], for a server that may be down.
    pub fn try_client(&self) -> Result<Client, postgres::Error> {
        self.connect("postgres", "postgres")
    }

    /// A connection string for libpq and the postgres crate.
    pub fn connect_string(&self, database: &str, user: &str) -> String {
        connect_string(&self.host(), PORT, user, database)
    }

    /// The connection string of the superuser in the database postgres.
    pub fn conninfo(&self) -> String {
        self.connect_string("postgres", "postgres")
    }

    /// The directory of its socket, for a connection string with several hosts.
    pub fn host(&self) -> String {
        self.dir().to_string_lossy().into_owned()
    }

    pub fn port(&self) -> &'static str {
        PORT
    }

    /// Runs statements as the superuser in the database postgres.
    pub fn execute(&self, sql: &str) {
        self.client().batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}\n{}", self.log_tail()));
    }

    fn connect(&self, database: &str, user: &str) -> Result<Client, postgres::Error> {
        let mut config: Config = self.connect_string(database, user).parse()?;
        config.connect_timeout(Duration::from_secs(60)).connect(NoTls)
    }

    /// One of PostgreSQL's programs, such as psql or pg_dump, set up to connect to this server as the superuser.
    pub fn program(&self, name: &str) -> Command {
        let mut command = program_in(self.bin_dir(), name, self.dir());
        command.env("PGHOST", self.dir()).env("PGPORT", PORT).env("PGUSER", "postgres");
        command
    }
}

pub(crate) fn connect_string(host: &str, port: &str, user: &str, database: &str) -> String {
    let quoted = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
    let [host, user, database] = [host, user, database].map(quoted);
    format!("host='{host}' port={port} user='{user}' dbname='{database}'")
}
