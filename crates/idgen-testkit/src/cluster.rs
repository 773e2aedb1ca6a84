//! One throw-away server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::builder::Builder;
use crate::clock::FakeClock;
use crate::connect::PORT;
use crate::life::Life;
use crate::postmaster::{Postmaster, Stop, wait_for_death};
use crate::procfs::{Process, children, is_attached, poll};
use crate::settings::Settings;
use crate::signal::pause_if_running;

/// The limit for a start with recovery, for a stop, and for a restart after a crash.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with its own data directory and socket. Stopped and removed when dropped.
///
/// Methods panic with the end of the server's log when they fail.
pub struct Cluster {
    dir: TempDir,
    /// The directory of the server programs, if it is not that of `$PG_CONFIG`.
    bin_dir: PathBuf,
    clock: Option<FakeClock>,
    state: Mutex<State>,
    _life: Option<Life>,
}

struct State {
    settings: Settings,
    /// Environment variables of the server.
    environment: Vec<(String, OsString)>,
    /// `None` while the server is stopped.
    postmaster: Option<Postmaster>,
}

impl Cluster {
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A server with idgen preloaded and default settings.
    pub fn start() -> Cluster {
        Cluster::builder().start()
    }

    /// Starts a server on the data directory in `dir`.
    pub(crate) fn new(dir: TempDir, bin_dir: PathBuf, settings: Settings, clock: Option<FakeClock>) -> Cluster {
        let cluster = Cluster::stopped(dir, bin_dir, settings, clock);
        cluster.start_again();
        cluster
    }

    /// The same, without the start.
    pub(crate) fn stopped(dir: TempDir, bin_dir: PathBuf, mut settings: Settings, clock: Option<FakeClock>) -> Cluster {
        settings.set("unix_socket_directories", &dir.path().to_string_lossy());
        settings.set("port", PORT);
        let state = State { settings, environment: Vec::new(), postmaster: None };
        Cluster { dir, bin_dir, clock, state: Mutex::new(state), _life: Life::begin() }
    }
}

/// Start, stop and crash.
impl Cluster {
    pub fn start_again(&self) {
        self.try_start().unwrap_or_else(|report| panic!("the server did not start\n{report}"));
    }

    /// Starts the stopped server and returns at once. One that recovers may accept no connections.
    pub fn spawn(&self) {
        let mut state = self.state();
        assert!(state.postmaster.is_none(), "the server is running");
        state.settings.write(&self.data_dir());
        let mut command = self.program("postgres");
        if let Some(clock) = &self.clock {
            clock.apply_to(&mut command);
        }
        command.envs(state.environment.iter().map(|(name, value)| (name, value)));
        state.postmaster = Some(Postmaster::spawn(command, &self.data_dir(), &self.log_file()));
    }

    /// Waits until a server that was started has exited by itself.
    pub fn wait_until_exited(&self) {
        let mut state = self.state();
        let postmaster = state.postmaster.as_mut().expect("the server is running");
        assert!(poll(PATIENCE, || postmaster.exit_status()).is_some(), "it still runs\n{}", self.log_tail());
        state.postmaster = None;
    }

    /// Starts the stopped server. If it does not come up, the error has the lines that it logged.
    pub fn try_start(&self) -> Result<(), String> {
        let logged_before = self.log().len();
        self.spawn();
        let mut state = self.state();
        let postmaster = state.postmaster.as_mut().expect("the server was started");
        let outcome = poll(PATIENCE, || match postmaster.exit_status() {
            Some(status) => Some(Err(format!("it exited with {status}"))),
            None => self.try_client().ok().map(|_| Ok(())),
        });
        let failure = match outcome {
            Some(Ok(())) => return Ok(()),
            Some(Err(ended)) => ended,
            None => format!("it accepted no connection in {PATIENCE:?}"),
        };
        if let Some(postmaster) = state.postmaster.take() {
            postmaster.destroy();
        }
        let logged = relevant_lines(&self.log()[logged_before..]).collect::<Vec<_>>().join("\n");
        Err(format!("{failure}\n{logged}"))
    }

    /// Stops the server and waits until it has exited.
    pub fn stop(&self, how: Stop) {
        let mut state = self.state();
        let postmaster = state.postmaster.as_mut().expect("the server is running");
        let status = postmaster.stop(how, PATIENCE);
        let status =
            status.unwrap_or_else(|| panic!("{how:?} stop not complete after {PATIENCE:?}\n{}", self.log_tail()));
        state.postmaster = None;
        // The exit status is the only sign of a process that crashed during the shutdown.
        let clean = how == Stop::Immediate || status.success();
        assert!(clean, "{how:?} stop exited with {status}\n{}", self.log_tail());
    }

    /// A fast stop and a start, with the current settings.
    pub fn restart(&self) {
        self.restart_by(Stop::Fast);
    }

    pub fn restart_by(&self, how: Stop) {
        self.stop(how);
        self.start_again();
    }

    /// Changes a setting of the running server, at a restart.
    pub fn restart_with(&self, name: &str, value: &str) {
        self.set_conf(name, value);
        self.restart();
    }

    /// Kills one process of the server with SIGKILL and waits until the postmaster has noticed. It rejects connections
    /// until it has recovered: see [`Cluster::wait_until_ready`].
    pub fn kill9(&self, pid: i32) {
        let pid = Pid::from_raw(pid);
        let state = self.state();
        let postmaster = state.postmaster.as_ref().expect("the server is running");
        assert!(postmaster.has_child(pid), "process {pid} is not a child of postmaster {}", postmaster.pid());
        kill(pid, Signal::SIGKILL).unwrap_or_else(|error| panic!("cannot kill process {pid}: {error}"));
        // The postmaster reaps it and begins recovery in one step, before it accepts new connections.
        self.wait_for(PATIENCE, "the postmaster to reap the process", || !postmaster.has_child(pid));
    }

    /// The same for a process that may end by itself, and a wait until the server is ready. False if it has ended.
    pub fn kill9_if_running(&self, pid: i32) -> bool {
        // A paused process does not end.
        let paused = pause_if_running(pid);
        let is_running = paused.is_some() && !Process::is_dead(Pid::from_raw(pid));
        if is_running {
            self.kill9(pid);
            self.wait_until_ready();
        }
        is_running
    }

    /// Kills the postmaster with SIGKILL and waits until its children have exited, so that the server can be started
    /// again. A paused child does not exit.
    pub fn kill9_postmaster(&self) {
        let postmaster = self.state().postmaster.take().expect("the server is running");
        let orphans = wait_for_death(postmaster.kill9(), PATIENCE);
        assert!(orphans.is_empty(), "processes {orphans:?} outlive their postmaster\n{}", self.log_tail());
        self.wait_for_memory();
    }

    /// Kills all processes of the server with SIGKILL, also paused ones, as the loss of power does.
    pub fn kill9_all(&self) {
        self.state().postmaster.take().expect("the server is running").kill9_all();
        self.wait_for_memory();
    }

    fn wait_for_memory(&self) {
        // A killed startup process may have begun a restore_command, which shares its memory until it is another program.
        self.wait_for(PATIENCE, "the release of the shared memory", || !self.is_memory_attached());
    }

    pub fn kill9_and_restart(&self) {
        self.kill9_postmaster();
        self.start_again();
    }

    /// Waits until the server accepts connections again after one of its processes has crashed.
    pub fn wait_until_ready(&self) {
        self.wait_for(PATIENCE, "the server to accept connections", || self.try_client().is_ok());
    }
}

/// Settings, clock and log.
impl Cluster {
    /// Changes a setting for the next [`Cluster::reload`] or start.
    pub fn set_conf(&self, name: &str, value: &str) {
        let mut state = self.state();
        state.settings.set(name, value);
        state.settings.write(&self.data_dir());
    }

    /// Sets an environment variable of the server for the next start. It overrides the variables of the fake clock.
    pub fn set_env(&self, name: &str, value: impl Into<OsString>) {
        self.state().environment.push((name.to_owned(), value.into()));
    }

    /// Reloads the configuration and waits until new sessions have it. Existing processes follow at their next statement
    /// or wakeup.
    pub fn reload(&self) {
        // Only a new session shows the postmaster's load time: an existing session shows its own.
        let load_time = || -> SystemTime {
            self.client().query_one("SELECT pg_conf_load_time()", &[]).expect("a timestamp").get(0)
        };
        let before = load_time();
        self.execute("SELECT pg_reload_conf()");
        self.wait_for(PATIENCE, "the settings to be loaded", || load_time() != before);
    }

    /// Changes a setting of the running server, by a reload.
    pub fn reload_with(&self, name: &str, value: &str) {
        self.set_conf(name, value);
        self.reload();
    }

    /// The clock of a cluster built with [`Builder::fake_clock`].
    pub fn clock(&self) -> &FakeClock {
        self.clock.as_ref().expect("this cluster was built without fake_clock()")
    }

    /// CPU time of the postmaster and of all its processes, including those that ended.
    pub fn cpu_time(&self) -> Duration {
        let postmaster = Pid::from_raw(self.pid_of_postmaster());
        let processes = children(postmaster).into_iter().chain([postmaster]);
        processes.filter_map(Process::cpu_time).sum()
    }

    pub fn pid_of_postmaster(&self) -> i32 {
        self.state().postmaster.as_ref().expect("the server is running").pid().as_raw()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// All that the server has logged since the cluster was created.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    /// Waits until `condition` holds. Panics with `what` and the end of the log at the deadline.
    pub fn wait_for(&self, deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
        let met = poll(deadline, || condition().then_some(()));
        assert!(met.is_some(), "waited {deadline:?} for {what}\n{}", self.log_tail());
    }

    pub(crate) fn settings(&self) -> Settings {
        self.state().settings.clone()
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub(crate) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = relevant_lines(&log).collect();
        let tail = &lines[lines.len().saturating_sub(60)..];
        format!("end of {}:\n{}", self.log_file().display(), tail.join("\n"))
    }

    pub(crate) fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// True while a process is attached to the shared memory of the last start. A new start refuses as long as one is.
    fn is_memory_attached(&self) -> bool {
        let lock_file = std::fs::read_to_string(self.data_dir().join("postmaster.pid")).unwrap_or_default();
        // Its seventh line has the key and the id of the segment.
        let id = lock_file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
        id.is_some_and(is_attached)
    }

    /// Removes the shared memory that a killed server leaves behind, of which the system has only so much. A start on the
    /// same data directory removes it, here in single-user mode and without preloaded libraries.
    fn remove_shared_memory(&self) {
        if !self.data_dir().join("postmaster.pid").exists() {
            return;
        }
        let mut command = self.program("postgres");
        command.arg("--single").arg("-D").arg(self.data_dir());
        command.args(["-c", "shared_preload_libraries=", "postgres"]);
        // A standby cannot run in single-user mode, but fails only after it has removed the shared memory.
        let _ = command.stdin(Stdio::null()).output();
    }

    /// Ignores poisoning: Drop needs the state after a failed assertion too.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves out the rejected connections of the kit itself while it waits for the server to come up.
fn relevant_lines(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| !line.contains("FATAL:  the database system is "))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            // Before the stop, so that the end of the log shows the failure and not the shutdown.
            eprintln!("kept {}\n{}", self.dir.path().display(), self.log_tail());
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(postmaster) = state.postmaster.take() {
            postmaster.destroy();
        }
        if failed {
            self.dir.disable_cleanup(true);
        } else {
            self.remove_shared_memory();
        }
    }
}
