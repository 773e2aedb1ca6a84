//! Physical standbys and copies of a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::unistd::Pid;
use tempfile::TempDir;

use crate::builder::private_dir;
use crate::clock::FakeClock;
use crate::cluster::Cluster;
use crate::procfs::children;
use crate::programs::{chown_to_server, run};
use crate::settings::Settings;
use crate::signal::{Paused, pause, pause_if_running};

/// The limit for everything that replication is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of a standby: see [`Cluster::standby_builder`].
pub struct StandbyBuilder<'primary> {
    primary: &'primary Cluster,
    settings: Settings,
    synchronous: bool,
    fake_clock: bool,
}

impl Cluster {
    /// A streaming standby of this server, with its settings and the true clock.
    pub fn standby(&self) -> Cluster {
        self.standby_builder().start()
    }

    /// A streaming standby with options. It has the settings of this server. A synchronous one also changes this server's.
    pub fn standby_builder(&self) -> StandbyBuilder<'_> {
        let mut settings = self.settings();
        // After its promotion it would wait for itself.
        settings.set("synchronous_standby_names", "");
        StandbyBuilder { primary: self, settings, synchronous: false, fake_clock: false }
    }

    /// A copy of this server, started as a primary: a restored base backup or a cloned virtual machine. It has the
    /// settings of this server and the true clock.
    pub fn copy(&self) -> Cluster {
        let dir = private_dir();
        base_backup(self, dir.path(), "", &[]);
        Cluster::new(dir, self.bin_dir().to_owned(), self.settings(), None)
    }

    /// A stopped server with the settings of this one, a clock of its own, and a copy of a data directory: a backup that is
    /// about to be restored.
    pub fn restored(&self, backup: &Path) -> Cluster {
        let dir = private_dir();
        let data = dir.path().join("data");
        run(self.program("/bin/cp").args(["-a", "--reflink=auto"]).arg(backup).arg(&data));
        let clock = FakeClock::new(dir.path());
        Cluster::stopped(dir, self.bin_dir().to_owned(), self.settings(), Some(clock))
    }

    /// A stopped server on a copy of this running one's data directory as it is at one instant, as a file system or a disk
    /// takes it: all processes are paused during the copy.
    pub fn snapshot(&self) -> Cluster {
        let paused = self.freeze();
        let copy = self.restored(&self.data_dir());
        drop(paused);
        std::fs::remove_file(copy.data_dir().join("postmaster.pid")).expect("the file of a running server");
        copy
    }

    /// Pauses all processes of this server.
    pub fn freeze(&self) -> Vec<Paused> {
        // The postmaster first, so that it cannot fork.
        let postmaster = pause(self.pid_of_postmaster());
        let processes = children(Pid::from_raw(self.pid_of_postmaster()));
        let paused = processes.into_iter().filter_map(|pid| pause_if_running(pid.as_raw()));
        // Resumed last.
        paused.collect::<Vec<_>>().into_iter().chain([postmaster]).collect()
    }

    /// A base backup of this server.
    pub fn base_backup(&self) -> TempDir {
        let dir = private_dir();
        base_backup(self, dir.path(), "", &[]);
        dir
    }

    /// A copy of the data directory of this stopped server.
    pub fn cold_backup(&self) -> TempDir {
        let dir = private_dir();
        run(Command::new("cp").arg("-a").arg(self.data_dir()).arg(dir.path().join("data")));
        dir
    }

    /// Copies a backup over the data directory of this stopped server: every file keeps its inode.
    pub fn overwrite_in_place(&self, backup: &TempDir) {
        run(Command::new("cp").args(["-a", "-T"]).arg(backup.path().join("data")).arg(self.data_dir()));
    }

    /// Restores a base backup into the data directory of this stopped server, as tools do that leave unchanged files in
    /// place: `PG_VERSION` stays the same file.
    pub fn restore_in_place(&self, backup: &TempDir) {
        let entries = |dir: &Path| {
            let entries = std::fs::read_dir(dir).expect("the directory is readable");
            let paths = entries.map(|entry| entry.expect("the directory is readable").path());
            paths.filter(|path| !path.ends_with("PG_VERSION")).collect::<Vec<_>>()
        };
        let data = self.data_dir();
        run(Command::new("rm").arg("-r").args(entries(&data)));
        run(Command::new("cp").arg("-a").args(entries(&backup.path().join("data"))).arg(&data));
    }

    /// Recovers this stopped server, restored from a base backup, to the point where the backup ended, and stops it there.
    /// The next start ends the recovery without a new timeline.
    pub fn recover_and_shut_down(&self) {
        let signal = self.write_signal("recovery.signal");
        let recovery = [
            ("restore_command", "false"),
            ("recovery_target", "immediate"),
            ("recovery_target_action", "shutdown"),
            ("hot_standby", "off"),
        ];
        recovery.iter().for_each(|(name, value)| self.set_conf(name, value));
        let report = self.try_start().expect_err("the server shuts down at the recovery target");
        assert!(report.contains("shutdown at recovery target"), "{report}");
        std::fs::remove_file(&signal).expect("the data directory is writable");
    }

    /// Rewinds this stopped server with pg_rewind to the point where its history and that of `primary` diverge, and starts
    /// it as a standby. It needs `wal_log_hints`.
    pub fn rewind_to(&self, primary: &Cluster) {
        let data = self.data_dir();
        let conninfo = primary.conninfo();
        let mut command = self.program("pg_rewind");
        run(command.arg("--target-pgdata").arg(&data).args(["--source-server", &conninfo, "--no-sync"]));
        // The copied file names the server that the primary followed before.
        let settings = data.join("postgresql.auto.conf");
        std::fs::write(&settings, format!("primary_conninfo = '{}'\n", conninfo.replace('\'', "''")))
            .expect("the data directory is writable");
        chown_to_server(&settings);
        self.write_signal("standby.signal");
        self.start_again();
    }

    /// Resets the WAL of this stopped server.
    pub fn reset_wal(&self) {
        run(self.program("pg_resetwal").arg("-f").arg(self.data_dir()));
    }

    /// Writes a file by which PostgreSQL starts recovery.
    pub fn write_signal(&self, name: &str) -> PathBuf {
        let signal = self.data_dir().join(name);
        std::fs::write(&signal, "").expect("the data directory is writable");
        chown_to_server(&signal);
        signal
    }

    /// Promotes this standby and waits until it is a primary. `pg_ctl` waits without a session: the snapshot of one that
    /// waits conflicts with the WAL that is still to be replayed, and a clock that steps makes the conflict an error at
    /// once.
    pub fn promote(&self) {
        let data = self.data_dir();
        let patience = PATIENCE.as_secs().to_string();
        run(self.program("pg_ctl").args(["promote", "--wait", "--timeout", &patience, "--pgdata"]).arg(&data));
    }

    /// Waits until this standby has replayed the WAL that the primary has written so far. After a step of the clock back,
    /// PostgreSQL's WAL writer flushes nothing until the clock is where it was. A switch to the next segment flushes, and is
    /// no commit, whose time would matter.
    pub fn wait_until_replayed(&self, primary: &Cluster) {
        let sql = "SELECT (CASE WHEN pg_current_wal_flush_lsn() < pg_current_wal_lsn() THEN pg_switch_wal()
                                ELSE pg_current_wal_lsn() END)::text";
        let flushed: String = primary.client().query_one(sql, &[]).expect("a primary").get(0);
        let mut standby = self.client();
        self.wait_for(PATIENCE, &format!("WAL to be replayed up to {flushed}"), || {
            let row = standby.query_one("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", &[&flushed]);
            row.expect("a standby").get(0)
        });
    }
}

impl StandbyBuilder<'_> {
    /// Commits on the primary wait for this standby and for no other.
    pub fn synchronous(mut self) -> Self {
        self.synchronous = true;
        self
    }

    /// Gives the standby its own wall clock: see [`Cluster::clock`].
    pub fn fake_clock(mut self) -> Self {
        self.fake_clock = true;
        self
    }

    /// A setting in which the standby differs from its primary.
    pub fn conf(mut self, name: &str, value: &str) -> Self {
        self.settings.set(name, value);
        self
    }

    pub fn start(self) -> Cluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("standby_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = private_dir();
        // The slot keeps the WAL that a stopped standby still needs.
        let options = ["--write-recovery-conf", "--create-slot", "--slot", &name];
        base_backup(self.primary, dir.path(), &format!("application_name={name}"), &options);
        let clock = self.fake_clock.then(|| FakeClock::new(dir.path()));
        let standby = Cluster::new(dir, self.primary.bin_dir().to_owned(), self.settings, clock);
        if self.synchronous {
            self.primary.set_conf("synchronous_standby_names", &name);
            self.primary.reload();
            wait_until_synchronous(self.primary, &name);
        }
        standby
    }
}

fn base_backup(source: &Cluster, dir: &Path, conninfo: &str, options: &[&str]) {
    let conninfo = format!("{} {conninfo}", source.conninfo());
    let mut command = source.program("pg_basebackup");
    command.arg("-D").arg(dir.join("data")).args(["-d", &conninfo]).args(options);
    run(command.args(["--wal-method=stream", "--checkpoint=fast", "--no-sync"]));
}

fn wait_until_synchronous(primary: &Cluster, standby: &str) {
    let mut client = primary.client();
    let sql = "SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = $1 AND sync_state = 'sync'";
    primary.wait_for(PATIENCE, "the standby to be synchronous", || {
        client.query_one(sql, &[&standby]).expect("a boolean").get(0)
    });
}
