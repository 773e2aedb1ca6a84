//! Connections to another server: libpq, asynchronous, waiting on the latch. So neither the network nor the other
//! server delays a stop of this one. The only files that call libpq are here.
//!
//! Threads look up host names: the system's resolver waits as long as its configuration says, and no signal ends it. A
//! thread calls nothing of PostgreSQL, and handles none of the process's signals.

use idgen_core::hosts::{Host, HostLists, attempt_limit, connect_timeout};
use pgrx::pg_sys;
use pq_sys::*;
use raw::{RawConnection, c_string, string};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_int, c_void};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

mod raw;

pub use raw::{Error, Timeout};

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

/// Without the text: it can hold a password.
pub const INVALID_CONNECTION_STRING: &str = "the connection string is invalid";

pub struct Options {
    pub lists: HostLists,
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
        require_valid(conninfo)?;
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
        Ok(Self { lists: HostLists { host, hostaddr, port }, connect_timeout, session_default })
    }

    /// The hosts at each of their addresses, in the order of the lists, and an error for each host without one.
    pub fn addresses(&self, resolver: &mut Resolver, timeout: Timeout) -> Result<(Vec<Host>, Vec<Error>), Error> {
        let targets = self.lists.hosts();
        let names: Vec<&str> = targets.iter().filter_map(Host::name).collect();
        let found = resolver.look_up(&names, names.len() < targets.len(), timeout)?;
        let (mut addresses, mut errors) = (Vec::new(), Vec::new());
        for target in &targets {
            match target.name().and_then(|name| found.get(name)) {
                None => addresses.push(target.clone()),
                Some(Ok(found)) => addresses.extend(found.iter().map(|address| target.at(address.clone()))),
                Some(Err(message)) => errors.push(Error::new(message)),
            }
        }
        Ok((addresses, errors))
    }
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

/// Hides libpq's message about a connection string that it cannot parse: it may quote part of a password.
fn require_valid(conninfo: &CStr) -> Result<(), Error> {
    // SAFETY: a C string; null: returns no message. Null options may be freed.
    let is_valid = unsafe {
        let options = PQconninfoParse(conninfo.as_ptr(), null_mut());
        PQconninfoFree(options);
        !options.is_null()
    };
    match is_valid {
        true => Ok(()),
        false => Err(Error::new(INVALID_CONNECTION_STRING)),
    }
}

/// The addresses of a name, or why there are none.
type Addresses = Result<Vec<String>, String>;

/// Lives as long as the process, so that a name whose lookup hangs has one thread, not one for each try.
#[derive(Default)]
pub struct Resolver {
    /// Names whose lookup has not ended.
    running: HashSet<String>,
    answers: Option<Answers>,
}

struct Answers {
    sender: Sender<(String, Addresses)>,
    receiver: Receiver<(String, Addresses)>,
    /// A byte written here wakes the waiting process.
    wake_writer: UnixStream,
    wake_reader: UnixStream,
}

impl Resolver {
    /// Looks up all names at once. Waits for them for the whole timeout, or for a third of it if some hosts are usable
    /// already (`has_others`: hosts that need no lookup). Does not wait for a name whose earlier lookup still hangs.
    pub fn look_up(
        &mut self,
        names: &[&str],
        has_others: bool,
        timeout: Timeout,
    ) -> Result<HashMap<String, Addresses>, Error> {
        let mut found = HashMap::new();
        if names.is_empty() {
            return Ok(found);
        }
        self.collect(&mut found).map_err(|error| Error::new(format!("could not look up names: {error}")))?;
        let is_new = |name: &&&str| !found.contains_key(**name) && !self.running.contains(**name);
        let new: HashSet<&str> = names.iter().filter(is_new).copied().collect();
        for name in &new {
            if let Err(error) = self.begin(name) {
                found.insert((*name).to_owned(), Err(format!("could not look up host name \"{name}\": {error}")));
            }
        }
        let (deadline, soon) = (timeout.deadline(), timeout.with_duration(timeout.duration / 3).deadline());
        loop {
            let is_missing = |name: &&str| !found.contains_key(*name);
            let is_usable = has_others || found.values().any(Addresses::is_ok);
            let limit = match (names.iter().any(is_missing), is_usable) {
                (true, false) => deadline,
                (true, true) if new.iter().any(is_missing) => soon,
                _ => break,
            };
            let Some(answers) = &self.answers else { break };
            if !limit.wait(answers.wake_reader.as_raw_fd(), pg_sys::WL_SOCKET_READABLE)? {
                break;
            }
            self.collect(&mut found).map_err(|error| Error::new(format!("could not look up names: {error}")))?;
        }
        for name in names {
            let late = || {
                format!("the lookup of host name \"{name}\" has not ended within {} ms", timeout.duration.as_millis())
            };
            found.entry((*name).to_owned()).or_insert_with(|| Err(late()));
        }
        Ok(found)
    }

    /// Takes the answers that have arrived.
    fn collect(&mut self, found: &mut HashMap<String, Addresses>) -> io::Result<()> {
        let Some(answers) = &mut self.answers else { return Ok(()) };
        // First the bytes, then the answers: an answer that arrives in between keeps its byte.
        match answers.wake_reader.read(&mut [0; 64]) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        for (name, outcome) in answers.receiver.try_iter() {
            self.running.remove(&name);
            found.insert(name, outcome);
        }
        Ok(())
    }

    fn begin(&mut self, name: &str) -> io::Result<()> {
        if self.answers.is_none() {
            self.answers = Some(Answers::new()?);
        }
        let answers = self.answers.as_ref().expect("made above");
        let (sender, mut waker) = (answers.sender.clone(), answers.wake_writer.try_clone()?);
        let host = name.to_owned();
        let thread = move || {
            let outcome = addresses(&host);
            // The process may be exiting, with no reader left.
            let _ = sender.send((host, outcome));
            let _ = waker.write(&[0]);
        };
        without_signals(|| thread::Builder::new().name("resolver".to_owned()).spawn(thread))?;
        self.running.insert(name.to_owned());
        Ok(())
    }
}

impl Answers {
    fn new() -> io::Result<Self> {
        let (wake_writer, wake_reader) = UnixStream::pair()?;
        wake_writer.set_nonblocking(true)?;
        wake_reader.set_nonblocking(true)?;
        let (sender, receiver) = channel();
        Ok(Self { sender, receiver, wake_writer, wake_reader })
    }
}

/// Asks the system's resolver, without a time limit.
fn addresses(name: &str) -> Addresses {
    let text = |address: SocketAddr| match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => format!("{}%{}", address.ip(), address.scope_id()),
        _ => address.ip().to_string(),
    };
    match (name, 0).to_socket_addrs() {
        Ok(found) => Ok(found.map(text).collect()),
        Err(error) => {
            // The text of std is a sentence, then the resolver's reason.
            let error = error.to_string();
            let reason = error.strip_prefix("failed to lookup address information: ").unwrap_or(&error);
            Err(format!("could not translate host name \"{name}\" to address: {reason}"))
        }
    }
}

/// Runs a function with all signals blocked. A thread that the function starts inherits that.
fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: the sets of signals are locals; the mask is this thread's.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let outcome = run();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        outcome
    }
}
