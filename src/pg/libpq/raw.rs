//! A connection of libpq in any state, and the results of its queries.

use super::error::{Error, on_one_line, string};
use super::timeout::{Deadline, Timeout};
use pgrx::pg_sys;
use pq_sys::*;
use std::ffi::{CStr, c_int};
use std::ptr::{NonNull, null};

pub struct RawConnection(NonNull<PGconn>);

impl RawConnection {
    /// Begins to connect.
    pub fn start(options: &[(&CStr, &CStr)]) -> Result<Self, Error> {
        let end = std::iter::once(null());
        let keywords: Vec<_> = options.iter().map(|(keyword, _)| keyword.as_ptr()).chain(end.clone()).collect();
        let values: Vec<_> = options.iter().map(|(_, value)| value.as_ptr()).chain(end).collect();
        // SAFETY: two arrays of C strings, of one length, each ended by a null; 1: "dbname" is a connection string.
        let raw = unsafe { PQconnectStartParams(keywords.as_ptr(), values.as_ptr(), 1) };
        NonNull::new(raw).map(Self).ok_or_else(|| Error::new("out of memory"))
    }

    pub fn as_ptr(&self) -> *mut PGconn {
        self.0.as_ptr()
    }

    /// Waits until the connection is open.
    pub fn finish(&self, timeout: Timeout) -> Result<(), Error> {
        let deadline = timeout.deadline();
        // SAFETY: a connection that was begun. One with wrong options is bad before there is a socket.
        if unsafe { PQstatus(self.as_ptr()) } == ConnStatusType::CONNECTION_BAD {
            return Err(self.error());
        }
        let mut state = PostgresPollingStatusType::PGRES_POLLING_WRITING;
        loop {
            let event = match state {
                PostgresPollingStatusType::PGRES_POLLING_OK => return Ok(()),
                PostgresPollingStatusType::PGRES_POLLING_FAILED => return Err(self.error()),
                PostgresPollingStatusType::PGRES_POLLING_READING => pg_sys::WL_SOCKET_READABLE,
                _ => pg_sys::WL_SOCKET_WRITEABLE,
            };
            // SAFETY: a connection that was begun and is not bad has a socket.
            if !deadline.wait(unsafe { PQsocket(self.as_ptr()) }, event)? {
                return Err(self.timed_out(timeout));
            }
            // SAFETY: as above.
            state = unsafe { PQconnectPoll(self.as_ptr()) };
        }
    }

    /// Waits for the next result; `None` after the last one.
    pub fn next_result(&self, deadline: Deadline, timeout: Timeout) -> Result<Option<QueryResult>, Error> {
        // SAFETY: an open connection, here and below.
        while unsafe { PQisBusy(self.as_ptr()) } != 0 {
            // SAFETY: as above.
            if !deadline.wait(unsafe { PQsocket(self.as_ptr()) }, pg_sys::WL_SOCKET_READABLE)? {
                return Err(self.timed_out(timeout));
            }
            // SAFETY: as above.
            if unsafe { PQconsumeInput(self.as_ptr()) } == 0 {
                return Err(self.error());
            }
        }
        // SAFETY: as above. The connection is not busy, so this does not block; nothing else frees the result.
        Ok(unsafe { QueryResult::new(PQgetResult(self.as_ptr())) })
    }

    pub fn host_and_port(&self) -> [String; 2] {
        // SAFETY: strings of the connection, or null, copied at once.
        unsafe { [PQhost(self.as_ptr()), PQport(self.as_ptr())].map(|text| string(text)) }
    }

    fn timed_out(&self, timeout: Timeout) -> Error {
        let [host, port] = self.host_and_port();
        // SAFETY: a string of the connection, or null, copied at once.
        let address = unsafe { string(PQhostaddr(self.as_ptr())) };
        let address = if address.is_empty() || address == host { String::new() } else { format!(" ({address})") };
        Error::new(format!("{host}{address}:{port} has not answered within {} ms", timeout.duration.as_millis()))
    }

    /// The error of the last call.
    pub fn error(&self) -> Error {
        // SAFETY: a string of the connection, copied at once.
        Error::new(on_one_line(&unsafe { string(PQerrorMessage(self.as_ptr())) }))
    }
}

impl Drop for RawConnection {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { PQfinish(self.as_ptr()) };
    }
}

/// The result of a query.
pub struct QueryResult(NonNull<PGresult>);

impl QueryResult {
    /// `None` after the last result of a query.
    ///
    /// # Safety
    /// Null, or a result that nothing else frees.
    pub unsafe fn new(raw: *mut PGresult) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    /// The columns of the first row, if there is one; `None` for NULL.
    pub fn row(&self) -> Result<Option<Vec<Option<String>>>, Error> {
        let raw = self.0.as_ptr();
        // SAFETY: a live result; row and columns are in its range.
        unsafe {
            match PQresultStatus(raw) {
                ExecStatusType::PGRES_TUPLES_OK if PQntuples(raw) > 0 => {
                    let value = |column| (PQgetisnull(raw, 0, column) == 0).then(|| string(PQgetvalue(raw, 0, column)));
                    Ok(Some((0..PQnfields(raw)).map(value).collect()))
                }
                ExecStatusType::PGRES_TUPLES_OK | ExecStatusType::PGRES_COMMAND_OK => Ok(None),
                _ => Err(self.error()),
            }
        }
    }

    fn field(&self, code: u8) -> String {
        // SAFETY: a string of the result, or null, copied at once.
        unsafe { string(PQresultErrorField(self.0.as_ptr(), c_int::from(code))) }
    }

    fn error(&self) -> Error {
        let [sqlstate, primary, detail, hint] = [b'C', b'M', b'D', b'H'].map(|code| self.field(code));
        let message = [format!("{primary}."), detail, hint].join(" ");
        Error { sqlstate: Some(sqlstate), message: on_one_line(&message) }
    }
}

impl Drop for QueryResult {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { PQclear(self.0.as_ptr()) };
    }
}
