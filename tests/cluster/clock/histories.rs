//! S4 over every history of a server's data that is listed here: how its recovery was asked for, how that ended, whether the
//! first start after it was killed, whether the clock is behind the ids or ahead of them, whether the recovery accepted
//! connections. The page on operations shows the list.
//!
//! One primary writes the data. Its clock is an hour ahead of the true one, so that ids would repeat by the clock alone. In
//! between it is a year ahead for a moment, in which no id is drawn: no history may begin there.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use idgen_testkit::ids::last;
use idgen_testkit::sql::{PATIENCE, execute, row, value};
use idgen_testkit::{Cluster, Stop, chown_to_server, high_water, private_dir, run};
use tempfile::TempDir;

use crate::recovery::{HOUR_MS, SECOND_MS, insert, stored};
use crate::{builder, draw_one, time_of};

const YEAR_MS: i64 = 365 * 24 * HOUR_MS;
/// After a recovery, ids are at most this far past the last one that was replayed, or the clock: three moves of the mark.
const MOST_MS: i64 = 20 * SECOND_MS;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Standby,
    Archive,
    Backup,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    Promoted,
    ShutDown,
    Stopped,
    Killed,
    ByItself,
    FileOlder,
    FileGone,
    WalReset,
}

use Asked::*;
use Ended::*;

const CASES: [(Asked, Ended); 10] = [
    (Standby, Promoted),
    (Standby, Stopped),
    (Standby, Killed),
    (Archive, Promoted),
    (Archive, ShutDown),
    (Archive, Killed),
    (Backup, ByItself),
    (Nothing, FileOlder),
    (Nothing, FileGone),
    (Nothing, WalReset),
];

impl Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Standby => "`standby.signal`",
            Archive => "`recovery.signal`, up to a named point",
            Backup => "a base backup, without a signal file",
            Nothing => "none: the server's own data",
        })
    }
}

impl Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Promoted => "with a promotion",
            ShutDown => "by `recovery_target_action = 'shutdown'`, and the signal file was removed",
            Stopped => "by a stop of the server, and the signal file was removed",
            Killed => "by `kill -9`, and the signal file was removed",
            ByItself => "at the end of the WAL in the backup",
            FileOlder => "crash, and an older copy of the directory `idgen` was put back",
            FileGone => "crash, and the directory `idgen` was removed",
            WalReset => "crash, and `pg_resetwal -f`, which loses rows",
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct History {
    asked: Asked,
    ended: Ended,
    hot_standby: bool,
    /// The first start after the recovery is killed before the first id.
    is_killed_again: bool,
    is_clock_ahead: bool,
}

fn all_histories() -> Vec<History> {
    let mut histories = Vec::new();
    for (asked, ended) in CASES {
        // Without recovery there is no hot standby. A server that is killed at its target pauses there.
        let only_hot = matches!(asked, Backup | Nothing) || (asked, ended) == (Archive, Killed);
        for hot_standby in [true, false].into_iter().filter(|hot| *hot || !only_hot) {
            for is_killed_again in [false, true] {
                for is_clock_ahead in [false, true] {
                    histories.push(History { asked, ended, hot_standby, is_killed_again, is_clock_ahead });
                }
            }
        }
    }
    histories
}

/// The data of a primary that was killed.
struct Origin {
    primary: Cluster,
    /// Has the base backup, and the directory `idgen` as it was then.
    dir: TempDir,
    archive: PathBuf,
    /// The last id that the primary has issued.
    last: i64,
}

impl Origin {
    fn new(has_label: bool) -> Self {
        let keeping = builder().conf("wal_keep_size", "1GB").conf("autovacuum", "off");
        let writing = match has_label {
            true => keeping,
            false => keeping.conf("max_worker_processes", "0").conf("max_logical_replication_workers", "0"),
        };
        let primary = writing.start_with_extension();
        let dir = private_dir();
        let mut origin = Self { archive: dir.path().join("archive"), primary, dir, last: 0 };
        run(origin.primary.program("/bin/mkdir").arg(&origin.archive));
        origin.primary.execute("CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_next())");
        origin.primary.clock().set_offset_ms(HOUR_MS);
        origin.back_up(has_label);
        insert(&mut origin.primary.client(), 10_000);
        origin.primary.execute("SELECT pg_create_restore_point('here')");
        insert(&mut origin.primary.client(), 100);
        origin.archive_wal();
        origin.last = last(&stored(&mut origin.primary.client()));
        origin.primary.kill9_postmaster();
        origin
    }

    /// A base backup whose WAL has ids far past the mark in the file that it has copied.
    fn back_up(&self, is_clock_wrong_for_a_moment: bool) {
        let mut client = self.primary.client();
        insert(&mut client, 10);
        execute(&mut client, "SELECT pg_backup_start('backup', true)");
        run(self.primary.program("/bin/cp").arg("-a").arg(self.primary.data_dir()).arg(self.backup()));
        std::fs::remove_file(self.backup().join("postmaster.pid")).expect("the file of a running server");
        self.primary.clock().set_offset_ms(HOUR_MS + 60 * SECOND_MS);
        insert(&mut self.primary.client(), 10_000);
        if is_clock_wrong_for_a_moment {
            self.primary.clock().set_offset_ms(YEAR_MS);
        }
        execute(&mut client, "CREATE TABLE unrelated (); CHECKPOINT");
        self.primary.clock().set_offset_ms(HOUR_MS + 60 * SECOND_MS);
        let label: String = row(&mut client, "SELECT labelfile FROM pg_backup_stop()").get(0);
        let file = self.backup().join("backup_label");
        std::fs::write(&file, label).expect("a directory of the test");
        chown_to_server(&file);
        self.archive_wal();
        let wal = self.backup().join("pg_wal");
        run(self.primary.program("/bin/sh").arg("-c").arg("cp $0/* $1").arg(&self.archive).arg(&wal));
    }

    /// Copies the WAL written so far, as an archive has it. Not by PostgreSQL's archiver: a clock that steps can stop it.
    fn archive_wal(&self) {
        let switched: String = value(&mut self.primary.client(), "SELECT pg_walfile_name(pg_switch_wal())");
        let wal = self.primary.data_dir().join("pg_wal");
        let copy = "for file in $0/0*; do [ ${file##*/} \\> $2 ] || cp $file $1; done";
        run(self.primary.program("/bin/sh").arg("-c").arg(copy).arg(&wal).arg(&self.archive).arg(&switched));
    }

    fn backup(&self) -> PathBuf {
        self.dir.path().join("backup")
    }
}

impl History {
    /// Plays the history, and returns the server that comes out of it. No session has drawn there.
    fn play(self, origin: &Origin) -> Cluster {
        let data = if self.asked == Nothing { origin.primary.data_dir() } else { origin.backup() };
        let server = origin.primary.restored(&data);
        if self.is_clock_ahead {
            server.clock().set_offset_ms(3 * HOUR_MS);
        }
        server.set_conf("max_worker_processes", "8");
        server.set_conf("hot_standby", if self.hot_standby { "on" } else { "off" });
        match self.asked {
            Standby => self.follow(&server, origin),
            Archive => self.recover(&server, origin),
            Backup => server.start_again(),
            Nothing if self.ended == WalReset => {
                let lock_file = server.data_dir().join("postmaster.pid");
                std::fs::remove_file(lock_file).expect("the file of a server that was killed");
                run(server.program("pg_resetwal").arg("-f").arg("-D").arg(server.data_dir()));
                server.start_again();
            }
            Nothing => {
                let directory = high_water::directory(&server);
                std::fs::remove_dir_all(&directory).expect("a directory of the server");
                if self.ended == FileOlder {
                    let older = origin.backup().join("idgen");
                    run(server.program("/bin/cp").arg("-a").arg(older).arg(&directory));
                }
                server.start_again();
            }
        }
        if self.is_killed_again {
            server.kill9_postmaster();
            server.start_again();
        }
        let is_primary = || server.try_client().is_ok_and(|mut c| value(&mut c, "SELECT NOT pg_is_in_recovery()"));
        server.wait_for(PATIENCE, "the end of recovery", is_primary);
        server
    }

    fn follow(self, server: &Cluster, origin: &Origin) {
        let signal = request(server, "standby.signal");
        // A standby that asks for WAL that is not there has replayed all that is.
        let asked = server.data_dir().with_file_name("asked");
        let touch = format!("case %f in *.history) ;; *) touch {};; esac; false", asked.display());
        server.set_conf("restore_command", &format!("cp {}/%f %p || {{ {touch}; }}", origin.archive.display()));
        server.spawn();
        server.wait_for(PATIENCE, "the replay of all WAL", || asked.exists());
        match self.ended {
            Promoted => {
                run(server.program("pg_ctl").arg("promote").arg("-D").arg(server.data_dir()));
                server.wait_for(PATIENCE, "the end of recovery", || !signal.exists());
                return;
            }
            Killed => server.kill9_postmaster(),
            _ => server.stop(Stop::Fast),
        }
        std::fs::remove_file(&signal).expect("the signal file");
        server.start_again();
    }

    fn recover(self, server: &Cluster, origin: &Origin) {
        let signal = request(server, "recovery.signal");
        server.set_conf("restore_command", &format!("cp {}/%f %p", origin.archive.display()));
        server.set_conf("recovery_target_name", "here");
        let action = match self.ended {
            Promoted => "promote",
            ShutDown => "shutdown",
            _ => "pause",
        };
        server.set_conf("recovery_target_action", action);
        server.spawn();
        match self.ended {
            Promoted => return server.wait_for(PATIENCE, "the end of recovery", || !signal.exists()),
            ShutDown => server.wait_until_exited(),
            _ => {
                let is_paused = "SELECT pg_get_wal_replay_pause_state() = 'paused'";
                let pauses = || server.try_client().is_ok_and(|mut client| value(&mut client, is_paused));
                server.wait_for(PATIENCE, "the target", pauses);
                server.kill9_postmaster();
            }
        }
        std::fs::remove_file(&signal).expect("the signal file");
        server.start_again();
    }
}

fn request(server: &Cluster, signal: &str) -> PathBuf {
    let signal = server.data_dir().join(signal);
    std::fs::write(&signal, "").expect("the data directory is writable");
    chown_to_server(&signal);
    signal
}

#[test]
fn no_history_of_the_data_repeats_an_id_smoke() {
    let origin = Origin::new(true);
    let copied_ms = {
        let bytes = std::fs::read(origin.backup().join("idgen/clock")).expect("the file in the backup");
        idgen_core::clock::record::Record::newest(&bytes).expect("a record").record.mark_ms
    };
    let failures = Mutex::new(Vec::new());
    let left = Mutex::new(all_histories());
    let play_all = || {
        loop {
            let Some(history) = left.lock().unwrap().pop() else { return };
            let server = history.play(&origin);
            let mut client = server.client();
            let last_id = match history.ended {
                WalReset => origin.last,
                _ => last(&stored(&mut client)),
            };
            let last_ms = time_of(&mut client, last_id, "snowflake");
            assert!(last_ms > copied_ms, "{history:?}: the copied mark covers all ids");
            let first = draw_one(&mut client, "snowflake");
            let ahead_ms = first.time_ms - last_ms.max(first.clock_ms as i64);
            if first.id <= last_id || ahead_ms > MOST_MS {
                failures.lock().unwrap().push(format!("{history:?}: the first id is {ahead_ms} ms past the last one"));
                continue;
            }
            // The first mark of the new server replaces what was found at its start.
            server.kill9_postmaster();
            server.start_again();
            let next = draw_one(&mut server.client(), "snowflake");
            if next.id <= first.id || next.time_ms - first.time_ms > MOST_MS {
                failures.lock().unwrap().push(format!("{history:?}: {} after {} and a crash", next.id, first.id));
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(play_all);
        play_all();
        other.join().unwrap();
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} histories:\n{}", failures.len(), failures.join("\n"));
}

/// The times of commits stand in for a label that no worker could write, as long as the server runs.
#[test]
fn promotion_without_a_label_repeats_no_id() {
    let origin = Origin::new(false);
    for asked in [Standby, Archive] {
        let history =
            History { asked, ended: Promoted, hot_standby: true, is_killed_again: false, is_clock_ahead: false };
        let server = history.play(&origin);
        let mut client = server.client();
        assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM pg_shseclabel WHERE provider = 'idgen'"), 0);
        let ids = stored(&mut client);
        let first = draw_one(&mut client, "snowflake");
        assert!(first.id > last(&ids), "{history:?}: {} after {}", first.id, last(&ids));
    }
}

/// The table of the page has these histories, and no other.
#[test]
fn page_on_operations_lists_these_histories() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let table = page.split_once("| recovery | it ended |").expect("the table").1;
    let shown: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    let listed: Vec<String> = CASES.iter().map(|(asked, ended)| format!("| {asked} | {ended} |")).collect();
    assert_eq!(shown, listed);
}
