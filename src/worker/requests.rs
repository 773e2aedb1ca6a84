//! The keeper's calls of the coordinator's functions.

use super::keeper::is_stop_requested;
use super::state::WorkerLease;
use crate::coordinator::{Coordinator, parse};
use crate::pg::libpq::Error;
use idgen_core::worker::Rectangle;
use std::time::Duration;

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

/// Errors for a token that is stale, another role's, or was renewed by another process.
const LOST: [&str; 2] = ["55000", "42501"];

/// True if the lease is lost.
pub fn is_loss(error: &Error) -> bool {
    error.sqlstate.as_deref().is_some_and(|sqlstate| LOST.contains(&sqlstate))
}

impl Coordinator {
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
        let reached = time("$3");
        let sql = |schema: &str| {
            format!(
                "SELECT granted.worker_id, granted.token, {from}, {until}, {ttl} \
                 FROM {schema}.worker_acquire($1, $2, {TTL}, {reached}, NULLIF($4, '')::pg_catalog.int4) AS granted"
            )
        };
        let prefer = prefer.map(|worker| worker.to_string()).unwrap_or_default();
        let row = self.change(sql, &[pool, owner, &micros_of(reached_ms), &prefer])?;
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
        let (until, ttl) = (micros("renewed.not_after"), micros(TTL));
        let (last, reached) = (time("$3"), time("$4"));
        let sql = |schema: &str| {
            format!(
                "SELECT {until}, {ttl} \
                 FROM {schema}.worker_renew($1, $2::pg_catalog.int8, {last}, {reached}) AS renewed"
            )
        };
        let (token, last_us) = (lease.token.to_string(), lease.last_not_after_us.to_string());
        let row = self.change(sql, &[pool, &token, &last_us, &micros_of(reached_ms)])?;
        Ok((parse(&row, 0)?, Duration::from_micros(parse(&row, 1)?)))
    }

    /// Waits until the synchronous standbys have the rectangle, and returns its end.
    pub fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Error> {
        let sql = |schema: &str| {
            let until = micros(&format!("{schema}.worker_confirm($1, $2::pg_catalog.int8)"));
            format!("SELECT {until}")
        };
        let row = self.query(sql, &[pool, &token.to_string()])?;
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
        let sql =
            |schema: &str| format!("SELECT {schema}.worker_release($1, $2::pg_catalog.int8, {last}, {not_after})");
        self.query(sql, &[pool, &token.to_string(), last_us, not_after_us]).map(|_| ())
    }

    /// A reload does not end the wait for the answer: a grant would stay unused, and a renewed lease would be lost.
    fn change(&mut self, sql: impl FnOnce(&str) -> String, params: &[&str]) -> Result<Vec<Option<String>>, Error> {
        self.query_unless(is_stop_requested, sql, params)
    }
}

/// A parameter in microseconds.
fn micros_of(ms: i64) -> String {
    ms.saturating_mul(1000).to_string()
}
