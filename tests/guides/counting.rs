//! A server that counts statements, for the guides on drivers and frameworks.

use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Cluster, Proxy};
use postgres::Client;

use crate::page;

/// A server that counts statements in each database with the extension pg_stat_statements.
pub fn counting_cluster() -> Cluster {
    Cluster::builder().conf("shared_preload_libraries", "idgen,pg_stat_statements").conf("fsync", "off").start()
}

/// Such a server without idgen in its database, and a TCP port, because not all drivers support sockets.
pub struct Counting {
    proxy: Proxy,
    client: Client,
    _cluster: Cluster,
}

impl Counting {
    pub fn start() -> Counting {
        let cluster = counting_cluster();
        cluster.execute("CREATE EXTENSION pg_stat_statements");
        let proxy = Proxy::on_tcp(&cluster);
        Counting { client: cluster.client(), proxy, _cluster: cluster }
    }

    /// A server with what the first SQL block of a guide creates.
    pub fn with_tables_of(guide: &str) -> Counting {
        let mut server = Counting::start();
        let blocks = page::sql_blocks(guide);
        execute(&mut server.client, "CREATE EXTENSION IF NOT EXISTS idgen");
        execute(&mut server.client, &blocks[0]);
        server
    }

    /// `user@host:port/database`, for a URL of any driver.
    pub fn address(&self) -> String {
        format!("{}:{}/postgres", self.proxy.host(), self.proxy.port())
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@{}", self.address())
    }

    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    pub fn forget_statements(&mut self) {
        execute(&mut self.client, "SELECT pg_stat_statements_reset()");
    }

    /// How many statements began like this, in upper or lower case, since [`Counting::forget_statements`].
    pub fn calls(&mut self, beginning: &str) -> i64 {
        let sql = format!(
            "SELECT COALESCE(sum(calls), 0)::bigint FROM pg_stat_statements WHERE starts_with(lower(query), lower('{beginning}'))"
        );
        value(&mut self.client, &sql)
    }

    /// The number of statements that drew ids in bulk, and of those that inserted.
    pub fn draws_and_inserts(&mut self) -> (i64, i64) {
        let draws = self.calls("SELECT id FROM snowflake_next_many(");
        (draws, self.calls("INSERT INTO"))
    }
}

/// The ids that a program printed, one a line.
pub fn printed_ids(output: &str) -> Vec<i64> {
    output.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("an id, not {line:?}"))).collect()
}
