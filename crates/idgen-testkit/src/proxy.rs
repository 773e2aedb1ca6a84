//! A proxy before a cluster: a way to it by TCP, and connections over which nothing passes any more, as when a network is
//! cut and neither end is told.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tempfile::TempDir;

use crate::builder::private_dir;
use crate::cluster::Cluster;
use crate::connect::{PORT, connect_string};
use crate::programs::give_to_server;

/// How long a thread is inside one read or write at most, before it looks whether the proxy has ended.
const TICK: Duration = Duration::from_millis(20);

/// Forwards connections to a cluster, which need not run all the time. They end when this is dropped.
pub struct Proxy {
    host: String,
    port: String,
    gate: Arc<Gate>,
    /// Shutting it down ends the acceptor. `UnixStream` is what std has for a socket of whatever family that is connected
    /// or listens: reads, writes, timeouts and shutdowns are the same for all of them.
    listening: UnixStream,
    acceptor: Option<JoinHandle<()>>,
    _dir: Option<TempDir>,
}

impl Proxy {
    /// On a free port of 127.0.0.1.
    pub fn on_tcp(cluster: &Cluster) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let listening = OwnedFd::from(listener.try_clone().expect("a socket can be shared"));
        let accept = move || {
            let (client, _) = listener.accept()?;
            client.set_nodelay(true)?;
            Ok(OwnedFd::from(client))
        };
        Proxy::start(cluster, Ipv4Addr::LOCALHOST.to_string(), port.to_string(), listening, accept, None)
    }

    /// On a Unix socket, in a directory of its own that servers can enter too.
    pub fn on_socket(cluster: &Cluster) -> Proxy {
        let dir = private_dir();
        let path = socket(dir.path());
        let listener = UnixListener::bind(&path).expect("a new directory");
        give_to_server(&path);
        let listening = OwnedFd::from(listener.try_clone().expect("a socket can be shared"));
        let accept = move || Ok(OwnedFd::from(listener.accept()?.0));
        let host = dir.path().to_string_lossy().into_owned();
        Proxy::start(cluster, host, PORT.to_owned(), listening, accept, Some(dir))
    }

    fn start(
        cluster: &Cluster,
        host: String,
        port: String,
        listening: OwnedFd,
        accept: impl Fn() -> io::Result<OwnedFd> + Send + 'static,
        dir: Option<TempDir>,
    ) -> Proxy {
        let gate = Gate { state: Mutex::new(State::Open), changed: Condvar::new(), accepted: AtomicUsize::new(0) };
        let gate = Arc::new(gate);
        let (passage, target) = (Arc::clone(&gate), socket(cluster.dir()));
        let acceptor = thread::spawn(move || {
            thread::scope(|scope| {
                while let Ok(client) = accept() {
                    passage.accepted.fetch_add(1, Ordering::Relaxed);
                    scope.spawn(|| serve(client.into(), &target, &passage));
                }
            })
        });
        Proxy { host, port, gate, listening: listening.into(), acceptor: Some(acceptor), _dir: dir }
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> &str {
        &self.port
    }

    /// As [`Cluster::connect_string`], through the proxy.
    pub fn connect_string(&self, database: &str, user: &str) -> String {
        connect_string(&self.host, &self.port, user, database)
    }

    /// How many connections it has taken, those that hang included.
    pub fn accepted(&self) -> usize {
        self.gate.accepted.load(Ordering::Relaxed)
    }

    /// When this returns nothing passes any more, in either direction, neither bytes nor the end of a connection. New
    /// connections are accepted, and hang.
    pub fn stop_forwarding(&self) {
        self.gate.set(State::Stopped);
    }

    /// All that was kept back passes.
    pub fn go_on(&self) {
        self.gate.set(State::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.gate.set(State::Ended);
        let _ = self.listening.shutdown(Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

#[derive(PartialEq)]
enum State {
    Open,
    Stopped,
    Ended,
}

/// What all that passes goes through.
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    accepted: AtomicUsize,
}

impl Gate {
    /// Waits until something may pass. The gate stays as it is while the guard lives; `None` when the proxy has ended.
    fn pass(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock().expect("nobody panics with it");
        let state = self.changed.wait_while(state, |state| *state == State::Stopped).expect("nobody panics with it");
        (*state == State::Open).then_some(state)
    }

    fn has_ended(&self) -> bool {
        *self.state.lock().expect("nobody panics with it") == State::Ended
    }

    fn set(&self, state: State) {
        *self.state.lock().expect("nobody panics with it") = state;
        self.changed.notify_all();
    }
}

/// Where a server with the harness's port listens.
fn socket(dir: &Path) -> PathBuf {
    dir.join(format!(".s.PGSQL.{PORT}"))
}

/// One connection. `None` when it did not come about.
fn serve(client: UnixStream, target: &Path, gate: &Gate) -> Option<()> {
    let passing = gate.pass()?;
    let server = UnixStream::connect(target).ok()?;
    drop(passing);
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TICK)).ok()?;
        stream.set_write_timeout(Some(TICK)).ok()?;
    }
    thread::scope(|scope| {
        scope.spawn(|| forward(&server, &client, gate));
        forward(&client, &server, gate);
    });
    Some(())
}

/// One direction, to its end and with it.
fn forward(mut from: &UnixStream, to: &UnixStream, gate: &Gate) {
    let mut buffer = [0; 1 << 14];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) if write(to, &buffer[..length], gate).is_some() => {}
            Err(error) if is_tick(&error) && !gate.has_ended() => {}
            _ => break,
        }
    }
    let _passing = gate.pass();
    let _ = to.shutdown(Shutdown::Write);
}

/// `None` when it cannot be written.
fn write(mut to: &UnixStream, mut bytes: &[u8], gate: &Gate) -> Option<()> {
    while !bytes.is_empty() {
        let _passing = gate.pass()?;
        match to.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            // Whoever does not read must not keep the gate.
            Err(error) if is_tick(&error) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

fn is_tick(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
