//! Looking up host names in threads: the system's resolver waits as long as its configuration says, and no signal ends
//! it. A thread calls nothing of PostgreSQL, and handles none of the process's signals.

use super::error::Error;
use super::timeout::Timeout;
use pgrx::pg_sys;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

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
