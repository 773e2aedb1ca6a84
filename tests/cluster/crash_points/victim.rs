//! A server that dies at a point, and the server that goes on after it.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::PATIENCE;
use idgen_testkit::{Builder, Cluster, Paused, Stop, chown_to_server, is_startup_process, pause_if_running};

use crate::power::Power;

/// What kills the server while one of its processes is stopped at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// `kill -9` of the process: the postmaster restarts all others.
    Process,
    /// `kill -9` of the postmaster, then of all its processes.
    Server,
    /// The same, and idgen's files lose what was not synced.
    Power,
    /// All processes freeze, the synchronous standby is promoted, and then they are killed.
    Promotion,
}

pub const DEATHS: [Death; 4] = [Death::Process, Death::Server, Death::Power, Death::Promotion];

pub struct Victim {
    cluster: Cluster,
    standby: Option<Cluster>,
    power: Option<Power>,
    death: Death,
    is_promoted: AtomicBool,
    /// Nothing restarts the server.
    is_down: AtomicBool,
}

impl Victim {
    /// A server with the extension, and with what `prepare` makes.
    pub fn new(builder: Builder, death: Death, prepare: impl FnOnce(&Cluster)) -> Victim {
        let cluster = builder.conf("statement_timeout", "30s").fake_clock().start_with_extension();
        prepare(&cluster);
        let power = (death == Death::Power).then(|| {
            cluster.stop(Stop::Fast);
            let power = Power::install(&cluster);
            cluster.start_again();
            power
        });
        let standby = || cluster.standby_builder().synchronous().fake_clock().start();
        let standby = (death == Death::Promotion).then(standby);
        let [is_promoted, is_down] = [false, false].map(AtomicBool::new);
        Victim { cluster, standby, power, death, is_promoted, is_down }
    }

    /// The server that runs now.
    pub fn serving(&self) -> &Cluster {
        let promoted = self.standby.as_ref().filter(|_| self.is_promoted());
        promoted.unwrap_or(&self.cluster)
    }

    pub fn is_promoted(&self) -> bool {
        self.is_promoted.load(Ordering::SeqCst)
    }

    /// The next process at this point stops there.
    pub fn arm(&self, point: &str) {
        let order = self.cluster.data_dir().join("idgen_crash_point");
        let next = order.with_extension("next");
        fs::write(&next, point).expect("the data directory is writable");
        chown_to_server(&next);
        fs::rename(next, order).expect("the data directory is writable");
    }

    pub fn is_stopped(&self) -> bool {
        self.reached().exists()
    }

    /// The process that has stopped at the point. `None` if none comes there.
    pub fn wait_until_stopped(&self) -> Option<(i32, Paused)> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(pid) = fs::read_to_string(self.reached()).ok().and_then(|pid| pid.parse().ok()) {
                return Some((pid, pause_if_running(pid).expect("nothing else ends it")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    fn reached(&self) -> PathBuf {
        self.cluster.data_dir().join("idgen_crash_point.reached")
    }

    /// Kills the server.
    pub fn die(&self, (pid, stopped): (i32, Paused)) {
        match self.death {
            Death::Process if pid != self.cluster.pid_of_postmaster() => {
                // The postmaster does not go on without the startup process.
                let ends_server = self.is_stopping() || is_startup_process(pid);
                self.cluster.kill9(pid);
                if ends_server {
                    self.cluster.wait_until_exited();
                }
                self.is_down.store(ends_server, Ordering::SeqCst);
            }
            Death::Process | Death::Server | Death::Power => {
                self.cluster.kill9_all();
                self.is_down.store(true, Ordering::SeqCst);
            }
            Death::Promotion => {
                let frozen = self.cluster.freeze();
                self.standby.as_ref().expect("it was started").promote();
                self.is_promoted.store(true, Ordering::SeqCst);
                self.cluster.kill9_all();
                drop(frozen);
            }
        }
        drop(stopped);
        fs::remove_file(self.reached()).expect("the file of the point");
        if let Some(power) = &self.power {
            power.lose();
        }
    }

    /// Starts the server again, unless another one goes on. Its clock is set by so much.
    pub fn recover(&self, clock_ms: i64) {
        self.serving().clock().set_offset_ms(clock_ms);
        match self.is_down.load(Ordering::SeqCst) {
            true => self.cluster.start_again(),
            false => self.serving().wait_until_ready(),
        }
    }

    /// The eighth line of the file tells the state of the postmaster.
    fn is_stopping(&self) -> bool {
        let file = fs::read_to_string(self.cluster.data_dir().join("postmaster.pid")).expect("the server runs");
        file.lines().nth(7).is_some_and(|state| state.trim() == "stopping")
    }
}

/// Draws in a session of its own, after this setting and by this query, until that fails. What it has drawn rises.
pub fn draw_while(cluster: &Cluster, (setting, query): (&str, &str), goes_on: impl Fn(&[i64]) -> bool) -> Vec<i64> {
    let mut drawn: Vec<i64> = Vec::new();
    let Ok(mut client) = cluster.try_client() else { return drawn };
    let is_set = client.batch_execute(setting).is_ok();
    while is_set
        && (drawn.is_empty() || goes_on(&drawn))
        && let Ok(rows) = client.query(query, &[])
    {
        drawn.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
    }
    assert_increasing(&drawn);
    drawn
}
