//! What is asked of the coordinator, as SQL.

use super::keeper::is_stop_requested;
use super::state::Term;
use crate::pg::libpq::{Connection, Patience, Resolver, Trouble};
use crate::settings::Pool;
use idgen_core::worker::Interval;
use idgen_core::worker::memory::Identity;
use std::ffi::{CStr, CString};
use std::str::FromStr;
use std::time::Duration;

/// What was told, which is certain once it is confirmed.
pub struct Told {
    pub not_after_us: i64,
    pub ttl: Duration,
}

/// A connection to a database that has identified itself.
pub struct Coordinator {
    connection: Connection,
    patience: Patience,
    pub identity: Identity,
    /// Where the functions of idgen are, as SQL.
    schema: String,
}

/// Identifies the database, and sets up the session. `statement_timeout` ends a statement whose keeper has stopped waiting. A commit
/// waits for the disk only: nothing would end its wait for a standby, and `worker_confirm()` asks for that.
const IDENTIFY: &CStr = c"SELECT control.system_identifier, database.oid, pg_catalog.quote_ident(space.nspname), \
    pg_catalog.set_config('statement_timeout', $1, false), pg_catalog.set_config('synchronous_commit', 'local', false), \
    pg_catalog.set_config('default_transaction_isolation', 'read committed', false) \
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

/// The time that is so many microseconds since 1970.
fn time(us: &str) -> String {
    format!(
        "('epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) \
          ({us}::pg_catalog.int8 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval))"
    )
}

/// What a token is answered with that stands for no term any more, for that of another role, or for one that another process
/// has renewed.
const LOST: [&str; 2] = ["55000", "42501"];

/// Is this how a coordinator says that a term is lost?
pub fn is_loss(trouble: &Trouble) -> bool {
    trouble.sqlstate.as_deref().is_some_and(|sqlstate| LOST.contains(&sqlstate))
}

impl Coordinator {
    pub fn connect(pool: &Pool, resolver: &mut Resolver, turn: usize, patience: Patience) -> Result<Self, Trouble> {
        if pool.coordinator.is_empty() {
            return Err(Trouble::new("idgen.coordinator is not set"));
        }
        let mut connection = Connection::open(&pool.coordinator, c"idgen keeper", resolver, turn, patience)?;
        let row = connection.query(IDENTIFY, &[&patience.time.as_millis().to_string()], patience)?;
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

    /// A worker id for as long as the pool's leases last, from the time on that the server has reached; this one, if it is free.
    /// It is not bound to the session, so that a connection that is lost, or a coordinator that starts again, costs no worker id.
    pub fn acquire(
        &mut self,
        pool: &str,
        owner: &str,
        reached_ms: i64,
        prefer: Option<u32>,
    ) -> Result<(Term, Duration), Trouble> {
        let (from, until, ttl) = (micros("granted.not_before"), micros("granted.not_after"), micros(TTL));
        let (schema, reached) = (&self.schema, time("$3"));
        let sql = format!(
            "SELECT granted.worker_id, granted.token, {from}, {until}, {ttl} \
             FROM {schema}.worker_acquire($1, $2, {TTL}, {reached}, NULLIF($4, '')::pg_catalog.int4) AS granted"
        );
        let prefer = prefer.map(|worker| worker.to_string()).unwrap_or_default();
        let row = self.change(&sql, &[pool, owner, &micros_of(reached_ms), &prefer])?;
        let (not_before_us, told_us) = (number(&row, 2)?, number(&row, 3)?);
        let term = Term {
            number: number(&row, 0)?,
            token: number(&row, 1)?,
            coordinator: self.identity,
            // Nothing is certain yet.
            interval: Interval { not_before_us, not_after_us: not_before_us },
            told_us,
        };
        Ok((term, Duration::from_micros(number(&row, 4)?)))
    }

    /// The same for a worker id that is held, if its end is the one that was told last.
    pub fn renew(&mut self, pool: &str, term: &Term, reached_ms: i64) -> Result<Told, Trouble> {
        let (until, ttl, schema) = (micros("renewed.not_after"), micros(TTL), &self.schema);
        let (last, reached) = (time("$3"), time("$4"));
        let sql = format!(
            "SELECT {until}, {ttl} FROM {schema}.worker_renew($1, $2::pg_catalog.int8, {last}, {reached}) AS renewed"
        );
        let (token, last_us) = (term.token.to_string(), term.told_us.to_string());
        let row = self.change(&sql, &[pool, &token, &last_us, &micros_of(reached_ms)])?;
        Ok(Told { not_after_us: number(&row, 0)?, ttl: Duration::from_micros(number(&row, 1)?) })
    }

    /// Up to where the times of a term are certain: all standbys have them that are to be waited for.
    pub fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Trouble> {
        let until = micros(&format!("{}.worker_confirm($1, $2::pg_catalog.int8)", self.schema));
        let row = self.query(&format!("SELECT {until}"), &[pool, &token.to_string()])?;
        number(&row, 0)
    }

    /// Gives a worker id back. `last_us`: the last microsecond since 1970 that was used, if it is known.
    ///
    /// It counts only if the end of the rectangle is the one that was told last. Otherwise a renewal was not answered, or another
    /// process has the token and may have used later times: then all id times of the rectangle count as used.
    pub fn release(&mut self, pool: &str, term: &Term, last_us: Option<i64>) -> Result<(), Trouble> {
        match last_us.map(|last_us| self.release_at(pool, term.token, &last_us.to_string(), &term.told_us.to_string()))
        {
            Some(Err(trouble)) if is_loss(&trouble) => self.end(pool, term.token),
            Some(outcome) => outcome,
            None => self.end(pool, term.token),
        }
    }

    /// Ends a term; all id times of its rectangle count as used.
    pub fn end(&mut self, pool: &str, token: i64) -> Result<(), Trouble> {
        self.release_at(pool, token, "", "")
    }

    fn release_at(&mut self, pool: &str, token: i64, last_us: &str, told_us: &str) -> Result<(), Trouble> {
        let [last, told] = ["NULLIF($3, '')", "NULLIF($4, '')"].map(time);
        let sql = format!("SELECT {}.worker_release($1, $2::pg_catalog.int8, {last}, {told})", self.schema);
        self.query(&sql, &[pool, &token.to_string(), last_us, told_us]).map(|_| ())
    }

    /// A reload does not end the wait for the answer: what was granted meanwhile would be nobody's, and a term that was renewed
    /// lost.
    fn change(&mut self, sql: &str, params: &[&str]) -> Result<Vec<Option<String>>, Trouble> {
        let patience = Patience { is_interrupted: is_stop_requested, ..self.patience };
        self.query_for(sql, params, patience)
    }

    fn query(&mut self, sql: &str, params: &[&str]) -> Result<Vec<Option<String>>, Trouble> {
        self.query_for(sql, params, self.patience)
    }

    fn query_for(&mut self, sql: &str, params: &[&str], patience: Patience) -> Result<Vec<Option<String>>, Trouble> {
        let sql = CString::new(sql).expect("a query of ours has no NUL");
        self.connection.query(&sql, params, patience)
    }
}

/// Milliseconds as a parameter in microseconds.
fn micros_of(ms: i64) -> String {
    ms.saturating_mul(1000).to_string()
}

/// A column of a row that was asked for.
fn number<N: FromStr>(row: &[Option<String>], column: usize) -> Result<N, Trouble> {
    let text = row.get(column).cloned().flatten().unwrap_or_default();
    text.parse().map_err(|_| Trouble::new(format!("not a number that idgen gives: \"{text}\"")))
}
