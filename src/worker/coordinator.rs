//! What is asked of the coordinator, as SQL.

use super::libpq::{Connection, Hosts, Trouble};
use super::state::Term;
use idgen_core::worker::Interval;
use std::ffi::{CStr, CString};
use std::str::FromStr;
use std::time::Duration;

/// What was granted.
pub struct Grant {
    pub term: Term,
    pub interval: Interval,
    pub ttl: Duration,
}

/// A database that has been asked who it is.
pub struct Coordinator {
    connection: Connection,
    patience: Duration,
    pub system_identifier: u64,
    /// Where the functions of idgen are, as SQL.
    schema: String,
}

/// Also bounds what is done there: nothing is granted that nobody waits for any more.
const WHO: &CStr = c"SELECT control.system_identifier::text, pg_catalog.quote_ident(space.nspname), \
    pg_catalog.set_config('statement_timeout', $1, false) \
    FROM pg_catalog.pg_control_system() AS control \
    LEFT JOIN pg_catalog.pg_extension AS extension ON extension.extname OPERATOR(pg_catalog.=) 'idgen' \
    LEFT JOIN pg_catalog.pg_namespace AS space ON space.oid OPERATOR(pg_catalog.=) extension.extnamespace";

/// A time in microseconds since 1970.
fn micros(time: &str) -> String {
    format!("(EXTRACT(epoch FROM {time}) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8")
}

/// What a token that stands for no term any more is answered with.
const STALE: &str = "55000";

/// How long to wait when a number is given back, which may be while this server stops.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

impl Coordinator {
    pub fn connect(conninfo: &CStr, hosts: &mut Hosts, turn: usize, patience: Duration) -> Result<Self, Trouble> {
        let mut connection = Connection::open(conninfo, hosts, turn, patience)?;
        let row = connection.query(WHO, &[&patience.as_millis().to_string()], patience)?;
        let Some(Some(schema)) = row.get(1).cloned() else {
            return Err(Trouble::new(format!("{}: the database has no extension idgen", connection.host())));
        };
        Ok(Self { system_identifier: number(&row, 0)?, connection, patience, schema })
    }

    /// How long an answer is waited for from now on, and worked on there.
    pub fn set_patience(&mut self, patience: Duration) -> Result<(), Trouble> {
        let sql = "SELECT pg_catalog.set_config('statement_timeout', $1, false)";
        self.query(sql, &[&patience.as_millis().to_string()])?;
        self.patience = patience;
        Ok(())
    }

    /// Host and port.
    pub fn host(&self) -> String {
        self.connection.host()
    }

    /// A number for as long as the pool's leases last. It is not bound to the session, so that a connection that is lost, or a
    /// coordinator that starts again, costs no number.
    pub fn acquire(&mut self, pool: &str, owner: &str) -> Result<Grant, Trouble> {
        let (from, until) = (micros("granted.not_before"), micros("granted.not_after"));
        let ttl = "SELECT ttl FROM idgen.lease_definition WHERE name OPERATOR(pg_catalog.=) $1";
        let row = self.query(
            &format!(
                "SELECT granted.worker_id, granted.token, {from}, {until}, {} FROM {}.worker_acquire($1, $2, ({ttl})) AS granted",
                micros(&format!("({ttl})")),
                self.schema
            ),
            &[pool, owner],
        )?;
        Ok(Grant {
            term: Term { number: number(&row, 0)?, token: number(&row, 1)?, coordinator: self.system_identifier },
            interval: Interval { not_before_us: number(&row, 2)?, not_after_us: number(&row, 3)? },
            ttl: Duration::from_micros(number(&row, 4)?),
        })
    }

    /// Where the times of the number end now; `None` if the lease is lost: it has ended, and others may have the number.
    pub fn renew(&mut self, pool: &str, token: i64) -> Result<Option<i64>, Trouble> {
        let until = micros("renewed.not_after");
        let sql = format!("SELECT {until} FROM {}.worker_renew($1, $2::pg_catalog.int8) AS renewed", self.schema);
        match self.query(&sql, &[pool, &token.to_string()]) {
            Ok(row) => number(&row, 0).map(Some),
            Err(trouble) if trouble.sqlstate.as_deref() == Some(STALE) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Gives the number back, with the last microsecond since 1970 that was used.
    pub fn release(&mut self, pool: &str, token: i64, last_us: i64) -> Result<(), Trouble> {
        self.patience = LAST_PATIENCE;
        let last = "'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) \
                    ($3::pg_catalog.int8 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval)";
        let sql = format!("SELECT {}.worker_release($1, $2::pg_catalog.int8, {last})", self.schema);
        self.query(&sql, &[pool, &token.to_string(), &last_us.to_string()]).map(|_| ())
    }

    fn query(&mut self, sql: &str, params: &[&str]) -> Result<Vec<Option<String>>, Trouble> {
        let sql = CString::new(sql).expect("a query of ours has no NUL");
        self.connection.query(&sql, params, self.patience)
    }
}

/// A column of a row that was asked for.
fn number<N: FromStr>(row: &[Option<String>], column: usize) -> Result<N, Trouble> {
    let text = row.get(column).cloned().flatten().unwrap_or_default();
    text.parse().map_err(|_| Trouble::new(format!("not a number that idgen gives: \"{text}\"")))
}
