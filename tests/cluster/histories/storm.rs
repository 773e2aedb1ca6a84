//! What all storms share: sessions that are replaced when they are lost, and faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idgen_sim::history::Ns;
use idgen_testkit::recorder::now;
use idgen_testkit::sql::PATIENCE;
use idgen_testkit::{Cluster, Stop, pause_if_running};
use postgres::Client;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    Terminate,
    Cancel,
    /// A process of the server is stopped for so long.
    Pause(Duration),
    KillBackend,
    KillPostmaster,
    Immediate,
    Reload,
    Checkpoint,
    Vacuum,
    /// The wall clock is set to so many milliseconds ahead of the true one.
    Clock(i64),
}

pub struct Storm<'a> {
    pub cluster: &'a Cluster,
    /// The sessions that can be hit.
    pids: Mutex<Vec<i32>>,
    /// Between the turns of a session.
    pace: Duration,
    is_over: AtomicBool,
}

/// A session, and the process that serves it.
pub struct Session {
    pub client: Client,
    pub pid: i32,
}

/// Ends the storm also if a check fails: otherwise the test would wait for its sessions for ever.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Storm<'a> {
    pub fn new(cluster: &'a Cluster) -> Storm<'a> {
        Storm::paced(cluster, Duration::ZERO)
    }

    /// Its sessions pause for so long before each turn.
    pub fn paced(cluster: &'a Cluster, pace: Duration) -> Storm<'a> {
        Storm { cluster, pids: Mutex::default(), pace, is_over: AtomicBool::new(false) }
    }

    pub fn goes_on(&self) -> bool {
        std::thread::sleep(self.pace);
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Runs so many sessions until `count` has reached `wanted`, with the faults at equal distances.
    pub fn run(
        &self,
        sessions: usize,
        session: impl Fn(usize) + Sync,
        count: impl Fn() -> usize,
        wanted: usize,
        faults: &[Fault],
    ) {
        std::thread::scope(|scope| {
            let _end = End(&self.is_over);
            let session = &session;
            (0..sessions).for_each(|index| drop(scope.spawn(move || session(index))));
            let before = count();
            for (fault, n) in faults.iter().zip(0..) {
                let enough = before + wanted * n / faults.len();
                self.wait_for(enough, &count);
                self.happen(*fault);
            }
            self.wait_for(before + wanted, &count);
        });
    }

    /// Waits for so many calls. They go on after every fault.
    fn wait_for(&self, enough: usize, count: &impl Fn() -> usize) {
        let mut seen = count();
        while seen < enough {
            self.cluster.wait_for(PATIENCE, "another call", || count() > seen);
            seen = count();
        }
    }

    /// `None` once the storm is over.
    pub fn connect(&self, database: &str) -> Option<Session> {
        while self.goes_on() {
            // The server may be down.
            let Ok(mut client) = self.try_client_in(database) else { continue };
            let Ok(row) = client.query_one("SELECT pg_backend_pid()", &[]) else { continue };
            let pid = row.get(0);
            self.pids.lock().expect("no thread panics with the lock").push(pid);
            return Some(Session { client, pid });
        }
        None
    }

    fn try_client_in(&self, database: &str) -> Result<Client, postgres::Error> {
        Client::connect(&self.cluster.connect_string(database, "postgres"), postgres::NoTls)
    }

    pub fn forget(&self, pid: i32) {
        self.pids.lock().expect("no thread panics with the lock").retain(|known| *known != pid);
    }

    /// Ends a session, and waits until the server has none with this process.
    pub fn end(&self, session: Session) -> Ns {
        self.forget(session.pid);
        drop(session.client);
        let gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1";
        self.cluster.wait_for(PATIENCE, "the session to end", || {
            let row = self.cluster.try_client().and_then(|mut client| client.query_one(gone, &[&session.pid]));
            row.is_ok_and(|row| row.get(0))
        });
        now()
    }

    fn happen(&self, fault: Fault) {
        match fault {
            Fault::KillPostmaster => {
                self.cluster.kill9_postmaster();
                self.cluster.start_again();
            }
            Fault::Immediate => {
                self.cluster.stop(Stop::Immediate);
                self.cluster.start_again();
            }
            Fault::Reload => self.cluster.reload(),
            Fault::Checkpoint => self.cluster.execute("CHECKPOINT"),
            Fault::Vacuum => self.cluster.execute("VACUUM (FREEZE, ANALYZE)"),
            Fault::Clock(offset_ms) => self.cluster.clock().set_offset_ms(offset_ms),
            _ => self.hit_a_session(fault),
        }
    }

    fn hit_a_session(&self, fault: Fault) {
        // Every session in the list is alive, because a client forgets its session before it ends it.
        let pids = self.pids.lock().expect("no thread panics with the lock");
        if pids.is_empty() {
            return;
        }
        let pid = pids[fastrand::usize(..pids.len())];
        match fault {
            Fault::Terminate => self.cluster.execute(&format!("SELECT pg_terminate_backend({pid})")),
            Fault::Cancel => self.cluster.execute(&format!("SELECT pg_cancel_backend({pid})")),
            Fault::KillBackend => {
                drop(pids);
                self.cluster.kill9_if_running(pid);
            }
            Fault::Pause(time) => {
                let paused = pause_if_running(pid);
                drop(pids);
                std::thread::sleep(time);
                drop(paused);
            }
            _ => unreachable!("a fault of the server"),
        }
    }
}

/// The faults in this order, again and again.
pub fn repeat(faults: &[Fault], times: usize) -> Vec<Fault> {
    faults.iter().copied().cycle().take(times).collect()
}
