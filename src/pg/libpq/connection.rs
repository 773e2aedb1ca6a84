//! One connection: how it comes about, and queries.

use super::answer::Answer;
use super::options::Options;
use super::{Deadline, Patience, Resolver, Trouble, c_string, on_one_line, string};
use idgen_core::worker::targets::{Target, attempt_limit};
use pgrx::pg_sys;
use pq_sys::*;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::time::{Duration, Instant};

pub struct Connection(Raw);

/// A connection of libpq's, whatever its state.
pub struct Raw(NonNull<PGconn>);

impl Connection {
    /// Connects to the first address that answers, beginning with number `turn` of them, counted round and round.
    pub fn open(
        conninfo: &CStr,
        application: &CStr,
        resolver: &mut Resolver,
        turn: usize,
        patience: Patience,
    ) -> Result<Self, Trouble> {
        let options = Options::of(conninfo)?;
        let begun = Instant::now();
        let (mut targets, mut troubles) = options.addresses(resolver, patience)?;
        let first = turn.checked_rem(targets.len()).unwrap_or(0);
        targets.rotate_left(first);
        // Whole milliseconds, so that a single address gets, and is said to have had, all of it.
        let left =
            |begun: Instant| patience.time.saturating_sub(Duration::from_millis(begun.elapsed().as_millis() as u64));
        for (index, target) in targets.iter().enumerate() {
            let attempts_left = (targets.len() - index) as u32;
            let time = attempt_limit(patience.time, left(begun), attempts_left, options.connect_timeout);
            if time.is_zero() {
                troubles.push(Trouble::new(format!("no time was left for {attempts_left} other addresses")));
                break;
            }
            match Self::attempt(conninfo, application, &options, target, patience.for_time(time)) {
                Ok(connection) => return Ok(connection),
                Err(trouble) if (patience.is_interrupted)() => return Err(trouble),
                Err(trouble) => troubles.push(trouble),
            }
        }
        let messages: Vec<_> = troubles.into_iter().map(|trouble| trouble.message).collect();
        Err(Trouble::new(messages.join("; ")))
    }

    fn attempt(
        conninfo: &CStr,
        application: &CStr,
        options: &Options,
        target: &Target,
        patience: Patience,
    ) -> Result<Self, Trouble> {
        let lists = options.lists.narrowed_to(target);
        let [host, hostaddr, port] = [&lists.host, &lists.hostaddr, &lists.port].map(|value| c_string(value));
        let raw = start(&[
            (c"target_session_attrs", &options.session_default),
            (c"fallback_application_name", application),
            (c"dbname", conninfo),
            // After the connection string, whose values they replace.
            (c"host", &host),
            (c"hostaddr", &hostaddr),
            (c"port", &port),
        ])?;
        raw.finish(patience)?;
        // SAFETY: an open connection; the function needs no argument. Without it libpq prints notices to the server's log.
        unsafe { PQsetNoticeReceiver(raw.as_ptr(), Some(ignore_notice), null_mut()) };
        Ok(Self(raw))
    }

    /// Runs a query that returns one row at most, and waits until the server is ready for the next one: only then has the
    /// transaction committed.
    pub fn query(&mut self, sql: &CStr, params: &[&str], patience: Patience) -> Result<Vec<Option<String>>, Trouble> {
        let deadline = patience.deadline();
        let params: Vec<_> = params.iter().map(|param| c_string(param)).collect();
        let values: Vec<_> = params.iter().map(|param| param.as_ptr()).collect();
        let raw = &self.0;
        // SAFETY: `count` C strings; null: the server infers the types, and all is text.
        let sent = unsafe {
            let count = values.len() as c_int;
            PQsendQueryParams(raw.as_ptr(), sql.as_ptr(), count, null(), values.as_ptr(), null(), null(), 0)
        };
        if sent == 0 {
            return Err(raw.trouble());
        }
        let mut outcome: Result<_, Trouble> = Ok(Vec::new());
        while let Some(answer) = raw.next_answer(deadline, patience)? {
            // An error at commit comes after the row.
            outcome = outcome.and_then(|row| Ok(answer.row()?.unwrap_or(row)));
        }
        // The server's message does not say which server it is.
        outcome.map_err(|trouble| Trouble { message: format!("{}: {}", self.host(), trouble.message), ..trouble })
    }

    /// Host and port of the server.
    pub fn host(&self) -> String {
        let [host, port] = self.0.place();
        format!("{host}:{port}")
    }
}

/// Begins a connection.
pub fn start(options: &[(&CStr, &CStr)]) -> Result<Raw, Trouble> {
    let end = std::iter::once(null());
    let keywords: Vec<_> = options.iter().map(|(keyword, _)| keyword.as_ptr()).chain(end.clone()).collect();
    let values: Vec<_> = options.iter().map(|(_, value)| value.as_ptr()).chain(end).collect();
    // SAFETY: two arrays of C strings, of one length, each with a null at its end; 1: "dbname" is a connection string.
    let raw = unsafe { PQconnectStartParams(keywords.as_ptr(), values.as_ptr(), 1) };
    NonNull::new(raw).map(Raw).ok_or_else(|| Trouble::new("out of memory"))
}

impl Raw {
    pub fn as_ptr(&self) -> *mut PGconn {
        self.0.as_ptr()
    }

    fn finish(&self, patience: Patience) -> Result<(), Trouble> {
        let deadline = patience.deadline();
        // SAFETY: a connection that was begun. One with wrong options is bad before there is a socket.
        if unsafe { PQstatus(self.as_ptr()) } == ConnStatusType::CONNECTION_BAD {
            return Err(self.trouble());
        }
        let mut state = PostgresPollingStatusType::PGRES_POLLING_WRITING;
        loop {
            let event = match state {
                PostgresPollingStatusType::PGRES_POLLING_OK => return Ok(()),
                PostgresPollingStatusType::PGRES_POLLING_FAILED => return Err(self.trouble()),
                PostgresPollingStatusType::PGRES_POLLING_READING => pg_sys::WL_SOCKET_READABLE,
                _ => pg_sys::WL_SOCKET_WRITEABLE,
            };
            // SAFETY: a connection under way, here and below, has a socket.
            if !deadline.wait(unsafe { PQsocket(self.as_ptr()) }, event)? {
                return Err(self.not_in_time(patience));
            }
            // SAFETY: as above.
            state = unsafe { PQconnectPoll(self.as_ptr()) };
        }
    }

    fn next_answer(&self, deadline: Deadline, patience: Patience) -> Result<Option<Answer>, Trouble> {
        // SAFETY: an open connection, here and below.
        while unsafe { PQisBusy(self.as_ptr()) } != 0 {
            // SAFETY: as above.
            if !deadline.wait(unsafe { PQsocket(self.as_ptr()) }, pg_sys::WL_SOCKET_READABLE)? {
                return Err(self.not_in_time(patience));
            }
            // SAFETY: as above.
            if unsafe { PQconsumeInput(self.as_ptr()) } == 0 {
                return Err(self.trouble());
            }
        }
        // SAFETY: as above. It does not block now, and the result is this caller's.
        Ok(unsafe { Answer::new(PQgetResult(self.as_ptr())) })
    }

    fn place(&self) -> [String; 2] {
        // SAFETY: strings of the connection, or null, copied at once.
        unsafe { [PQhost(self.as_ptr()), PQport(self.as_ptr())].map(|text| string(text)) }
    }

    fn not_in_time(&self, patience: Patience) -> Trouble {
        let [host, port] = self.place();
        // SAFETY: a string of the connection, or null, copied at once.
        let address = unsafe { string(PQhostaddr(self.as_ptr())) };
        let address = if address.is_empty() || address == host { String::new() } else { format!(" ({address})") };
        Trouble::new(format!("{host}{address}:{port} has not answered within {} ms", patience.time.as_millis()))
    }

    pub fn trouble(&self) -> Trouble {
        // SAFETY: a string of the connection, copied at once.
        Trouble::new(on_one_line(&unsafe { string(PQerrorMessage(self.as_ptr())) }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { PQfinish(self.as_ptr()) };
    }
}

unsafe extern "C" fn ignore_notice(_argument: *mut c_void, _result: *const PGresult) {}
