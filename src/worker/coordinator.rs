//! What is asked of the coordinator, as SQL.

use super::libpq::{Connection, Patience, Resolver, Trouble};
use super::state::Term;
use idgen_core::worker::Interval;
use std::ffi::{CStr, CString};
use std::str::FromStr;
use std::time::Duration;

/// What was granted.
pub struct Grant {
    pub term: Term,
    pub ttl: Duration,
}

/// How long a lease lasts that was renewed.
pub struct Renewal {
    pub not_after_us: i64,
    pub ttl: Duration,
}

/// Which database it is, over all servers: elsewhere a token means nothing, or another's term. Copies of it are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    system_identifier: u64,
    database: u32,
}

/// A database that has been asked who it is.
pub struct Coordinator {
    connection: Connection,
    patience: Patience,
    pub identity: Identity,
    /// Where the functions of idgen are, as SQL.
    schema: String,
}

/// Also bounds what is done there: nothing is granted that nobody waits for any more.
const WHO: &CStr = c"SELECT control.system_identifier, database.oid, pg_catalog.quote_ident(space.nspname), \
    pg_catalog.set_config('statement_timeout', $1, false) \
    FROM pg_catalog.pg_control_system() AS control \
    JOIN pg_catalog.pg_database AS database ON database.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() \
    LEFT JOIN pg_catalog.pg_extension AS extension ON extension.extname OPERATOR(pg_catalog.=) 'idgen' \
    LEFT JOIN pg_catalog.pg_namespace AS space ON space.oid OPERATOR(pg_catalog.=) extension.extnamespace";

/// How long leases of the pool $1 last.
const TTL: &str = "(SELECT ttl FROM idgen.lease_definition WHERE name OPERATOR(pg_catalog.=) $1)";

/// A time in microseconds since 1970, or an interval in microseconds.
fn micros(time: &str) -> String {
    format!("(EXTRACT(epoch FROM {time}) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8")
}

/// So many microseconds.
fn interval(us: &str) -> String {
    format!("({us} OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval)")
}

/// How long the lease is to last: from the server's time $3 on, where that is ahead of the clock here, but no longer and no
/// shorter than a lease may. (Without preload these limits are not known before the first call.)
fn ttl_from_reached() -> String {
    let ahead = format!("$3::pg_catalog.int8 OPERATOR(pg_catalog.-) {}", micros("pg_catalog.clock_timestamp()"));
    // A century: what an interval has room for.
    let ahead = interval(&format!("LEAST(GREATEST({ahead}, 0), 3155760000000000)"));
    let limit = |name| format!("pg_catalog.current_setting('idgen.lease_{name}_ttl', true)::pg_catalog.interval");
    format!("GREATEST(LEAST({TTL} OPERATOR(pg_catalog.+) {ahead}, {}), {})", limit("max"), limit("min"))
}

/// What a token is answered with that stands for no term any more, or for that of another role.
const LOST: [&str; 2] = ["55000", "42501"];

impl Coordinator {
    pub fn connect(conninfo: &CStr, resolver: &mut Resolver, turn: usize, patience: Patience) -> Result<Self, Trouble> {
        let mut connection = Connection::open(conninfo, resolver, turn, patience)?;
        let row = connection.query(WHO, &[&patience.time.as_millis().to_string()], patience)?;
        let Some(Some(schema)) = row.get(2).cloned() else {
            return Err(Trouble::new(format!("{}: the database has no extension idgen", connection.host())));
        };
        let identity = Identity { system_identifier: number(&row, 0)?, database: number(&row, 1)? };
        Ok(Self { identity, connection, patience, schema })
    }

    /// Host and port.
    pub fn host(&self) -> String {
        self.connection.host()
    }

    /// A number for as long as the pool's leases last, from the time on that the server has reached. It is not bound to the
    /// session, so that a connection that is lost, or a coordinator that starts again, costs no number.
    ///
    /// Where the commit waits for a synchronous standby, nothing ends that wait: neither a limit of time nor the end of the
    /// connection. The lock, which lasts as long, keeps the next try from taking one more number, and one more session.
    pub fn acquire(&mut self, pool: &str, owner: &str, reached_ms: i64) -> Result<Grant, Trouble> {
        let (from, until, ttl) = (micros("granted.not_before"), micros("granted.not_after"), micros(TTL));
        let (schema, lasts) = (&self.schema, ttl_from_reached());
        let sql = format!(
            "WITH turn AS MATERIALIZED (SELECT 1 AS came FROM {schema}.lock_acquire_xact(\
                 'idgen keeper ' OPERATOR(pg_catalog.||) pg_catalog.md5($1 OPERATOR(pg_catalog.||) $2))) \
             SELECT granted.worker_id, granted.token, {from}, {until}, {ttl} \
             FROM turn, LATERAL {schema}.worker_acquire($1, $2, CASE turn.came WHEN 1 THEN {lasts} END) AS granted"
        );
        let row = self.query(&sql, &[pool, owner, &micros_of(reached_ms)])?;
        Ok(Grant {
            term: Term {
                number: number(&row, 0)?,
                token: number(&row, 1)?,
                coordinator: self.identity,
                interval: Interval { not_before_us: number(&row, 2)?, not_after_us: number(&row, 3)? },
            },
            ttl: Duration::from_micros(number(&row, 4)?),
        })
    }

    /// The same for a number that is held; `None` if the lease is lost: it has ended, and others may have the number.
    pub fn renew(&mut self, pool: &str, token: i64, reached_ms: i64) -> Result<Option<Renewal>, Trouble> {
        let (until, ttl, schema, lasts) = (micros("renewed.not_after"), micros(TTL), &self.schema, ttl_from_reached());
        let sql =
            format!("SELECT {until}, {ttl} FROM {schema}.worker_renew($1, $2::pg_catalog.int8, {lasts}) AS renewed");
        match self.query(&sql, &[pool, &token.to_string(), &micros_of(reached_ms)]) {
            Ok(row) => {
                Ok(Some(Renewal { not_after_us: number(&row, 0)?, ttl: Duration::from_micros(number(&row, 1)?) }))
            }
            Err(trouble) if trouble.sqlstate.as_deref().is_some_and(|sqlstate| LOST.contains(&sqlstate)) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Gives the number back, with the last microsecond since 1970 that was used.
    pub fn release(&mut self, pool: &str, token: i64, last_us: i64) -> Result<(), Trouble> {
        let last = interval("$3::pg_catalog.int8");
        let sql = format!(
            "SELECT {}.worker_release($1, $2::pg_catalog.int8, 'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) {last})",
            self.schema
        );
        self.query(&sql, &[pool, &token.to_string(), &last_us.to_string()]).map(|_| ())
    }

    fn query(&mut self, sql: &str, params: &[&str]) -> Result<Vec<Option<String>>, Trouble> {
        let sql = CString::new(sql).expect("a query of ours has no NUL");
        self.connection.query(&sql, params, self.patience)
    }
}

/// As $3 is written.
fn micros_of(ms: i64) -> String {
    ms.saturating_mul(1000).to_string()
}

/// A column of a row that was asked for.
fn number<N: FromStr>(row: &[Option<String>], column: usize) -> Result<N, Trouble> {
    let text = row.get(column).cloned().flatten().unwrap_or_default();
    text.parse().map_err(|_| Trouble::new(format!("not a number that idgen gives: \"{text}\"")))
}
