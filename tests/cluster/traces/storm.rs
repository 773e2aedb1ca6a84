//! Clients whose sessions are terminated and paused, on a server that crashes.

use idgen_testkit::{Cluster, pause_if_running};
use postgres::Client;
use postgres::error::SqlState;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub struct Storm<'a> {
    pub cluster: &'a Cluster,
    /// Longer than a term lasts.
    pub pause: Duration,
    sessions: Mutex<Vec<i32>>,
    is_over: AtomicBool,
}

impl<'a> Storm<'a> {
    pub fn new(cluster: &'a Cluster, pause: Duration) -> Self {
        Self { cluster, pause, sessions: Mutex::default(), is_over: AtomicBool::new(false) }
    }

    pub fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Runs clients for a time, each a session after another. `crashes` is the number of crashes of the server.
    pub fn run(
        &self,
        clients: usize,
        time: Duration,
        crashes: u32,
        session: impl Fn(&mut Client) -> Result<(), postgres::Error> + Sync,
    ) {
        std::thread::scope(|scope| {
            let take_part = || self.take_part(&session);
            let clients: Vec<_> = (0..clients).map(|_| scope.spawn(take_part)).collect();
            let disturber = scope.spawn(|| self.disturb());
            for _ in 0..crashes {
                std::thread::sleep(time / (crashes + 1));
                let _sessions = self.sessions.lock().expect("no thread panics with the lock");
                self.cluster.kill9_postmaster();
                self.cluster.start_again();
            }
            std::thread::sleep(time / (crashes + 1));
            self.is_over.store(true, Ordering::Relaxed);
            let ends: Vec<_> = clients.into_iter().chain([disturber]).map(|thread| thread.join()).collect();
            ends.into_iter().for_each(|end| end.unwrap());
        });
    }

    fn take_part(&self, session: impl Fn(&mut Client) -> Result<(), postgres::Error>) {
        while self.goes_on() {
            let Ok(mut client) = self.cluster.try_client() else { continue };
            let Ok(row) = client.query_one("SELECT pg_backend_pid()", &[]) else { continue };
            let pid: i32 = row.get(0);
            self.sessions.lock().expect("no thread panics with the lock").push(pid);
            let end = session(&mut client);
            self.sessions.lock().expect("no thread panics with the lock").retain(|known| *known != pid);
            if let Err(error) = end {
                // An error without a SQLSTATE means a lost connection.
                let lost = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
                assert!(error.code().is_none_or(|code| lost.contains(code)), "{error:?}");
            }
        }
    }

    /// Terminates random sessions, and pauses others.
    fn disturb(&self) {
        let began = Instant::now();
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(5));
            // Every session in the list is alive, or the server has crashed.
            let mut sessions = self.sessions.lock().expect("no thread panics with the lock");
            if sessions.is_empty() {
                continue;
            }
            let turn = began.elapsed().subsec_micros() as usize;
            let victim = turn % sessions.len();
            if turn.is_multiple_of(2) {
                let pid = sessions.swap_remove(victim);
                if let Ok(mut client) = self.cluster.try_client() {
                    let _ = client.execute("SELECT pg_terminate_backend($1)", &[&pid]);
                }
            } else {
                let paused = pause_if_running(sessions[victim]);
                // A server with a paused process exits only by SIGKILL.
                std::thread::sleep(if paused.is_some() { self.pause } else { Duration::ZERO });
            }
        }
    }
}

/// False if the lease was lost.
pub fn is_held<T>(outcome: Result<T, postgres::Error>) -> Result<bool, postgres::Error> {
    match outcome {
        Err(error) if error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => Ok(false),
        outcome => outcome.map(|_| true),
    }
}
