//! Killed and paused processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idgen_testkit::sql::backend_pid;
use idgen_testkit::{Cluster, Example, pause};

use crate::{builder, is_process, number, recoveries, text};

#[test]
fn server_recovers_after_a_backend_is_killed() {
    let cluster = builder().start();
    let mut bystander = cluster.client();
    let mut victim = cluster.client();
    bystander.batch_execute("CREATE TABLE t AS SELECT 7 AS x").unwrap();
    let postmaster = cluster.pid_of_postmaster();

    cluster.kill9(backend_pid(&mut victim));
    cluster.wait_until_ready();

    assert_eq!(cluster.pid_of_postmaster(), postmaster, "the postmaster survives");
    assert_eq!(recoveries(&cluster), 1);
    assert!(bystander.simple_query("SELECT 1").is_err(), "the crash ends every session");
    assert_eq!(text(&mut cluster.client(), "SELECT x::text FROM t"), "7");
}

#[test]
fn kill9_rejects_processes_of_other_servers() {
    let (ours, other) = (builder().start(), builder().start());
    let stranger = backend_pid(&mut other.client());
    for pid in [stranger, other.pid_of_postmaster(), std::process::id() as i32] {
        let refusal = catch_unwind(AssertUnwindSafe(|| ours.kill9(pid))).expect_err("a process of another server");
        let refusal = refusal.downcast_ref::<String>().unwrap();
        assert!(refusal.contains("is not a child of postmaster"), "{refusal}");
    }
    assert_eq!(recoveries(&other), 0);
    // The panic left no lock held.
    ours.restart();
}

#[test]
fn process_that_ended_by_itself_is_not_killed() {
    let cluster = builder().start();
    let pid = backend_pid(&mut cluster.client());
    cluster.wait_for(Duration::from_secs(30), "the session to end", || !is_process(pid));
    assert!(!cluster.kill9_if_running(pid));
    assert_eq!(recoveries(&cluster), 0);
    let mut victim = cluster.client();
    assert!(cluster.kill9_if_running(backend_pid(&mut victim)));
    assert_eq!(recoveries(&cluster), 1);
}

#[test]
fn lines_for_a_program_that_does_not_read_block_nobody() {
    let cluster = builder().start();
    let mut deaf = Example::start(&cluster, Command::new("/bin/sleep").arg("1000"));
    // More than a pipe holds.
    (0..10_000).for_each(|_| deaf.send_if_it_reads(&"x".repeat(100)));
    assert!(!deaf.has_exited());
    deaf.kill();
    deaf.send_if_it_reads("it has ended");
}

#[test]
fn server_starts_again_after_its_postmaster_is_killed() {
    let cluster = builder().start();
    cluster.execute("CREATE TABLE t AS SELECT 7 AS x");
    // One session sleeps and one waits for its client: each must notice the death of the postmaster by itself.
    let mut idle = cluster.client();
    let mut asleep = cluster.client();
    let asleep_pid = backend_pid(&mut asleep);
    std::thread::scope(|scope| {
        let sleep = scope.spawn(|| asleep.simple_query("SELECT pg_sleep(100)").map(drop));
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {asleep_pid} AND wait_event = 'PgSleep'");
        cluster.wait_for(Duration::from_secs(30), "the session to sleep", || number(&mut idle, &sql) == 1);
        cluster.kill9_postmaster();
        assert!(!is_process(asleep_pid));
        assert!(sleep.join().unwrap().is_err());
    });
    assert!(idle.simple_query("SELECT 1").is_err());
    assert!(cluster.try_client().is_err());

    cluster.start_again();
    assert_eq!(recoveries(&cluster), 1);
    assert_eq!(text(&mut cluster.client(), "SELECT x::text FROM t"), "7");
}

#[test]
fn paused_process_resumes_when_the_guard_is_dropped() {
    let cluster = builder().start();
    let mut client = cluster.client();
    let pid = backend_pid(&mut client);
    let stopped = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap().contains("State:\tT");

    let guard = pause(pid);
    assert!(stopped());
    drop(guard);
    assert_eq!(backend_pid(&mut client), pid);

    let guard = pause(pid);
    assert!(stopped());
    guard.resume();
    assert_eq!(backend_pid(&mut client), pid);
}

#[test]
fn paused_process_does_not_outlive_its_cluster() {
    for is_postmaster in [false, true] {
        let cluster = builder().start();
        let mut client = cluster.client();
        let (dir, pids) = (cluster.data_dir(), [backend_pid(&mut client), cluster.pid_of_postmaster()]);
        let _paused = pause(pids[usize::from(is_postmaster)]);
        drop(cluster);
        assert_eq!(pids.map(is_process), [false; 2], "postmaster: {is_postmaster}");
        assert!(!dir.exists());
    }
}

/// The shell of a `restore_command` is no child of the postmaster, and shares the memory of the startup process until it
/// is a program of its own. A start before that moment is refused. Here the test itself is attached.
#[test]
fn killed_postmaster_is_waited_for_until_its_memory_is_released() {
    let cluster = builder().start();
    let segment = segment_of(&cluster);
    let sql = "SELECT pid FROM pg_stat_activity";
    let processes: Vec<i32> = cluster.client().query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    // SAFETY: the segment exists, the system chooses a free address, and nothing reads or writes there.
    let attached = unsafe { nix::libc::shmat(segment, std::ptr::null(), nix::libc::SHM_RDONLY) };
    assert_ne!(attached.addr(), usize::MAX, "shmat: {}", std::io::Error::last_os_error());
    let is_released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cluster.kill9_postmaster();
            assert!(is_released.load(Ordering::SeqCst), "the test is still attached");
        });
        let are_reaped = || !processes.iter().any(|&pid| is_process(pid));
        cluster.wait_for(Duration::from_secs(30), "the death of all processes", are_reaped);
        is_released.store(true, Ordering::SeqCst);
        // SAFETY: `shmat` returned this address, and no reference into the segment exists.
        assert_eq!(unsafe { nix::libc::shmdt(attached) }, 0);
    });
}

/// The shared memory of the server: in the seventh line of its lock file, after the key.
fn segment_of(cluster: &Cluster) -> i32 {
    let lock_file = std::fs::read_to_string(cluster.data_dir().join("postmaster.pid")).unwrap();
    lock_file.lines().nth(6).unwrap().split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn killed_server_leaves_no_shared_memory_behind() {
    let cluster = builder().start();
    let id = segment_of(&cluster).to_string();
    let segments = || std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let exists = || segments().lines().any(|line| line.split_ascii_whitespace().nth(1) == Some(&id));

    cluster.kill9_postmaster();
    assert!(exists(), "segment {id} exists until the next start");
    drop(cluster);
    assert!(!exists(), "segment {id} is left");
}
