//! The requests to a coordinator. They work with each one from 0.14.0 on.
//!
//! The keeper asks for worker ids, the supply worker for segments. No request is asked again before its holder has
//! confirmed, or given up, what an earlier one has granted.

use super::{Coordinator, Row, parse, text};
use crate::pg::libpq::Error;
use idgen_core::segment::ValueRun;
use std::time::Duration;

/// A granted worker id.
pub struct Granted {
    pub worker_id: u32,
    pub token: i64,
    pub not_before_us: i64,
    pub not_after_us: i64,
    /// The ttl of the pool.
    pub ttl: Duration,
}

/// A worker id as its holder knows it.
#[derive(Clone, Copy)]
pub struct Held<'a> {
    pub pool: &'a str,
    pub token: i64,
    /// The last end that the coordinator has told.
    pub not_after_us: i64,
}

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

/// Requests of the keeper. `is_stopped` ends the wait for a grant or a renewal. Nothing else does: without the answer a
/// grant would stay unused, and a renewed worker id would be lost.
impl Coordinator {
    /// The ttl of the pool $1.
    fn ttl(&self) -> String {
        let table = if self.has_pools { "worker_pool" } else { "lease_definition" };
        format!("(SELECT ttl FROM idgen.{table} WHERE name OPERATOR(pg_catalog.=) $1)")
    }

    /// Acquires a worker id for the ttl of the pool, from the time that the server has reached. It is not bound to the
    /// session, so that it survives the connection and a restart of the coordinator.
    pub fn acquire(
        &mut self,
        is_stopped: fn() -> bool,
        pool: &str,
        owner: &str,
        reached_us: i64,
        prefer: Option<u32>,
    ) -> Result<Granted, Error> {
        let (from, until, ttl) = (micros("granted.not_before"), micros("granted.not_after"), self.ttl());
        let (ttl_us, reached) = (micros(&ttl), time("$3"));
        let sql = |schema: &str| {
            format!(
                "SELECT granted.worker_id, granted.token, {from}, {until}, {ttl_us} \
                 FROM {schema}.worker_acquire($1, $2, {ttl}, {reached}, NULLIF($4, '')::pg_catalog.int4) AS granted"
            )
        };
        let prefer = prefer.map(|worker_id| worker_id.to_string()).unwrap_or_default();
        let row = self.query_unless(is_stopped, sql, &[pool, owner, &reached_us.to_string(), &prefer])?;
        Ok(Granted {
            worker_id: parse(&row, 0)?,
            token: parse(&row, 1)?,
            not_before_us: parse(&row, 2)?,
            not_after_us: parse(&row, 3)?,
            ttl: Duration::from_micros(parse(&row, 4)?),
        })
    }

    /// Renews a worker id if its end is the last known one. Returns the new end and the ttl of the pool.
    pub fn renew(&mut self, is_stopped: fn() -> bool, held: Held, reached_us: i64) -> Result<(i64, Duration), Error> {
        let (until, ttl) = (micros("renewed.not_after"), micros(&self.ttl()));
        let (last, reached) = (time("$3"), time("$4"));
        let sql = |schema: &str| {
            format!(
                "SELECT {until}, {ttl} \
                 FROM {schema}.worker_renew($1, $2::pg_catalog.int8, {last}, {reached}) AS renewed"
            )
        };
        let numbers = [held.token, held.not_after_us, reached_us].map(|number| number.to_string());
        let [token, last_us, reached_us] = &numbers;
        let row = self.query_unless(is_stopped, sql, &[held.pool, token, last_us, reached_us])?;
        Ok((parse(&row, 0)?, Duration::from_micros(parse(&row, 1)?)))
    }

    /// True if a worker id is lost whose renewal or release has failed: it has another holder, or another process with its
    /// token has renewed it. The data tell that, not the kind of error. If they cannot be read, that is another failure.
    pub fn has_lost(&mut self, held: Held, error: &Error) -> Result<bool, Error> {
        match error.sqlstate.as_deref() {
            None => return Ok(false),
            // Before 0.18.0, the view also shows tokens that an interruption or a change of the pool has ended.
            Some("55000") if !self.has_pools => return Ok(true),
            Some(_) => {}
        }
        let sql = |_: &str| {
            let last = time("$3");
            format!(
                "SELECT true FROM idgen.workers WHERE pool OPERATOR(pg_catalog.=) $1 \
                 AND token OPERATOR(pg_catalog.=) $2::pg_catalog.int8 AND not_after OPERATOR(pg_catalog.=) {last}"
            )
        };
        let row = self.query(sql, &[held.pool, &held.token.to_string(), &held.not_after_us.to_string()])?;
        Ok(row.is_empty())
    }

    /// Waits until the synchronous standbys have the rectangle, and returns its end.
    pub fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Error> {
        let sql = |schema: &str| {
            let until = micros(&format!("{schema}.worker_confirm($1, $2::pg_catalog.int8)"));
            format!("SELECT {until}")
        };
        let row = self.query(sql, &[pool, &token.to_string()]).map_err(unconfirmed)?;
        parse(&row, 0)
    }

    /// Releases a worker id. `last_us` is the last microsecond since 1970 that was used, if it is known.
    ///
    /// It counts only if the end of the rectangle is the last known one. Otherwise a renewal got no answer, or another
    /// process with the token may have used later times. Then all id times of the rectangle count as used.
    pub fn release(&mut self, held: Held, last_us: Option<i64>) -> Result<(), Error> {
        if let Some(last_us) = last_us {
            match self.release_at(held.pool, held.token, &last_us.to_string(), &held.not_after_us.to_string()) {
                Err(error) if self.has_lost(held, &error)? => {}
                outcome => return outcome,
            }
        }
        self.release_at(held.pool, held.token, "", "")
    }

    /// Ends a worker id that is lost already, or never used again. All id times of its rectangle count as used. If the
    /// coordinator refuses that, the worker id ends by itself.
    pub fn end(&mut self, pool: &str, token: i64) -> Result<(), Error> {
        self.release_at(pool, token, "", "").or_else(|error| error.sqlstate.is_some().then_some(()).ok_or(error))
    }

    fn release_at(&mut self, pool: &str, token: i64, last_us: &str, not_after_us: &str) -> Result<(), Error> {
        let [last, not_after] = ["NULLIF($3, '')", "NULLIF($4, '')"].map(time);
        let sql =
            |schema: &str| format!("SELECT {schema}.worker_release($1, $2::pg_catalog.int8, {last}, {not_after})");
        self.query(sql, &[pool, &token.to_string(), last_us, not_after_us]).map(|_| ())
    }
}

/// An attached server, as it speaks of one tag.
#[derive(Clone, Copy)]
pub struct Server<'a> {
    pub tag: &'a str,
    /// The coordinator knows the server by this number, and shows it by the name.
    pub number: i64,
    pub name: &'a str,
    /// The highest value that the server has ever received.
    pub received: i64,
}

/// The coordinator's tag.
pub struct Origin {
    /// Identifies it and its definition.
    pub source: String,
    pub stride: i64,
    pub residue: i64,
}

/// The coordinator's answer to a report or a request for values.
pub struct Reply {
    pub origin: Origin,
    /// `None` if values are refused, or none were asked for.
    pub range: Option<ValueRun>,
    /// The servers whose reports are missing.
    pub waits_for: String,
}

const UNKNOWN: &str = "42704";

/// Requests of the supply worker.
impl Coordinator {
    /// Reports the highest value received, and asks for values; 0 for none. The coordinator has granted them when this
    /// returns, and does so only once. They count once it has confirmed them.
    pub fn request_values(&mut self, server: Server, count: u64) -> Result<Reply, Error> {
        let sql = |schema: &str| {
            format!(
                "SELECT granted.first_id, granted.count, granted.stride, granted.residue, granted.source, \
                 granted.waits_for FROM {schema}.segment_request($1, $2::pg_catalog.int8, $3, $4::pg_catalog.int8, \
                 $5::pg_catalog.int8) AS granted"
            )
        };
        let Server { tag, number, name, received } = server;
        let [number, received, count] = [number.to_string(), received.to_string(), count.to_string()];
        let row: Row = self.query(sql, &[tag, &number, name, &received, &count])?;
        let (stride, residue) = (parse(&row, 2)?, parse(&row, 3)?);
        let range = match text(&row, 0) {
            Some(_) => Some(ValueRun { first: parse(&row, 0)?, count: parse(&row, 1)?, stride }),
            None => None,
        };
        let [source, waits_for] = [4, 5].map(|column| text(&row, column).unwrap_or_default());
        Ok(Reply { origin: Origin { source, stride, residue }, range, waits_for })
    }

    /// Ends the attachment of a tag. The last report counts.
    pub fn leave_tag(&mut self, server: Server) -> Result<(), Error> {
        let sql = |schema: &str| format!("SELECT {schema}.segment_leave($1, $2::pg_catalog.int8, $3::pg_catalog.int8)");
        match self.query(sql, &[server.tag, &server.number.to_string(), &server.received.to_string()]) {
            // The tag was dropped and this server forgotten, as by an earlier call whose answer was lost.
            Err(error) if error.sqlstate.as_deref() == Some(UNKNOWN) => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    /// Waits until the coordinator's synchronous standbys have all that it has committed for this server. A failure
    /// concerns no tag.
    pub fn confirm_segments(&mut self) -> Result<(), Error> {
        let confirmed = self.query(|schema| format!("SELECT {schema}.segment_confirm()"), &[]);
        confirmed.map(|_| ()).map_err(|error| Error { sqlstate: None, ..unconfirmed(error) })
    }
}

fn unconfirmed(error: Error) -> Error {
    let message = format!("not confirmed to be on the coordinator's synchronous standbys: {}", error.message);
    Error { message, ..error }
}
