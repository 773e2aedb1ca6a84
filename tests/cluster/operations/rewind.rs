//! pg_rewind of an old primary that has issued ids after the promotion of its standby. Each server has its own worker id.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output};
use std::time::{Duration, SystemTime};

use idgen_testkit::ids::{assert_distinct, last};
use idgen_testkit::sql::{execute, ids};
use idgen_testkit::{Cluster, Stop, high_water, run};

/// A case of the old primary.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    Usual,
    /// Ids that no other server knows are 100 s ahead of the clock.
    FarAhead,
    /// The same, and its directory idgen is put back after pg_rewind.
    FarAheadWithItsOwnMark,
}

const INSERT: &str = "INSERT INTO orders SELECT FROM generate_series(1, 10000) RETURNING id";

fn draw(server: &Cluster) -> Vec<i64> {
    ids(&mut server.client(), INSERT)
}

/// Returns the ids of the old primary before its second promotion and after it, each in order.
fn rewind_and_promote(case: Case) -> [Vec<i64>; 2] {
    // pg_rewind reads the old primary's WAL since the last checkpoint before the divergence.
    let builder = Cluster::builder().conf("wal_log_hints", "on").conf("wal_keep_size", "256MB");
    let builder = builder.conf("idgen.worker_id", "1");
    let first = builder.start_with_extension();
    first.execute("CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    let second = first.standby_builder().conf("idgen.worker_id", "2").start();
    let mut of_first = draw(&first);
    second.wait_until_replayed(&first);
    second.promote();

    // Both are primaries now.
    let mut of_second = draw(&second);
    if case != Case::Usual {
        execute(&mut first.client(), "SELECT snowflake_observe(snowflake_ceil(now() + interval '100 s'))");
    }
    of_first.extend(draw(&first));
    of_second.extend(draw(&second));
    assert_distinct([&of_first[..], &of_second].concat());

    first.stop(Stop::Fast);
    // pg_rewind of PostgreSQL 15 reads the timeline of the last checkpoint.
    second.execute("CHECKPOINT");
    let (mark, kept) = (high_water::directory(&first), first.data_dir().with_file_name("kept"));
    run(first.program("/bin/cp").arg("-R").arg(&mark).arg(&kept));
    first.rewind_to(&second);
    if case == Case::FarAheadWithItsOwnMark {
        first.stop(Stop::Fast);
        std::fs::remove_dir_all(&mark).expect("a directory of the server");
        std::fs::rename(&kept, &mark).expect("the same file system");
        first.start_again();
    }
    first.wait_until_replayed(&second);
    second.stop(Stop::Fast);
    first.promote();
    let again = draw(&first);
    assert!(again[0] > last(&of_second), "{case:?}: {} after {}", again[0], last(&of_second));
    [of_first, again]
}

#[test]
fn rewound_primary_begins_after_its_ids_that_no_other_server_knows_smoke() {
    for case in [Case::Usual, Case::FarAheadWithItsOwnMark] {
        let [before, again] = rewind_and_promote(case);
        assert!(again[0] > last(&before), "{case:?}: {} after {}", again[0], last(&before));
    }
}

/// The control, and the exception: pg_rewind has replaced the mark by that of the new primary.
#[test]
fn rewound_primary_begins_before_its_ids_far_ahead_without_its_own_mark() {
    let [before, again] = rewind_and_promote(Case::FarAhead);
    assert!(again[0] < last(&before), "{} after {}", again[0], last(&before));
}

/// The data directory of a member of Patroni, whose pg_rewind is a program of the test.
struct Member(tempfile::TempDir);

/// What pg_rewind does: it takes the mark of the leader, and removes all that the leader does not have.
const TAKE: &str = "rm -rf data; mkdir -p data/idgen; echo leader > data/idgen/mark";

impl Member {
    fn new() -> Self {
        let member = Self(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir_all(member.path("data/idgen")).expect("a directory of ours");
        member.write_mark("own");
        member.start_server(SystemTime::now());
        member
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write_mark(&self, mark: &str) {
        std::fs::write(self.path("data/idgen/mark"), mark).expect("a directory of ours");
    }

    /// The postmaster writes this file, at a time of its clock.
    fn start_server(&self, at: SystemTime) {
        let options = File::create(self.path("data/postmaster.opts")).expect("a directory of ours");
        options.set_modified(at).expect("a file of ours");
    }

    /// Runs the script of the guide, after the commands of `setup`. Waits for all that has its output: also for the pg_rewind of
    /// a script that was killed, which would read what the next call writes.
    fn call(&self, setup: &str, arguments: &[&str], pg_rewind: &str) -> Output {
        let script = include_str!("../../../examples/patroni/pg_rewind.sh")
            .replace("/usr/lib/postgresql/15/bin/pg_rewind", "./pg_rewind");
        let program = self.path("pg_rewind");
        std::fs::write(&program, format!("#!/bin/sh\n{pg_rewind}\n")).expect("a directory of ours");
        std::fs::set_permissions(&program, Permissions::from_mode(0o700)).expect("a file of ours");
        let mut sh = Command::new("/bin/sh");
        let sh = sh.args(["-c", &format!("{setup}\n{script}"), "sh"]).args(arguments).current_dir(self.0.path());
        sh.output().expect("a shell")
    }

    fn rewind(&self, pg_rewind: &str) -> ExitStatus {
        self.call("", &["-D", "data"], pg_rewind).status
    }

    fn assert_mark(&self, expected: &str, case: &str) {
        let mark = std::fs::read_to_string(self.path("data/idgen/mark"));
        assert_eq!(mark.unwrap_or_else(|error| error.to_string()), expected, "{case}");
        assert!(!self.path("data.idgen").exists(), "{case}");
    }
}

/// pg_rewind may be killed, with the script.
#[test]
fn script_for_patroni_keeps_the_own_mark_also_after_a_kill() {
    for step in ["kill -9 $PPID", "rm -rf data/idgen; kill -9 $PPID", "false"] {
        let member = Member::new();
        assert!(!member.rewind(&format!("{TAKE}; {step}")).success(), "{step}");
        assert!(member.rewind(TAKE).success(), "{step}");
        member.assert_mark("own", step);
        // Without a start of the server there is no postmaster.opts.
        assert!(!member.rewind(&format!("{TAKE}; {step}")).success(), "{step}");
        assert!(member.rewind(TAKE).success(), "{step}");
        member.assert_mark("own", step);
    }
}

/// A server that starts after a call that was killed writes a mark of its own.
#[test]
fn script_for_patroni_takes_the_mark_of_a_server_that_has_started_since_by_any_clock() {
    let (hour, now) = (Duration::from_secs(3600), SystemTime::now());
    for [before, after] in [[now, now + hour], [now, now - hour], [now + hour, now], [now + hour, now + 2 * hour]] {
        let case = format!("{before:?}, {after:?}");
        let member = Member::new();
        member.start_server(before);
        assert!(!member.rewind("kill -9 $PPID").success(), "{case}");
        member.write_mark("later");
        member.start_server(after);
        assert!(member.rewind(TAKE).success(), "{case}");
        member.assert_mark("later", &case);
        // The other way round: the mark is the leader's, and the server has not started.
        member.start_server(before);
        assert!(!member.rewind("echo leader > data/idgen/mark; kill -9 $PPID").success(), "{case}");
        assert!(member.rewind(TAKE).success(), "{case}");
        member.assert_mark("later", &case);
    }
}

#[test]
fn script_for_patroni_keeps_the_own_mark_of_a_directory_with_slashes_at_the_end() {
    let member = Member::new();
    assert!(member.call("", &["-D", "data//", "-R"], TAKE).status.success());
    member.assert_mark("own", "");
}

#[test]
fn script_for_patroni_without_a_directory_only_runs_pg_rewind() {
    let output = Member::new().call("set -x", &["--help"], "[ $# = 1 ] && [ $1 = --help ]");
    let trace = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success() && !trace.contains("/idgen"), "{trace}");
}

/// If the data directory is a mount point, the copy is on another file system, and mv copies and removes.
#[test]
fn script_for_patroni_keeps_the_own_mark_if_it_is_killed_while_it_removes_the_copy() {
    const KILLED: &str = "rm() {
      for path; do
        [ ! -e data/idgen/mark ] || [ \"${path#data.idgen}\" = \"$path\" ] || { command rm $path/mark; kill -9 $$; }
      done
      command rm \"$@\"
    }
    mv() {
      case $2 in data/*) cp -a \"$1\" \"$2\" && rm -rf \"$1\" ;; *) command mv \"$@\" ;; esac
    }";
    let member = Member::new();
    assert!(!member.rewind(&format!("{TAKE}; kill -9 $PPID")).success());
    assert!(!member.call(KILLED, &["-D", "data"], TAKE).status.success(), "not killed");
    assert!(member.rewind(TAKE).success());
    member.assert_mark("own", "");
}
