//! Host names are looked up in threads: the system's resolver waits as long as its configuration says, and no signal ends it.
//! A thread calls the resolver and nothing of PostgreSQL, and takes none of the process's signals.

use super::{Patience, Trouble};
use pgrx::pg_sys;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// The addresses of a name, or why there are none.
type Outcome = Result<Vec<String>, String>;

/// Lives as long as the process, so that a name whose lookup hangs has one thread and not one for each try.
#[derive(Default)]
pub struct Resolver {
    under_way: HashSet<String>,
    answers: Option<Answers>,
}

struct Answers {
    sender: Sender<(String, Outcome)>,
    receiver: Receiver<(String, Outcome)>,
    /// A byte in it wakes the waiting process.
    bell: UnixStream,
    woken: UnixStream,
}

impl Resolver {
    /// Looks up names at once. Waits for all of them, but only for a third of the time if some can be connected to already
    /// (`has_others`: some need no lookup), and not at all for those whose lookup hung before.
    pub fn look_up(
        &mut self,
        names: &[&str],
        has_others: bool,
        patience: Patience,
    ) -> Result<HashMap<String, Outcome>, Trouble> {
        let mut found = HashMap::new();
        if names.is_empty() {
            return Ok(found);
        }
        self.collect(&mut found).map_err(|error| Trouble::new(format!("could not look up names: {error}")))?;
        let is_new = |name: &&&str| !found.contains_key(**name) && !self.under_way.contains(**name);
        let new: HashSet<&str> = names.iter().filter(is_new).copied().collect();
        for name in &new {
            if let Err(error) = self.begin(name) {
                found.insert((*name).to_owned(), Err(format!("could not look up host name \"{name}\": {error}")));
            }
        }
        let (deadline, soon) = (patience.deadline(), patience.for_time(patience.time / 3).deadline());
        loop {
            let is_missing = |name: &&str| !found.contains_key(*name);
            let is_usable = has_others || found.values().any(Outcome::is_ok);
            let limit = match (names.iter().any(is_missing), is_usable) {
                (true, false) => deadline,
                (true, true) if new.iter().any(is_missing) => soon,
                _ => break,
            };
            let Some(answers) = &self.answers else { break };
            if !limit.wait(answers.woken.as_raw_fd(), pg_sys::WL_SOCKET_READABLE)? {
                break;
            }
            self.collect(&mut found).map_err(|error| Trouble::new(format!("could not look up names: {error}")))?;
        }
        for name in names {
            let late =
                || format!("the lookup of host name \"{name}\" has not ended within {} ms", patience.time.as_millis());
            found.entry((*name).to_owned()).or_insert_with(|| Err(late()));
        }
        Ok(found)
    }

    /// Takes the answers that have come.
    fn collect(&mut self, found: &mut HashMap<String, Outcome>) -> io::Result<()> {
        let Some(answers) = &mut self.answers else { return Ok(()) };
        // Before the answers: the byte of one that comes in between stays.
        match answers.woken.read(&mut [0; 64]) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        for (name, outcome) in answers.receiver.try_iter() {
            self.under_way.remove(&name);
            found.insert(name, outcome);
        }
        Ok(())
    }

    fn begin(&mut self, name: &str) -> io::Result<()> {
        if self.answers.is_none() {
            self.answers = Some(Answers::new()?);
        }
        let answers = self.answers.as_ref().expect("made above");
        let (sender, mut bell) = (answers.sender.clone(), answers.bell.try_clone()?);
        let host = name.to_owned();
        let thread = move || {
            let outcome = addresses(&host);
            // The process that would read them may have ended.
            let _ = sender.send((host, outcome));
            let _ = bell.write(&[0]);
        };
        without_signals(|| thread::Builder::new().name("idgen resolver".to_owned()).spawn(thread))?;
        self.under_way.insert(name.to_owned());
        Ok(())
    }
}

impl Answers {
    fn new() -> io::Result<Self> {
        let (bell, woken) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let (sender, receiver) = channel();
        Ok(Self { sender, receiver, bell, woken })
    }
}

/// As the system says: waits, without limit.
fn addresses(name: &str) -> Outcome {
    let text = |address: SocketAddr| match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => format!("{}%{}", address.ip(), address.scope_id()),
        _ => address.ip().to_string(),
    };
    match (name, 0).to_socket_addrs() {
        Ok(found) => Ok(found.map(text).collect()),
        Err(error) => {
            // The text of std is a sentence of its own, then the resolver's.
            let error = error.to_string();
            let reason = error.strip_prefix("failed to lookup address information: ").unwrap_or(&error);
            Err(format!("could not translate host name \"{name}\" to address: {reason}"))
        }
    }
}

/// Runs a function with all signals blocked. A thread that it starts keeps them blocked.
fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals that are locals; the mask is this thread's.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let outcome = run();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        outcome
    }
}
