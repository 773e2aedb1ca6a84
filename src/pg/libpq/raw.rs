//! A connection of libpq in any state, the results of its queries, its error, and how long a call waits for the network.

use crate::pg::latch::{self, WaitEvent};
use pgrx::pg_sys;
use pq_sys::*;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{NonNull, null};
use std::time::{Duration, Instant};

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
    pub fn next_result(&self, deadline: Deadline) -> Result<Option<QueryResult>, Error> {
        // SAFETY: an open connection. Once it is not busy, `PQgetResult` does not block; nothing else frees the result.
        unsafe {
            while PQisBusy(self.as_ptr()) != 0 {
                if !deadline.wait(PQsocket(self.as_ptr()), pg_sys::WL_SOCKET_READABLE)? {
                    return Err(self.timed_out(deadline.timeout));
                }
                if PQconsumeInput(self.as_ptr()) == 0 {
                    return Err(self.error());
                }
            }
            Ok(NonNull::new(PQgetResult(self.as_ptr())).map(QueryResult))
        }
    }

    /// False once the connection has ended.
    pub fn is_open(&self) -> bool {
        // SAFETY: a connection in any state.
        unsafe { PQstatus(self.as_ptr()) == ConnStatusType::CONNECTION_OK }
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

pub struct QueryResult(NonNull<PGresult>);

impl QueryResult {
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

    fn error(&self) -> Error {
        // SAFETY: a string of the result, or null, copied at once.
        let field = |code: u8| unsafe { string(PQresultErrorField(self.0.as_ptr(), code.into())) };
        let [sqlstate, primary, detail, hint] = [b'C', b'M', b'D', b'H'].map(field);
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

/// Why there is no connection, or no result.
#[derive(Debug)]
pub struct Error {
    /// `None` unless the other server has answered with this error.
    pub sqlstate: Option<String>,
    pub message: String,
}

impl Error {
    pub fn new(message: impl Into<String>) -> Self {
        Self { sqlstate: None, message: message.into() }
    }
}

/// A copy of the string; empty for null.
///
/// # Safety
/// Null or a C string.
pub unsafe fn string(text: *const c_char) -> String {
    // SAFETY: by the above.
    if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
}

/// Cuts the text at a NUL, as PostgreSQL does.
pub fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

fn on_one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How long a call waits, and what ends the wait early.
#[derive(Clone, Copy)]
pub struct Timeout {
    pub duration: Duration,
    pub event: &'static WaitEvent,
    /// Tested before each sleep. If true, the call returns an [`Error`].
    pub is_interrupted: fn() -> bool,
}

impl Timeout {
    pub fn deadline(self) -> Deadline {
        Deadline { at: Instant::now() + self.duration, timeout: self }
    }
}

#[derive(Clone, Copy)]
pub struct Deadline {
    at: Instant,
    timeout: Timeout,
}

impl Deadline {
    /// Waits for a socket. False after the deadline.
    pub fn wait(self, socket: c_int, event: u32) -> Result<bool, Error> {
        loop {
            if (self.timeout.is_interrupted)() {
                return Err(Error::new("interrupted"));
            }
            let left = self.at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if latch::wait_or_socket(socket, event, left.max(Duration::from_millis(1)), self.timeout.event) {
                return Ok(true);
            }
        }
    }
}
