//! Shared terms that transactions have begun and not committed.

use idgen_testkit::Cluster;
use idgen_testkit::lease::take_if_free;
use idgen_testkit::sql::{backend_pid, execute, expect_error, value};

use super::{NAMES, fence, read, read_if_free, start, write};
use crate::{locks_of, release, states, wait_for_one, wait_until_head, wait_until_waiting_for_row};

/// Waits until a process waits for transactions that have begun shared terms. 27751 is the class of their locks.
fn wait_until_waiting_for_readers(cluster: &Cluster, pid: i32) {
    let waiting = format!("pg_locks WHERE pid = {pid} AND NOT granted AND objsubid = 27751");
    wait_for_one(cluster, "the session to wait for readers", &waiting);
}

/// Its row is not visible yet, but other readers are granted beside it.
#[test]
fn uncommitted_reader_keeps_writers_out_until_it_ends_smoke() {
    let cluster = start();
    let ends = [
        ("COMMIT", true),
        ("ROLLBACK", false),
        ("ROLLBACK TO s", false),
        ("RELEASE s; COMMIT", true),
        ("RELEASE s; ROLLBACK", false),
    ];
    for (name, (end, is_held)) in NAMES.into_iter().flat_map(|name| ends.map(|end| (name, end))) {
        let [mut reader, mut beside, mut writer] = [(); 3].map(|()| cluster.client());
        let pid = backend_pid(&mut writer);
        execute(&mut reader, "BEGIN; SAVEPOINT s");
        let token = read(&mut reader, name).token;
        let other = read(&mut beside, name).token;
        assert!(release(&mut beside, name, other));
        assert!(states(&mut beside, name).iter().all(|state| !state.contains("held")));
        assert_eq!(take_if_free(&mut writer, name), None);
        assert_eq!(locks_of(&mut beside, pid), 0, "a refused call leaves no lock");
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| write(&mut writer, name));
            wait_until_waiting_for_readers(&cluster, pid);
            execute(&mut reader, end);
            if is_held {
                wait_until_head(&cluster, pid);
                assert!(release(&mut beside, name, token), "{end}");
            }
            let written = writing.join().unwrap();
            release(&mut beside, name, written);
        });
        execute(&mut reader, "ROLLBACK; DELETE FROM idgen.lease");
    }
}

/// It has ended the term of the writer, which the others do not see.
#[test]
fn readers_wait_for_the_first_one_after_a_writer() {
    let cluster = start();
    for (end, left) in [("COMMIT", 2), ("ROLLBACK", 1)] {
        let [mut first, mut second, mut other] = [(); 3].map(|()| cluster.client());
        let pid = backend_pid(&mut second);
        let written = write(&mut other, "defined");
        release(&mut other, "defined", written);
        execute(&mut first, "BEGIN");
        read(&mut first, "defined");
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&mut second, "defined"));
            wait_until_waiting_for_row(&cluster, pid);
            execute(&mut first, end);
            reading.join().unwrap();
        });
        assert_eq!(states(&mut other, "defined").len(), left, "{end}");
        execute(&mut other, "DELETE FROM idgen.lease");
    }
}

#[test]
fn killed_session_with_an_uncommitted_reader_lets_a_writer_in() {
    let cluster = start();
    let [mut reader, mut writer, mut other] = [(); 3].map(|()| cluster.client());
    let (reader_pid, pid) = (backend_pid(&mut reader), backend_pid(&mut writer));
    execute(&mut reader, "BEGIN");
    read(&mut reader, "defined");
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&mut writer, "defined"));
        wait_until_waiting_for_readers(&cluster, pid);
        execute(&mut other, &format!("SELECT pg_terminate_backend({reader_pid})"));
        writing.join().unwrap();
    });
}

/// Each waits for the other's transaction.
#[test]
fn deadlock_of_two_readers_that_want_to_write_is_detected() {
    let cluster = start();
    let [mut one, mut two] = [cluster.client(), cluster.client()];
    let pid = backend_pid(&mut one);
    execute(&mut one, "BEGIN; SET deadlock_timeout = '10min'");
    execute(&mut two, "BEGIN; SET deadlock_timeout = '10ms'");
    read(&mut one, "defined");
    read(&mut two, "defined");
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| expect_error(&mut one, "SELECT lease_acquire('defined')", "57014"));
        wait_until_waiting_for_readers(&cluster, pid);
        expect_error(&mut two, "SELECT lease_acquire('defined')", "40P01");
        execute(&mut two, "ROLLBACK");
        // Its own shared term still keeps it from writing.
        wait_until_head(&cluster, pid);
        execute(&mut cluster.client(), &format!("SELECT pg_cancel_backend({pid})"));
        writing.join().unwrap();
    });
}

#[test]
fn reader_that_is_refused_keeps_no_lock() {
    let cluster = start();
    for name in NAMES {
        let [mut writer, mut reader, mut other] = [(); 3].map(|()| cluster.client());
        let pid = backend_pid(&mut reader);
        let token = write(&mut writer, name);
        fence(&mut writer, name, token);
        execute(&mut other, &format!("SELECT lease_release('{name}', {token})"));
        execute(&mut reader, "BEGIN");
        assert_eq!(read_if_free(&mut reader, name), None);
        assert_eq!(locks_of(&mut other, pid), 0, "{name}");
        execute(&mut writer, "COMMIT");
        let written = take_if_free(&mut other, name).expect("no term is left");
        execute(&mut reader, "COMMIT");
        release(&mut other, name, written);
    }
}

/// Locks and rows go with their terms.
#[test]
fn released_shared_terms_leave_no_row_and_no_lock() {
    let cluster = start();
    let [mut reader, mut other] = [cluster.client(), cluster.client()];
    let pid = backend_pid(&mut reader);
    for name in NAMES {
        for _ in 0..20 {
            let token = read(&mut reader, name).token;
            execute(&mut reader, &format!("BEGIN; SELECT lease_fence('{name}', {token}); COMMIT"));
            release(&mut reader, name, token);
            // In the transaction of the fence, too.
            let token = read(&mut reader, name).token;
            fence(&mut reader, name, token);
            release(&mut reader, name, token);
            execute(&mut reader, "COMMIT");
        }
    }
    assert_eq!(value::<i64>(&mut other, "SELECT count(*) FROM idgen.lease WHERE slot > 0"), 0);
    assert_eq!(locks_of(&mut other, pid), 0);
}
