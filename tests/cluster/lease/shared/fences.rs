//! Fences and the other mode: a term of one mode begins after the transactions that have fenced by terms of the other.

use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{backend_pid, execute, expect_error, value};

use super::{NAMES, expire, fence, read, start, write};
use crate::{builder, locks_of, release, wait_until_waiting_for_row};

/// How a term ends while a transaction that has fenced by it goes on. `$1` is the token, `$2` the slot.
const ENDS: [&str; 3] = [
    "UPDATE idgen.lease SET ends_us = 0 WHERE token = $1",
    "SELECT lease_release('$0', $1)",
    "SELECT lease_revoke('$0', $2)",
];

fn end(how: &str, name: &str, token: i64, slot: i32) -> String {
    how.replace("$0", name).replace("$1", &token.to_string()).replace("$2", &slot.to_string())
}

#[test]
fn writer_waits_for_all_fences_of_readers_smoke() {
    let cluster = start();
    for (name, how) in NAMES.into_iter().flat_map(|name| ENDS.map(|how| (name, how))) {
        let [mut one, mut two, mut other, mut writer] = [(); 4].map(|()| cluster.client());
        let pid = backend_pid(&mut writer);
        let grants = [read(&mut one, name), read(&mut two, name)];
        fence(&mut one, name, grants[0].token);
        fence(&mut two, name, grants[1].token);
        for grant in grants {
            execute(&mut other, &end(how, name, grant.token, grant.slot));
        }
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| write(&mut writer, name));
            wait_until_waiting_for_row(&cluster, pid);
            execute(&mut one, "COMMIT");
            // The second fence is still there: the writer waits for its transaction.
            let waits = format!("SELECT count(*) FROM idgen.lease WHERE name = '{name}' AND slot = 0 AND depth > 0");
            assert_eq!(value::<i64>(&mut other, &waits), 0, "{how}");
            wait_until_waiting_for_row(&cluster, pid);
            execute(&mut two, "COMMIT");
            let written = writing.join().unwrap();
            assert!(written > grants[1].token);
            for grant in grants {
                expect_error(&mut other, &format!("SELECT lease_fence('{name}', {})", grant.token), "55000");
            }
            release(&mut other, name, written);
        });
    }
}

#[test]
fn reader_waits_for_the_fence_of_a_writer_smoke() {
    let cluster = start();
    for (name, how) in NAMES.into_iter().flat_map(|name| ENDS.map(|how| (name, how))) {
        let [mut writer, mut other, mut reader] = [(); 3].map(|()| cluster.client());
        let pid = backend_pid(&mut reader);
        let token = write(&mut writer, name);
        fence(&mut writer, name, token);
        execute(&mut other, &end(how, name, token, 0));
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&mut reader, name).token);
            wait_until_waiting_for_row(&cluster, pid);
            execute(&mut writer, "COMMIT");
            let read = reading.join().unwrap();
            expect_error(&mut writer, &format!("SELECT lease_fence('{name}', {token})"), "55000");
            assert!(read > token);
            release(&mut other, name, read);
        });
    }
}

/// The wait for a fence of the other mode is in the lock manager from the beginning: no other slot can become free first.
#[test]
fn deadlock_of_a_fence_and_the_other_mode_is_detected() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (0)");
    for (first, second) in [("false", "true"), ("true", "false")] {
        let [mut holder, mut waiter] = [cluster.client(), cluster.client()];
        let (holder_pid, pid) = (backend_pid(&mut holder), backend_pid(&mut waiter));
        let token = acquire(&mut holder, &format!("'d', '1 day', shared => {first}")).token;
        execute(&mut holder, "SET deadlock_timeout = '10min'");
        fence(&mut holder, "d", token);
        expire(&mut cluster.client(), token);
        execute(&mut waiter, "SET deadlock_timeout = '10ms'; SET statement_timeout = '8s'; BEGIN");
        execute(&mut waiter, "UPDATE t SET n = n + 1; SAVEPOINT s");
        std::thread::scope(|scope| {
            let update = scope.spawn(|| execute(&mut holder, "UPDATE t SET n = n + 1"));
            wait_until_waiting_for_row(&cluster, holder_pid);
            expect_error(&mut waiter, &format!("SELECT lease_acquire('d', '1 day', shared => {second})"), "40P01");
            execute(&mut waiter, "ROLLBACK TO s");
            assert_eq!(locks_of(&mut waiter, pid), 0, "{second}");
            execute(&mut waiter, "ROLLBACK");
            update.join().unwrap();
        });
        execute(&mut holder, "COMMIT; DELETE FROM idgen.lease");
    }
}
