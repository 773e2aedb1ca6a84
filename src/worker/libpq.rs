//! A connection to another server: libpq, asynchronous, waiting on the latch, so that neither the network nor the other server
//! keeps a stop of this one waiting. (To find the address of a name does: that is the system's.) The one file that calls libpq.

use idgen_core::worker::coordinator::rotated;
use pgrx::prelude::*;
use pq_sys::*;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::time::{Duration, Instant};

/// Why there is no connection, or no answer.
pub struct Trouble {
    /// `None` where it is not the other server that says so.
    pub sqlstate: Option<String>,
    pub message: String,
}

impl Trouble {
    pub fn new(message: impl Into<String>) -> Self {
        Self { sqlstate: None, message: message.into() }
    }
}

pub struct Connection {
    raw: NonNull<PGconn>,
    /// A warning since the last query was sent. At a place of its own, which libpq keeps.
    warning: Box<RefCell<Option<String>>>,
}

/// The lists that say where to connect to, with what a service file or the environment adds.
#[derive(Default)]
pub struct Hosts(Vec<(CString, String)>);

const LISTS: [&CStr; 3] = [c"host", c"hostaddr", c"port"];

impl Connection {
    /// Connects, beginning with the host number `turn` of those that the last try has left in `hosts`. libpq goes on to the
    /// next one when a host refuses, but not when it is silent.
    pub fn open(conninfo: &CStr, hosts: &mut Hosts, turn: usize, patience: Duration) -> Result<Self, Trouble> {
        refuse_nonsense(conninfo)?;
        let deadline = Instant::now() + patience;
        let rotated: Vec<_> =
            hosts.0.iter().map(|(list, value)| (list.clone(), c_string(&rotated(value, turn)))).collect();
        // What stands before the connection string holds where that says nothing else: a standby grants nothing, so it is
        // passed over. What stands after it, always.
        let mut options = vec![
            (c"target_session_attrs", c"read-write"),
            (c"fallback_application_name", c"idgen keeper"),
            (c"dbname", conninfo),
        ];
        options.extend(rotated.iter().map(|(list, value)| (list.as_c_str(), value.as_c_str())));
        let end = std::iter::once(null());
        let keywords: Vec<_> = options.iter().map(|(keyword, _)| keyword.as_ptr()).chain(end.clone()).collect();
        let values: Vec<_> = options.iter().map(|(_, value)| value.as_ptr()).chain(end).collect();
        // SAFETY: two arrays of C strings, of one length, each with a null at its end; 1: "dbname" is a connection string.
        let raw = NonNull::new(unsafe { PQconnectStartParams(keywords.as_ptr(), values.as_ptr(), 1) });
        let connection = Self { raw: raw.ok_or_else(|| Trouble::new("out of memory"))?, warning: Box::default() };
        if hosts.0.is_empty() {
            *hosts = connection.hosts();
        }
        connection.finish(deadline, patience)?;
        let place: *const RefCell<Option<String>> = &*connection.warning;
        // SAFETY: the box lives as long as the connection, and the function takes what it is given for that.
        unsafe { PQsetNoticeReceiver(connection.raw.as_ptr(), Some(on_notice), place.cast_mut().cast()) };
        Ok(connection)
    }

    fn finish(&self, deadline: Instant, patience: Duration) -> Result<(), Trouble> {
        // SAFETY: a connection that was begun. What is wrong with its options is wrong before there is a socket.
        if unsafe { PQstatus(self.raw.as_ptr()) } == ConnStatusType::CONNECTION_BAD {
            return Err(self.trouble());
        }
        let mut state = PostgresPollingStatusType::PGRES_POLLING_WRITING;
        loop {
            match state {
                PostgresPollingStatusType::PGRES_POLLING_OK => return Ok(()),
                PostgresPollingStatusType::PGRES_POLLING_FAILED => return Err(self.trouble()),
                PostgresPollingStatusType::PGRES_POLLING_READING => self.wait(pg_sys::WL_SOCKET_READABLE, deadline),
                _ => self.wait(pg_sys::WL_SOCKET_WRITEABLE, deadline),
            }
            .then_some(())
            .ok_or_else(|| self.not_in_time(patience))?;
            // SAFETY: a connection that was begun and has neither come about nor failed.
            state = unsafe { PQconnectPoll(self.raw.as_ptr()) };
        }
    }

    /// Runs a query that returns one row at the most, and waits until the server is ready for the next: only then has the
    /// transaction committed. A warning is no success, as that a synchronous standby was not waited for.
    pub fn query(&mut self, sql: &CStr, params: &[&str], patience: Duration) -> Result<Vec<Option<String>>, Trouble> {
        let deadline = Instant::now() + patience;
        let params: Vec<_> = params.iter().map(|param| c_string(param)).collect();
        let values: Vec<_> = params.iter().map(|param| param.as_ptr()).collect();
        self.warning.take();
        // SAFETY: as many C strings as are said; null: types are found out, and all is text.
        let sent = unsafe {
            let count = values.len() as c_int;
            PQsendQueryParams(self.raw.as_ptr(), sql.as_ptr(), count, null(), values.as_ptr(), null(), null(), 0)
        };
        if sent == 0 {
            return Err(self.trouble());
        }
        let mut outcome = Ok(Vec::new());
        while let Some(result) = self.next_result(deadline, patience)? {
            // What goes wrong at the commit comes after the row.
            outcome = outcome.and_then(|row| Ok(result.row()?.unwrap_or(row)));
        }
        if let Some(message) = self.warning.take() {
            outcome = Err(Trouble::new(message));
        }
        // Whose words these are is not to be seen from them.
        outcome.map_err(|trouble| Trouble { message: format!("{}: {}", self.host(), trouble.message), ..trouble })
    }

    fn next_result(&self, deadline: Instant, patience: Duration) -> Result<Option<Answer>, Trouble> {
        let raw = self.raw.as_ptr();
        // SAFETY: an open connection, here and below.
        while unsafe { PQisBusy(raw) } != 0 {
            if !self.wait(pg_sys::WL_SOCKET_READABLE, deadline) {
                return Err(self.not_in_time(patience));
            }
            // SAFETY: as above.
            if unsafe { PQconsumeInput(raw) } == 0 {
                return Err(self.trouble());
            }
        }
        // SAFETY: as above. It does not block now.
        Ok(NonNull::new(unsafe { PQgetResult(raw) }).map(Answer))
    }

    /// Waits for the socket. False when the time is over.
    fn wait(&self, event: u32, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH | event;
            // SAFETY: every process has its latch; the socket is that of an open connection.
            let met = unsafe {
                let (latch, socket) = (pg_sys::MyLatch, PQsocket(self.raw.as_ptr()));
                let ms = left.as_millis().max(1) as i64;
                let met = pg_sys::WaitLatchOrSocket(latch, events as i32, socket, ms, pg_sys::PG_WAIT_EXTENSION);
                pg_sys::ResetLatch(latch);
                met
            };
            check_for_interrupts!();
            if met as u32 & event != 0 {
                return true;
            }
        }
    }

    /// Host and port, of the one that it is connected or connecting to.
    pub fn host(&self) -> String {
        // SAFETY: strings of an open connection, or null, copied at once.
        let [host, port] = unsafe { [PQhost(self.raw.as_ptr()), PQport(self.raw.as_ptr())].map(|text| string(text)) };
        format!("{host}:{port}")
    }

    fn hosts(&self) -> Hosts {
        let mut hosts = Hosts::default();
        // SAFETY: an array of options that ends with one without a keyword, freed after.
        unsafe {
            let options = PQconninfo(self.raw.as_ptr());
            let mut option = options;
            while !option.is_null() && !(*option).keyword.is_null() {
                let (keyword, value) = (CStr::from_ptr((*option).keyword), string((*option).val));
                if LISTS.contains(&keyword) && !value.is_empty() {
                    hosts.0.push((keyword.to_owned(), value));
                }
                option = option.add(1);
            }
            PQconninfoFree(options);
        }
        hosts
    }

    fn not_in_time(&self, patience: Duration) -> Trouble {
        Trouble::new(format!("{} has not answered within {} ms", self.host(), patience.as_millis()))
    }

    fn trouble(&self) -> Trouble {
        // SAFETY: a string of an open connection, copied at once.
        Trouble::new(on_one_line(&unsafe { string(PQerrorMessage(self.raw.as_ptr())) }))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { PQfinish(self.raw.as_ptr()) };
    }
}

/// A result of libpq's.
struct Answer(NonNull<PGresult>);

impl Answer {
    /// Its row, if it has one.
    fn row(&self) -> Result<Option<Vec<Option<String>>>, Trouble> {
        let raw = self.0.as_ptr();
        // SAFETY: a result that lives; rows and columns are among those that it has.
        unsafe {
            match PQresultStatus(raw) {
                ExecStatusType::PGRES_TUPLES_OK if PQntuples(raw) > 0 => {
                    let value = |column| (PQgetisnull(raw, 0, column) == 0).then(|| string(PQgetvalue(raw, 0, column)));
                    Ok(Some((0..PQnfields(raw)).map(value).collect()))
                }
                ExecStatusType::PGRES_TUPLES_OK | ExecStatusType::PGRES_COMMAND_OK => Ok(None),
                _ => Err(self.trouble()),
            }
        }
    }

    fn field(&self, code: u8) -> String {
        // SAFETY: a string of the result, or null, copied at once.
        unsafe { string(PQresultErrorField(self.0.as_ptr(), c_int::from(code))) }
    }

    fn trouble(&self) -> Trouble {
        let [sqlstate, primary, detail, hint] = [b'C', b'M', b'D', b'H'].map(|code| self.field(code));
        let message = [format!("{primary}."), detail, hint].join(" ");
        Trouble { sqlstate: Some(sqlstate), message: on_one_line(&message) }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { PQclear(self.0.as_ptr()) };
    }
}

/// Keeps a warning. What is no warning is of no interest here, and not for the server's log.
unsafe extern "C" fn on_notice(place: *mut c_void, result: *const PGresult) {
    // SAFETY: what was given with the function; libpq's strings, copied at once.
    unsafe {
        let field = |code: u8| string(PQresultErrorField(result, c_int::from(code)));
        if field(b'V') == "WARNING" {
            (*place.cast::<RefCell<Option<String>>>()).replace(Some(on_one_line(&field(b'M'))));
        }
    }
}

/// What libpq says of a connection string that it does not understand can be a part of a password.
fn refuse_nonsense(conninfo: &CStr) -> Result<(), Trouble> {
    // SAFETY: a C string; null: the message is not wanted. What comes is freed, null or not.
    let is_understood = unsafe {
        let options = PQconninfoParse(conninfo.as_ptr(), null_mut());
        PQconninfoFree(options);
        !options.is_null()
    };
    match is_understood {
        true => Ok(()),
        false => Err(Trouble::new("idgen.coordinator is no connection string that libpq understands")),
    }
}

/// # Safety
/// Null or a C string.
unsafe fn string(text: *const c_char) -> String {
    // SAFETY: by the above.
    if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
}

/// What has a NUL in it ends there, as for all of PostgreSQL.
fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

fn on_one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
