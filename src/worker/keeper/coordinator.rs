//! The coordinator's functions, called over libpq.

use super::run::is_stop_requested;
use crate::pg::libpq::{Connection, Error, INVALID_CONNECTION_STRING, Resolver, Timeout};
use crate::pg::session;
use crate::pg::wait_event::WaitEvent;
use crate::settings::Pool;
use crate::worker::state::WorkerLease;
use idgen_core::worker::Rectangle;
use idgen_core::worker::memory::CoordinatorId;
use std::ffi::{CStr, CString};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A connection to the coordinator's database, which has identified itself.
pub struct Coordinator {
    pub connection: Connection,
    /// The connection string that it was opened with.
    conninfo: CString,
    timeout: Timeout,
    /// It may be used again until then; `None` if it has to be closed after this attempt.
    usable_until: Option<Instant>,
    pub identity: CoordinatorId,
    /// The quoted schema of idgen's functions.
    schema: String,
}

/// Identifies the database, and sets up the session. `statement_timeout` ends a statement after the keeper has stopped
/// waiting. Commits wait for the disk only: nothing would end a wait for a standby, and `worker_confirm()` waits for
/// that. An idle session of the keeper is not ended. The last two columns: whether there is room for a connection that
/// stays, and when the server has started. There is room if fewer than half of the connections are in use, and neither
/// role nor database has a limit of its own.
const IDENTIFY: &CStr = c"SELECT control.system_identifier, database.oid, pg_catalog.quote_ident(space.nspname), \
    pg_catalog.set_config('statement_timeout', $1, false), pg_catalog.set_config('synchronous_commit', 'local', false), \
    pg_catalog.set_config('default_transaction_isolation', 'read committed', false), \
    pg_catalog.set_config('idle_session_timeout', '0', false), \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_get_activity(NULL) AS session \
     WHERE session.usesysid IS NOT NULL) OPERATOR(pg_catalog.*) 2 \
     OPERATOR(pg_catalog.<) pg_catalog.current_setting('max_connections')::pg_catalog.int8 \
     AND database.datconnlimit OPERATOR(pg_catalog.<) 0 AND role.rolconnlimit OPERATOR(pg_catalog.<) 0, \
    (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8 \
    FROM pg_catalog.pg_control_system() AS control \
    JOIN pg_catalog.pg_database AS database ON database.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() \
    JOIN pg_catalog.pg_roles AS role ON role.rolname OPERATOR(pg_catalog.=) SESSION_USER \
    LEFT JOIN pg_catalog.pg_extension AS extension ON extension.extname OPERATOR(pg_catalog.=) 'idgen' \
    LEFT JOIN pg_catalog.pg_namespace AS space ON space.oid OPERATOR(pg_catalog.=) extension.extnamespace";

/// How long a connection is used. Then the keeper resolves the coordinator's name again, and asks again for room. The
/// network may cut a connection that is idle for longer.
const LONGEST_USE: Duration = Duration::from_mins(5);

/// The ttl of the pool $1.
const TTL: &str = "(SELECT ttl FROM idgen.lease_definition WHERE name OPERATOR(pg_catalog.=) $1)";

/// A time in microseconds since 1970, or an interval in microseconds.
fn micros(time: &str) -> String {
    format!("(EXTRACT(epoch FROM {time}) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8")
}

/// The time of these microseconds since 1970.
fn time(us: &str) -> String {
    format!(
        "('epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) \
          ({us}::pg_catalog.int8 OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval))"
    )
}

/// The wait for the coordinator, to connect or to answer.
pub static COORDINATOR_WAIT: WaitEvent = WaitEvent::new(c"IdgenCoordinator");

/// Errors for a token that is stale, another role's, or was renewed by another process.
const LOST: [&str; 2] = ["55000", "42501"];

/// True if the lease is lost.
pub fn is_loss(error: &Error) -> bool {
    error.sqlstate.as_deref().is_some_and(|sqlstate| LOST.contains(&sqlstate))
}

impl Coordinator {
    pub fn connect(pool: &Pool, resolver: &mut Resolver, first: usize, timeout: Timeout) -> Result<Self, Error> {
        if pool.coordinator.is_empty() {
            return Err(Error::new("idgen.coordinator is not set"));
        }
        let opened = Connection::open(&pool.coordinator, c"idgen keeper", resolver, first, timeout);
        let mut connection = opened.map_err(|error| match error.message.as_str() {
            INVALID_CONNECTION_STRING => Error::new(format!("idgen.coordinator: {INVALID_CONNECTION_STRING}")),
            _ => error,
        })?;
        let row = connection.query(IDENTIFY, &[&timeout.duration.as_millis().to_string()], timeout)?;
        let Some(Some(schema)) = row.get(2).cloned() else {
            return Err(Error::new(format!("{}: the database does not have the extension idgen", connection.host())));
        };
        let identity = CoordinatorId { system_identifier: parse(&row, 0)?, database: parse(&row, 1)? };
        // A server that stops smartly waits for its clients, this process among them.
        let is_this_server = parse::<i64>(&row, 8)? == session::server_start_us();
        let has_room = row.get(7).cloned().flatten().as_deref() == Some("t");
        let usable_until = (has_room && !is_this_server).then(|| Instant::now() + LONGEST_USE);
        let conninfo = pool.coordinator.clone();
        Ok(Self { connection, conninfo, timeout, usable_until, identity, schema })
    }

    /// True if the connection can be used again after a pause.
    pub fn stays_for(&self, pause: Duration) -> bool {
        self.usable_until.is_some_and(|until| Instant::now() + pause < until)
    }

    /// True if it leads to the pool's coordinator, with the same timeout, and the coordinator answers. So one that has
    /// been restarted, or is silent, is noticed before a request whose answer would be lost.
    pub fn is_usable(&mut self, pool: &Pool, timeout: Timeout) -> bool {
        self.conninfo == pool.coordinator
            && self.timeout.duration == timeout.duration
            && self.stays_for(Duration::ZERO)
            && self.connection.query(c"SELECT", &[], timeout.with_duration(timeout.duration / 2)).is_ok()
    }

    /// Acquires a worker id for the ttl of the pool, and returns that ttl. The lease lasts from the time that the
    /// server has reached. It is not bound to the session, so that it survives the connection and a restart of the
    /// coordinator.
    pub fn acquire(
        &mut self,
        pool: &str,
        owner: &str,
        reached_ms: i64,
        prefer: Option<u32>,
    ) -> Result<(WorkerLease, Duration), Error> {
        let (from, until, ttl) = (micros("granted.not_before"), micros("granted.not_after"), micros(TTL));
        let (schema, reached) = (&self.schema, time("$3"));
        let sql = format!(
            "SELECT granted.worker_id, granted.token, {from}, {until}, {ttl} \
             FROM {schema}.worker_acquire($1, $2, {TTL}, {reached}, NULLIF($4, '')::pg_catalog.int4) AS granted"
        );
        let prefer = prefer.map(|worker| worker.to_string()).unwrap_or_default();
        let row = self.change(&sql, &[pool, owner, &micros_of(reached_ms), &prefer])?;
        let (not_before_us, last_not_after_us) = (parse(&row, 2)?, parse(&row, 3)?);
        let lease = WorkerLease {
            worker_id: parse(&row, 0)?,
            token: parse(&row, 1)?,
            coordinator: self.identity,
            // Nothing is confirmed yet.
            rectangle: Rectangle { not_before_us, not_after_us: not_before_us },
            last_not_after_us,
        };
        Ok((lease, Duration::from_micros(parse(&row, 4)?)))
    }

    /// Renews a lease if its end is the last known one. Returns the new end and the ttl of the pool.
    pub fn renew(&mut self, pool: &str, lease: &WorkerLease, reached_ms: i64) -> Result<(i64, Duration), Error> {
        let (until, ttl, schema) = (micros("renewed.not_after"), micros(TTL), &self.schema);
        let (last, reached) = (time("$3"), time("$4"));
        let sql = format!(
            "SELECT {until}, {ttl} FROM {schema}.worker_renew($1, $2::pg_catalog.int8, {last}, {reached}) AS renewed"
        );
        let (token, last_us) = (lease.token.to_string(), lease.last_not_after_us.to_string());
        let row = self.change(&sql, &[pool, &token, &last_us, &micros_of(reached_ms)])?;
        Ok((parse(&row, 0)?, Duration::from_micros(parse(&row, 1)?)))
    }

    /// Waits until the synchronous standbys have the rectangle, and returns its end.
    pub fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Error> {
        let until = micros(&format!("{}.worker_confirm($1, $2::pg_catalog.int8)", self.schema));
        let row = self.query(&format!("SELECT {until}"), &[pool, &token.to_string()], self.timeout)?;
        parse(&row, 0)
    }

    /// Releases a lease. `last_us` is the last microsecond since 1970 that was used, if it is known.
    ///
    /// It counts only if the end of the rectangle is the last known one. Otherwise a renewal got no answer, or another
    /// process with the token may have used later times. Then all id times of the rectangle count as used.
    pub fn release(&mut self, pool: &str, lease: &WorkerLease, last_us: Option<i64>) -> Result<(), Error> {
        if let Some(last_us) = last_us {
            let (last_us, not_after_us) = (last_us.to_string(), lease.last_not_after_us.to_string());
            match self.release_at(pool, lease.token, &last_us, &not_after_us) {
                Err(error) if is_loss(&error) => {}
                outcome => return outcome,
            }
        }
        self.release_at(pool, lease.token, "", "")
    }

    /// Ends a lease, unless it is lost already. All id times of its rectangle count as used.
    pub fn end(&mut self, pool: &str, token: i64) -> Result<(), Error> {
        self.release_at(pool, token, "", "").or_else(|error| if is_loss(&error) { Ok(()) } else { Err(error) })
    }

    fn release_at(&mut self, pool: &str, token: i64, last_us: &str, not_after_us: &str) -> Result<(), Error> {
        let [last, not_after] = ["NULLIF($3, '')", "NULLIF($4, '')"].map(time);
        let sql = format!("SELECT {}.worker_release($1, $2::pg_catalog.int8, {last}, {not_after})", self.schema);
        self.query(&sql, &[pool, &token.to_string(), last_us, not_after_us], self.timeout).map(|_| ())
    }

    /// A reload does not end the wait for the answer: a grant would stay unused, and a renewed lease would be lost.
    fn change(&mut self, sql: &str, params: &[&str]) -> Result<Vec<Option<String>>, Error> {
        self.query(sql, params, Timeout { is_interrupted: is_stop_requested, ..self.timeout })
    }

    fn query(&mut self, sql: &str, params: &[&str], timeout: Timeout) -> Result<Vec<Option<String>>, Error> {
        let sql = CString::new(sql).expect("a query of ours has no NUL");
        self.connection.query(&sql, params, timeout)
    }
}

/// A parameter in microseconds.
fn micros_of(ms: i64) -> String {
    ms.saturating_mul(1000).to_string()
}

/// A number in a column of a row.
fn parse<N: FromStr>(row: &[Option<String>], column: usize) -> Result<N, Error> {
    let text = row.get(column).cloned().flatten().unwrap_or_default();
    text.parse().map_err(|_| Error::new(format!("the coordinator has returned an invalid number: \"{text}\"")))
}
