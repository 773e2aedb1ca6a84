//! The keeper's requests. They work with each coordinator from 0.14.0 on. A worker id is not asked for again before the
//! keeper has confirmed, or given up, what an earlier request has granted.

use super::keeper::is_stop_requested;
use crate::coordinator::{Coordinator, name_of_this_server, unconfirmed};
use crate::pg::libpq::Error;
use crate::pg::recovery;
use idgen_core::coordinator::CoordinatorId;
use idgen_core::worker::Rectangle;
use idgen_core::worker::lease::WorkerLease;
use idgen_core::worker::server;
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

impl Coordinator {
    /// The ttl of the pool $1.
    fn ttl(&self) -> String {
        let table = if self.has_pools { "worker_pool" } else { "lease_definition" };
        format!("(SELECT ttl FROM idgen.{table} WHERE name OPERATOR(pg_catalog.=) $1)")
    }

    /// As [`Coordinator::ttl`], in microseconds. If the pool is not there, because it is newer than the snapshot, or was moved to
    /// the other table since this connection began: the time from now, or from what the holder has reached, to the end, and some
    /// time in any case. The answer to a request must not be lost for that.
    fn ttl_micros(&self, end: &str, reached: &str) -> String {
        let (ttl, from) = (self.ttl(), format!("GREATEST(pg_catalog.clock_timestamp(), {reached})"));
        let left = format!("GREATEST({end} OPERATOR(pg_catalog.-) {from}, '1 second'::pg_catalog.interval)");
        micros(&format!("COALESCE({ttl}, {left})"))
    }
}

/// True if the wait for a grant or a renewal has to end. Only for a stop of the server: without the answer a grant would stay
/// unused, and a renewed worker id would be lost.
fn is_server_stopping() -> bool {
    is_stop_requested() && recovery::is_server_stopping()
}

impl server::Coordinator for Coordinator {
    type Error = Error;

    fn identity(&self) -> CoordinatorId {
        self.identity
    }

    /// It is not bound to the session, so that it survives the connection and a restart of the coordinator.
    fn acquire(&mut self, pool: &str, reached_us: i64, prefer: Option<u32>) -> Result<(WorkerLease, Duration), Error> {
        let (from, until) = (micros("granted.not_before"), micros("granted.not_after"));
        let sql = format!(
            "SELECT granted.worker_id, granted.token, {from}, {until}, {} \
             FROM {}.worker_acquire($1, $2, {}, {}, NULLIF($4, '')::pg_catalog.int4) AS granted",
            self.ttl_micros("granted.not_after", &time("$3")),
            self.schema,
            self.ttl(),
            time("$3")
        );
        let prefer = prefer.map(|worker_id| worker_id.to_string()).unwrap_or_default();
        // The owner, from which the coordinator grants its last worker id again.
        let params = [pool, &name_of_this_server(), &reached_us.to_string(), &prefer];
        let row = self.query_unless(is_server_stopping, sql, &params)?;
        crate::pg::crash_point!("keeper: granted");
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

    fn renew(&mut self, pool: &str, lease: &WorkerLease, reached_us: i64) -> Result<(i64, Duration), Error> {
        let sql = format!(
            "SELECT {}, {} FROM {}.worker_renew($1, $2::pg_catalog.int8, {}, {}) AS renewed",
            micros("renewed.not_after"),
            self.ttl_micros("renewed.not_after", &time("$4")),
            self.schema,
            time("$3"),
            time("$4")
        );
        let [token, last, reached] =
            [lease.token, lease.last_not_after_us, reached_us].map(|number| number.to_string());
        let row = self.query_unless(is_server_stopping, sql, &[pool, &token, &last, &reached])?;
        crate::pg::crash_point!("keeper: renewed");
        Ok((row.number(0)?, Duration::from_micros(row.number(1)?)))
    }

    fn holds(&mut self, pool: &str, lease: &WorkerLease, refusal: &Error) -> Result<bool, Error> {
        // The library is newer than the SQL: until the UPDATE, the coordinator renews nothing. Nor is it asked: a query of the view
        // could close a deadlock with the UPDATE.
        if refusal.message.contains("ALTER EXTENSION idgen UPDATE") {
            return Ok(true);
        }
        // Before 0.18.0, the view also shows tokens that an interruption or a change of the pool has ended.
        if !self.has_pools && refusal.sqlstate.as_deref() == Some("55000") {
            return Ok(false);
        }
        let sql = format!(
            "SELECT true FROM idgen.workers WHERE pool OPERATOR(pg_catalog.=) $1 \
             AND token OPERATOR(pg_catalog.=) $2::pg_catalog.int8 AND not_after OPERATOR(pg_catalog.=) {}",
            time("$3")
        );
        let row = self.query(sql, &[pool, &lease.token.to_string(), &lease.last_not_after_us.to_string()])?;
        Ok(row.text(0).is_some())
    }

    fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Error> {
        let confirmed = micros(&format!("{}.worker_confirm($1, $2::pg_catalog.int8)", self.schema));
        let row = self.query(format!("SELECT {confirmed}"), &[pool, &token.to_string()]).map_err(unconfirmed)?;
        crate::pg::crash_point!("keeper: confirmed");
        row.number(0)
    }

    fn release(&mut self, pool: &str, token: i64, last: Option<(i64, i64)>) -> Result<(), Error> {
        let [last_us, not_after_us] =
            last.map_or_else(Default::default, |(last_us, end_us)| [last_us, end_us].map(|us| us.to_string()));
        let [last, not_after] = ["NULLIF($3, '')", "NULLIF($4, '')"].map(time);
        let sql = format!("SELECT {}.worker_release($1, $2::pg_catalog.int8, {last}, {not_after})", self.schema);
        crate::pg::crash_point!("keeper: before the release");
        let released = self.query(sql, &[pool, &token.to_string(), &last_us, &not_after_us]).map(|_| ());
        crate::pg::crash_point!("keeper: released");
        released
    }
}
