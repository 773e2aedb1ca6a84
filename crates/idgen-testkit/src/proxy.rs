//! A proxy in front of a cluster. It offers TCP, and it can stop forwarding without closing connections, as a cut network
//! does.

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
use crate::programs::chown_to_server;

/// The timeout of one read or write, after which a thread checks whether the proxy has ended.
const IO_TIMEOUT: Duration = Duration::from_millis(20);

/// Forwards connections to a cluster, which may be down at times. Dropping the proxy closes the connections.
pub struct Proxy {
    host: String,
    port: String,
    gate: Arc<Gate>,
    /// Shutting it down ends the acceptor. `UnixStream` serves for a socket of any family: reads, writes, timeouts and
    /// shutdowns are the same for all of them.
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

    /// On a Unix socket in a new directory that servers can enter too.
    pub fn on_socket(cluster: &Cluster) -> Proxy {
        let dir = private_dir();
        let path = socket(dir.path());
        let listener = UnixListener::bind(&path).expect("a new directory");
        chown_to_server(&path);
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
        let gate = Gate {
            state: Mutex::new(State::Open),
            changed: Condvar::new(),
            accepted: AtomicUsize::new(0),
            delay: Mutex::default(),
            target: Mutex::new(socket(cluster.dir())),
        };
        let gate = Arc::new(gate);
        let passage = Arc::clone(&gate);
        let acceptor = thread::spawn(move || {
            thread::scope(|scope| {
                while let Ok(client) = accept() {
                    passage.accepted.fetch_add(1, Ordering::Relaxed);
                    scope.spawn(|| serve(client.into(), &passage));
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

    /// As [`Cluster::conninfo`], through the proxy.
    pub fn conninfo(&self) -> String {
        connect_string(&self.host, &self.port, "postgres", "postgres")
    }

    /// The number of accepted connections, including those that hang.
    pub fn accepted(&self) -> usize {
        self.gate.accepted.load(Ordering::Relaxed)
    }

    /// Stops forwarding in both directions, the end of a connection included. New connections are accepted and hang.
    pub fn stop_forwarding(&self) {
        self.gate.set(State::Stopped);
    }

    /// From now on each transfer arrives this much later, as over a slow link.
    pub fn delay(&self, time: Duration) {
        *self.gate.delay.lock().expect("no thread panics with the lock") = time;
    }

    /// New connections go to another cluster.
    pub fn forward_to(&self, cluster: &Cluster) {
        *self.gate.target.lock().expect("no thread panics with the lock") = socket(cluster.dir());
    }

    /// Forwards what was held back, and all that follows.
    pub fn resume_forwarding(&self) {
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

/// Guards every transfer.
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    accepted: AtomicUsize,
    delay: Mutex<Duration>,
    /// The socket of the server.
    target: Mutex<PathBuf>,
}

impl Gate {
    /// Takes the time of one transfer, unless the proxy ends.
    fn travel(&self) {
        let time = *self.delay.lock().expect("no thread panics with the lock");
        let state = self.state.lock().expect("no thread panics with the lock");
        drop(self.changed.wait_timeout_while(state, time, |state| *state != State::Ended));
    }

    /// Waits until the gate is open. The state cannot change while the guard lives. `None` if the proxy has ended.
    fn pass(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock().expect("no thread panics with the lock");
        let state =
            self.changed.wait_while(state, |state| *state == State::Stopped).expect("no thread panics with the lock");
        (*state == State::Open).then_some(state)
    }

    fn has_ended(&self) -> bool {
        *self.state.lock().expect("no thread panics with the lock") == State::Ended
    }

    fn set(&self, state: State) {
        *self.state.lock().expect("no thread panics with the lock") = state;
        self.changed.notify_all();
    }
}

/// The socket of a server with the port of the kit.
fn socket(dir: &Path) -> PathBuf {
    dir.join(format!(".s.PGSQL.{PORT}"))
}

/// Serves one connection. `None` if it could not be set up.
fn serve(client: UnixStream, gate: &Gate) -> Option<()> {
    let passing = gate.pass()?;
    let target = gate.target.lock().expect("no thread panics with the lock").clone();
    let server = UnixStream::connect(target).ok()?;
    drop(passing);
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(IO_TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(IO_TIMEOUT)).ok()?;
    }
    thread::scope(|scope| {
        scope.spawn(|| forward(&server, &client, gate));
        forward(&client, &server, gate);
    });
    Some(())
}

/// Forwards one direction to its end, and closes it.
fn forward(mut from: &UnixStream, to: &UnixStream, gate: &Gate) {
    let mut buffer = [0; 1 << 14];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) if deliver(to, &buffer[..length], gate).is_some() => {}
            Err(error) if is_timeout(&error) && !gate.has_ended() => {}
            _ => break,
        }
    }
    let _passing = gate.pass();
    let _ = to.shutdown(Shutdown::Write);
}

fn deliver(to: &UnixStream, bytes: &[u8], gate: &Gate) -> Option<()> {
    gate.travel();
    write(to, bytes, gate)
}

/// `None` if the write fails.
fn write(mut to: &UnixStream, mut bytes: &[u8], gate: &Gate) -> Option<()> {
    while !bytes.is_empty() {
        let _passing = gate.pass()?;
        match to.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            // A receiver that does not read must not keep the gate locked.
            Err(error) if is_timeout(&error) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
