//! Connections to another server: libpq, asynchronous, waiting on the latch. So neither the network nor the other
//! server delays a stop of this one. The only files that call libpq are here.

use error::c_string;
use idgen_core::hosts::{Host, attempt_limit};
use options::Options;
use pq_sys::*;
use raw::RawConnection;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

mod error;
mod options;
mod raw;
mod resolver;
mod timeout;

pub use error::Error;
pub use options::INVALID_CONNECTION_STRING;
pub use resolver::Resolver;
pub use timeout::Timeout;

/// An open connection.
pub struct Connection(RawConnection);

impl Connection {
    /// Connects to the first address that answers. Starts at the address with the index `first`, modulo their count.
    pub fn open(
        conninfo: &CStr,
        application: &CStr,
        resolver: &mut Resolver,
        first: usize,
        timeout: Timeout,
    ) -> Result<Self, Error> {
        let options = Options::of(conninfo)?;
        let begun = Instant::now();
        let (mut targets, mut errors) = options.addresses(resolver, timeout)?;
        let first = first.checked_rem(targets.len()).unwrap_or(0);
        targets.rotate_left(first);
        // In whole milliseconds, so that a single address gets all of the time, and its error says so.
        let left =
            |begun: Instant| timeout.duration.saturating_sub(Duration::from_millis(begun.elapsed().as_millis() as u64));
        for (index, target) in targets.iter().enumerate() {
            let attempts_left = (targets.len() - index) as u32;
            let limit = attempt_limit(timeout.duration, left(begun), attempts_left, options.connect_timeout);
            if limit.is_zero() {
                errors.push(Error::new(format!("no time was left for {attempts_left} other addresses")));
                break;
            }
            match Self::attempt(conninfo, application, &options, target, timeout.with_duration(limit)) {
                Ok(connection) => return Ok(connection),
                Err(error) if (timeout.is_interrupted)() => return Err(error),
                Err(error) => errors.push(error),
            }
        }
        let messages: Vec<_> = errors.into_iter().map(|error| error.message).collect();
        Err(Error::new(messages.join("; ")))
    }

    fn attempt(
        conninfo: &CStr,
        application: &CStr,
        options: &Options,
        target: &Host,
        timeout: Timeout,
    ) -> Result<Self, Error> {
        let lists = options.lists.narrowed_to(target);
        let [host, hostaddr, port] = [&lists.host, &lists.hostaddr, &lists.port].map(|value| c_string(value));
        let raw = RawConnection::start(&[
            (c"target_session_attrs", &options.session_default),
            (c"fallback_application_name", application),
            (c"dbname", conninfo),
            // After the connection string, whose values they replace.
            (c"host", &host),
            (c"hostaddr", &hostaddr),
            (c"port", &port),
            // Not converted: a server refuses an encoding that it cannot convert to that of its database.
            (c"client_encoding", c"SQL_ASCII"),
        ])?;
        raw.finish(timeout)?;
        // SAFETY: an open connection; the function ignores its argument. By default libpq prints notices to the
        // server's log.
        unsafe { PQsetNoticeReceiver(raw.as_ptr(), Some(ignore_notice), null_mut()) };
        Ok(Self(raw))
    }

    /// Runs a query that returns one row at most, as text; `None` for NULL. Returns when the server is ready for the next query: only then has
    /// the transaction committed.
    pub fn query(&mut self, sql: &CStr, params: &[&str], timeout: Timeout) -> Result<Vec<Option<String>>, Error> {
        let deadline = timeout.deadline();
        let params: Vec<_> = params.iter().map(|param| c_string(param)).collect();
        let values: Vec<_> = params.iter().map(|param| param.as_ptr()).collect();
        let raw = &self.0;
        // SAFETY: `count` C strings; null: the server infers the types, and all values are text.
        let sent = unsafe {
            let count = values.len() as c_int;
            PQsendQueryParams(raw.as_ptr(), sql.as_ptr(), count, null(), values.as_ptr(), null(), null(), 0)
        };
        if sent == 0 {
            return Err(raw.error());
        }
        let mut outcome: Result<_, Error> = Ok(Vec::new());
        while let Some(result) = raw.next_result(deadline, timeout)? {
            // An error at commit comes after the row.
            outcome = outcome.and_then(|row| Ok(result.row()?.unwrap_or(row)));
        }
        // The server's message does not name the server.
        outcome.map_err(|error| Error { message: format!("{}: {}", self.host(), error.message), ..error })
    }

    /// Host and port of the server.
    pub fn host(&self) -> String {
        let [host, port] = self.0.host_and_port();
        format!("{host}:{port}")
    }
}

unsafe extern "C" fn ignore_notice(_argument: *mut c_void, _result: *const PGresult) {}
