//! What must hold over the whole run: ids and values rise, and the server works.

use std::collections::BTreeMap;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{check, execute, row, value};
use postgres::types::FromSqlOwned;
use postgres::{Client, Row};

use crate::call::Series;
use crate::session::Rows;
use crate::values::{BUSY, KEPT, Known};

/// What the log of a server with `log_error_verbosity = verbose` must not have: errors of the classes XX and 58, from any
/// process, and crashes.
const BAD_LINES: [&str; 7] =
    [":  XX", ":  58", "panicked", "PANIC", "TRAP:", "was terminated by signal", "server process exited"];

/// A query that draws a value of each series, as text.
fn draws() -> String {
    format!("SELECT snowflake_next()::text, segment_next('{KEPT}')::text, uuidv7_next()::text")
}

/// A session that draws between the calls, holds a lock and a lease, and reads what calls may pass.
pub struct Observer {
    client: Client,
    last_id: u128,
    last_uuid: u128,
    last_kept: u128,
}

/// A value as a number that rises with its series.
fn number(series: Series, text: &str) -> u128 {
    let number = match series {
        Series::Ids | Series::Kept => text.parse(),
        Series::Uuids => u128::from_str_radix(&text.replace('-', ""), 16),
    };
    number.unwrap_or_else(|error| panic!("{text}: {error}"))
}

impl Observer {
    pub fn new(cluster: &Cluster) -> Observer {
        let mut client = cluster.client();
        execute(&mut client, &format!("SELECT lock_acquire('{BUSY}')"));
        Observer { client, last_id: 0, last_uuid: 0, last_kept: 0 }
    }

    /// Checks what a call has drawn.
    pub fn drawn(&mut self, series: Series, rows: &Rows) {
        for row in rows {
            // A statement that draws nothing has no least value.
            let values: Vec<&String> = row.iter().flatten().collect();
            if let (Some(first), Some(last)) = (values.first(), values.last()) {
                self.rises(series, first, last);
            }
        }
    }

    /// Draws in a session, whose next call must work.
    pub fn draw_in(&mut self, client: &mut Client) {
        let row = row(client, &draws());
        self.drawn_in(&row);
    }

    /// Draws, restores what calls have dropped or released, and reads what the next call may pass.
    pub fn observe(&mut self, known: &mut Known) {
        self.restore(known);
        let sql = format!("{}, count(*) FROM lease_try_acquire('{BUSY}', ttl => '1 day')", draws());
        let row = row(&mut self.client, &sql);
        self.drawn_in(&row);
        known.last_id = row.get::<_, String>(0).parse().expect("a bigint");
        let leases = format!("SELECT name, token, slot FROM idgen.lease WHERE depth > 0 AND name <> '{BUSY}'");
        let workers = "SELECT pool, token, worker_id FROM idgen.worker_id WHERE token IS NOT NULL";
        let tokens = format!("{leases} UNION ALL {workers} ORDER BY 3");
        known.tokens = self.pairs(&tokens);
        known.not_after =
            self.pairs("SELECT pool, not_after::text FROM idgen.worker_id WHERE token IS NOT NULL ORDER BY worker_id");
    }

    fn restore(&mut self, known: &Known) {
        let missing = "NOT EXISTS (SELECT FROM idgen.segment WHERE tag = 'live')";
        execute(&mut self.client, &format!("SELECT segment_create('live', step => 5) WHERE {missing}"));
        let missing = "NOT EXISTS (SELECT FROM idgen.public_key WHERE prefix = 'live')";
        execute(&mut self.client, &format!("SELECT public_id_define('live', 'long') WHERE {missing}"));
        for (pool, first) in [("pool", 0), ("pool 2", 10)] {
            let missing = format!("NOT EXISTS (SELECT FROM idgen.worker_pool WHERE name = '{pool}')");
            execute(&mut self.client, &format!("SELECT worker_pool_define('{pool}', {first}, 4) WHERE {missing}"));
        }
        for (name, acquire) in [
            ("lease", "lease_try_acquire('lease', ttl => '10 min')"),
            ("pool", "worker_acquire('pool', ttl => '30 s')"),
        ] {
            if !known.tokens.contains_key(name) {
                // A call may have changed the definition or the history so that none is free.
                let _ = self.client.simple_query(&format!("SELECT * FROM {acquire}"));
            }
        }
    }

    fn pairs<T: FromSqlOwned>(&mut self, sql: &str) -> BTreeMap<String, T> {
        let rows = self.client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// The checks after the last call.
    pub fn finish(mut self, cluster: &Cluster) {
        for name in ["preloaded", "versions", "mark"] {
            let (ok, message) = check(&mut self.client, name);
            assert!(ok, "{name}: {message}");
        }
        let held =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid IS DISTINCT FROM pg_backend_pid()";
        assert_eq!(value::<i64>(&mut self.client, held), 0, "advisory locks of other sessions");
        let log = cluster.log();
        let bad = log.lines().find(|line| BAD_LINES.iter().any(|bad| line.contains(bad)));
        assert_eq!(bad, None);
    }

    /// Checks the row of [`draws`].
    fn drawn_in(&mut self, row: &Row) {
        for (column, series) in [Series::Ids, Series::Kept, Series::Uuids].into_iter().enumerate() {
            let drawn: String = row.get(column);
            self.rises(series, &drawn, &drawn);
        }
    }

    fn rises(&mut self, series: Series, first: &str, last: &str) {
        let (first, last) = (number(series, first), number(series, last));
        let before = match series {
            Series::Ids => &mut self.last_id,
            Series::Uuids => &mut self.last_uuid,
            Series::Kept => &mut self.last_kept,
        };
        assert!(*before < first && first <= last, "{first} to {last} after {before}");
        *before = last;
    }
}
