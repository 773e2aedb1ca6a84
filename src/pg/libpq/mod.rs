//! Connections to another server: libpq, asynchronous, waiting on the latch. So neither the network nor the other
//! server delays a stop of this one; only a name service that does not answer may, as it delays that of a walreceiver.
//! The only files that call libpq are here.

use idgen_core::hosts::{Host, attempt_limit, connect_timeout};
use pq_sys::*;
use raw::{RawConnection, c_string, string};
use std::ffi::{CStr, CString, c_int, c_void};
use std::net::{SocketAddr, ToSocketAddrs};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

mod raw;

pub use raw::{Error, Timeout};

/// An open connection.
pub struct Connection(RawConnection);

impl Connection {
    /// Connects to the first address that answers. A caller that counts its failed tries in `first` begins each at
    /// another host, and at another address of each host. Looks up the name of a host when it comes to it.
    pub fn open(conninfo: &CStr, application: &CStr, first: usize, timeout: Timeout) -> Result<Self, Error> {
        let options = Options::of(conninfo)?;
        let begun = Instant::now();
        // In whole milliseconds, so that a single address gets all of the time, and its error says so.
        let left = || timeout.duration.saturating_sub(Duration::from_millis(begun.elapsed().as_millis() as u64));
        let (mut hosts, mut errors) = (options.lists.hosts(), Vec::new());
        let turn = first / hosts.len();
        let first = first % hosts.len();
        hosts.rotate_left(first);
        for (hosts_left, host) in (0..hosts.len()).rev().zip(&hosts) {
            let targets = match addresses(host, turn) {
                Ok(targets) => targets,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            for (index, target) in targets.iter().enumerate() {
                let attempts_left = (targets.len() - index + hosts_left) as u32;
                let limit = attempt_limit(timeout.duration, left(), attempts_left, options.connect_timeout);
                if limit.is_zero() {
                    errors.push(Error::new(format!("no time was left for {attempts_left} other addresses")));
                    return Err(joined(errors));
                }
                match Self::attempt(conninfo, application, &options, target, Timeout { duration: limit, ..timeout }) {
                    Ok(connection) => return Ok(connection),
                    Err(error) if (timeout.is_interrupted)() => return Err(error),
                    Err(error) => errors.push(error),
                }
            }
        }
        Err(joined(errors))
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
        while let Some(result) = raw.next_result(deadline)? {
            // An error at commit comes after the row.
            outcome = outcome.and_then(|row| Ok(result.row()?.unwrap_or(row)));
        }
        outcome.map_err(|Error { sqlstate, message }| Error {
            // What has ended the connection is no answer to the query.
            sqlstate: sqlstate.filter(|_| self.0.is_open()),
            // The server's message does not name the server.
            message: format!("{}: {message}", self.host()),
        })
    }

    /// Host and port of the server.
    pub fn host(&self) -> String {
        let [host, port] = self.0.host_and_port();
        format!("{host}:{port}")
    }
}

unsafe extern "C" fn ignore_notice(_argument: *mut c_void, _result: *const PGresult) {}

/// Without the text: it can hold a password.
pub const INVALID_CONNECTION_STRING: &str = "the connection string is invalid";

pub struct Options {
    pub lists: Host,
    pub connect_timeout: Option<Duration>,
    /// The default of `target_session_attrs`: passes over servers that are read-only, as standbys are.
    pub session_default: CString,
}

/// Not a valid value of `channel_binding`.
const REFUSED: &CStr = c"only parsed";

impl Options {
    /// libpq merges the service file and the environment only into the options of a connection. So this begins one with
    /// an invalid option, which libpq refuses before it looks up a name or opens a socket.
    pub fn of(conninfo: &CStr) -> Result<Self, Error> {
        // Hides libpq's message about a string that it cannot parse: it may quote part of a password.
        // SAFETY: a C string; null: returns no message. Null options may be freed.
        let is_valid = unsafe {
            let options = PQconninfoParse(conninfo.as_ptr(), null_mut());
            PQconninfoFree(options);
            !options.is_null()
        };
        if !is_valid {
            return Err(Error::new(INVALID_CONNECTION_STRING));
        }
        let raw = RawConnection::start(&[(c"dbname", conninfo), (c"channel_binding", REFUSED)])?;
        let error = raw.error();
        if !error.message.contains(REFUSED.to_str().expect("ASCII")) {
            return Err(error);
        }
        let [host, hostaddr, port, timeout, attributes] =
            values(&raw, [c"host", c"hostaddr", c"port", c"connect_timeout", c"target_session_attrs"]);
        let connect_timeout = connect_timeout(&timeout).map_err(|_| {
            Error::new(format!("invalid integer value \"{timeout}\" for connection option \"connect_timeout\""))
        })?;
        // "any" is libpq's default.
        let session_default = if attributes == "any" { c"read-write".to_owned() } else { c_string(&attributes) };
        Ok(Self { lists: Host { host, hostaddr, port }, connect_timeout, session_default })
    }
}

fn joined(errors: Vec<Error>) -> Error {
    let messages: Vec<_> = errors.into_iter().map(|error| error.message).collect();
    Error::new(messages.join("; "))
}

/// A host at each of its addresses, beginning at another one each turn. A host without a name to look up is one.
fn addresses(host: &Host, turn: usize) -> Result<Vec<Host>, Error> {
    let Some(name) = host.name() else {
        return Ok(vec![host.clone()]);
    };
    let text = |address: SocketAddr| match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => format!("{}%{}", address.ip(), address.scope_id()),
        _ => address.ip().to_string(),
    };
    let found = (name, 0).to_socket_addrs().map_err(|error| {
        // The text of std is a sentence, then the resolver's reason.
        let error = error.to_string();
        let reason = error.strip_prefix("failed to lookup address information: ").unwrap_or(&error);
        Error::new(format!("could not translate host name \"{name}\" to address: {reason}"))
    })?;
    let mut targets: Vec<_> = found.map(|address| host.at(text(address))).collect();
    let first = turn.checked_rem(targets.len()).unwrap_or(0);
    targets.rotate_left(first);
    Ok(targets)
}

fn values<const N: usize>(raw: &RawConnection, keywords: [&CStr; N]) -> [String; N] {
    let mut values = [const { String::new() }; N];
    // SAFETY: an array of options that ends with one without a keyword, freed below.
    unsafe {
        let options = PQconninfo(raw.as_ptr());
        let mut option = options;
        while !option.is_null() && !(*option).keyword.is_null() {
            let keyword = CStr::from_ptr((*option).keyword);
            if let Some(index) = keywords.iter().position(|wanted| *wanted == keyword) {
                values[index] = string((*option).val);
            }
            option = option.add(1);
        }
        PQconninfoFree(options);
    }
    values
}
