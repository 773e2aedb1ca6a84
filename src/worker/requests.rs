//! The keeper's requests. They work with each coordinator from 0.14.0 on. A worker id is not asked for again before the
//! keeper has confirmed, or given up, what an earlier request has granted.

use super::keeper::is_stop_requested;
use super::state::WorkerLease;
use crate::coordinator::{Coordinator, name_of_this_server, unconfirmed};
use crate::pg::libpq::Error;
use idgen_core::worker::Rectangle;
use std::time::Duration;

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

/// SIGTERM alone ends the wait for a grant or a renewal: without the answer a grant would stay unused, and a renewed worker
/// id would be lost.
impl Coordinator {
    /// The ttl of the pool $1.
    fn ttl(&self) -> String {
        let table = if self.has_pools { "worker_pool" } else { "lease_definition" };
        format!("(SELECT ttl FROM idgen.{table} WHERE name OPERATOR(pg_catalog.=) $1)")
    }

    /// Acquires a worker id for the ttl of the pool, from the time that the server has reached. It is not bound to the
    /// session, so that it survives the connection and a restart of the coordinator. Returns the ttl too.
    pub fn acquire(
        &mut self,
        pool: &str,
        reached_us: i64,
        prefer: Option<u32>,
    ) -> Result<(WorkerLease, Duration), Error> {
        let (from, until, ttl) = (micros("granted.not_before"), micros("granted.not_after"), self.ttl());
        let sql = format!(
            "SELECT granted.worker_id, granted.token, {from}, {until}, {} \
             FROM {}.worker_acquire($1, $2, {ttl}, {}, NULLIF($4, '')::pg_catalog.int4) AS granted",
            micros(&ttl),
            self.schema,
            time("$3")
        );
        let prefer = prefer.map(|worker_id| worker_id.to_string()).unwrap_or_default();
        // The owner, from which the coordinator grants its last worker id again.
        let params = [pool, &name_of_this_server(), &reached_us.to_string(), &prefer];
        let row = self.query_unless(is_stop_requested, sql, &params)?;
        let not_before_us = row.number(2)?;
        let lease = WorkerLease {
            worker_id: row.number(0)?,
            token: row.number(1)?,
            coordinator: self.identity,
            // Nothing is confirmed yet.
            rectangle: Rectangle { not_before_us, not_after_us: not_before_us },
            last_not_after_us: row.number(3)?,
        };
        Ok((lease, Duration::from_micros(row.number(4)?)))
    }

    /// Renews a worker id if its end is the last known one. Returns the new end and the ttl of the pool.
    pub fn renew(&mut self, pool: &str, lease: &WorkerLease, reached_us: i64) -> Result<(i64, Duration), Error> {
        let sql = format!(
            "SELECT {}, {} FROM {}.worker_renew($1, $2::pg_catalog.int8, {}, {}) AS renewed",
            micros("renewed.not_after"),
            micros(&self.ttl()),
            self.schema,
            time("$3"),
            time("$4")
        );
        let [token, last, reached] =
            [lease.token, lease.last_not_after_us, reached_us].map(|number| number.to_string());
        let row = self.query_unless(is_stop_requested, sql, &[pool, &token, &last, &reached])?;
        Ok((row.number(0)?, Duration::from_micros(row.number(1)?)))
    }

    /// True if a worker id is lost whose renewal or release has failed: it has another holder, or another process with its
    /// token has renewed it. The data tell that, not the kind of error. If they cannot be read, that is another failure.
    pub fn has_lost(&mut self, pool: &str, lease: &WorkerLease, error: &Error) -> Result<bool, Error> {
        match error.sqlstate.as_deref() {
            None => return Ok(false),
            // Before 0.18.0, the view also shows tokens that an interruption or a change of the pool has ended.
            Some("55000") if !self.has_pools => return Ok(true),
            Some(_) => {}
        }
        let sql = format!(
            "SELECT true FROM idgen.workers WHERE pool OPERATOR(pg_catalog.=) $1 \
             AND token OPERATOR(pg_catalog.=) $2::pg_catalog.int8 AND not_after OPERATOR(pg_catalog.=) {}",
            time("$3")
        );
        let row = self.query(sql, &[pool, &lease.token.to_string(), &lease.last_not_after_us.to_string()])?;
        Ok(row.text(0).is_none())
    }

    /// Waits until the synchronous standbys have the rectangle, and returns its end.
    pub fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Error> {
        let confirmed = micros(&format!("{}.worker_confirm($1, $2::pg_catalog.int8)", self.schema));
        self.query(format!("SELECT {confirmed}"), &[pool, &token.to_string()]).map_err(unconfirmed)?.number(0)
    }

    /// Releases a worker id. `last_us` is the last microsecond since 1970 that was used.
    ///
    /// It counts only if the end of the rectangle is the last known one. Otherwise a renewal got no answer, or another
    /// process with the token may have used later times. Then all id times of the rectangle count as used.
    pub fn release(&mut self, pool: &str, lease: &WorkerLease, last_us: i64) -> Result<(), Error> {
        match self.release_at(pool, lease.token, &last_us.to_string(), &lease.last_not_after_us.to_string()) {
            Err(error) if self.has_lost(pool, lease, &error)? => self.release_at(pool, lease.token, "", ""),
            outcome => outcome,
        }
    }

    /// Ends a worker id that is lost already, or never used again. All id times of its rectangle count as used. If the
    /// coordinator refuses that, the worker id ends by itself.
    pub fn end(&mut self, pool: &str, token: i64) -> Result<(), Error> {
        self.release_at(pool, token, "", "").or_else(|error| error.sqlstate.is_some().then_some(()).ok_or(error))
    }

    fn release_at(&mut self, pool: &str, token: i64, last_us: &str, not_after_us: &str) -> Result<(), Error> {
        let [last, not_after] = ["NULLIF($3, '')", "NULLIF($4, '')"].map(time);
        let sql = format!("SELECT {}.worker_release($1, $2::pg_catalog.int8, {last}, {not_after})", self.schema);
        self.query(sql, &[pool, &token.to_string(), last_us, not_after_us]).map(|_| ())
    }
}
