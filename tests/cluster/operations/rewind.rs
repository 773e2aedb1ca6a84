//! pg_rewind of an old primary that has issued ids after the promotion of its standby. Each server has its own worker id.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
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

/// The script of the guide for Patroni, with a pg_rewind that takes the mark of the leader and may be killed, with the script.
/// A server that starts after that writes a mark of its own.
#[test]
fn script_for_patroni_keeps_the_own_mark_also_after_a_kill() {
    const TAKE: &str = "rm -rf data/idgen; mkdir data/idgen; echo leader > data/idgen/mark";
    const STEPS: [&str; 3] = ["kill -9 $PPID", "rm -rf data/idgen; kill -9 $PPID", "false"];
    let script = include_str!("../../../examples/patroni/pg_rewind.sh")
        .replace("/usr/lib/postgresql/15/bin/pg_rewind", "./pg_rewind");
    for step in STEPS {
        let directory = tempfile::tempdir().expect("a directory");
        let call = |work: &str| {
            let pg_rewind = directory.path().join("pg_rewind");
            std::fs::write(&pg_rewind, format!("#!/bin/sh\n{work}\n")).expect("a directory of ours");
            std::fs::set_permissions(&pg_rewind, Permissions::from_mode(0o700)).expect("a file of ours");
            let mut sh = Command::new("/bin/sh");
            sh.args(["-c", &script, "sh", "-D", "data"]).current_dir(directory.path()).status().expect("a shell")
        };
        let mark = directory.path().join("data/idgen/mark");
        std::fs::create_dir_all(mark.parent().expect("a directory")).expect("a directory of ours");
        std::fs::write(&mark, "own").expect("a directory of ours");
        let assert_kept = |expected: &str| {
            assert!(call(TAKE).success(), "{step}");
            assert_eq!(std::fs::read_to_string(&mark).expect("the mark"), expected, "{step}");
            assert!(!directory.path().join("data.idgen").exists(), "{step}");
        };
        assert!(!call(&format!("{TAKE}; {step}")).success(), "{step}");
        assert_kept("own");
        assert!(!call("kill -9 $PPID").success(), "{step}");
        std::fs::write(&mark, "later").expect("a directory of ours");
        let options = File::create(directory.path().join("data/postmaster.opts")).expect("a directory of ours");
        options.set_modified(SystemTime::now() + Duration::from_secs(1)).expect("a file of ours");
        assert_kept("later");
    }
}
