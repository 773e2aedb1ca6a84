//! Fences and the other mode: a term of one mode begins after the transactions that have fenced by terms of the other.

use idgen_testkit::script::play_each;

use super::for_each_name_and;
use crate::builder;

/// How a term ends while a transaction that has fenced by it goes on.
const ENDS: [[&str; 1]; 3] = [
    ["UPDATE idgen.lease SET ends_us = 0 WHERE token = $token"],
    ["SELECT lease_release('NAME', $token)"],
    ["SELECT lease_revoke('NAME', slot) FROM idgen.lease WHERE token = $token"],
];

#[test]
fn writer_waits_for_all_fences_of_readers_smoke() {
    for_each_name_and(
        "one: READ -> $token
         two: READ -> $second
         one: BEGIN; SELECT lease_fence('NAME', $token)
         two: BEGIN; SELECT lease_fence('NAME', $second)
         other: $end
         other: SELECT $token -> $first
         other: SELECT $second -> $token > $first
         other: $end
         writer waits for transactionid: WRITE
         one: COMMIT
         -- The second fence is still there: the writer waits for its transaction.
         other: SELECT count(*) FROM idgen.lease WHERE name = 'NAME' AND slot = 0 AND depth > 0 -> 0
         writer waits for transactionid
         two: COMMIT
         writer ends -> $written > $second
         other: SELECT lease_fence('NAME', $first) -> error 55000
         other: SELECT lease_fence('NAME', $second) -> error 55000",
        ["$end"],
        &ENDS,
    );
}

#[test]
fn reader_waits_for_the_fence_of_a_writer_smoke() {
    for_each_name_and(
        "writer: WRITE -> $token
         writer: BEGIN; SELECT lease_fence('NAME', $token)
         other: $end
         reader waits for transactionid: READ
         writer: COMMIT
         reader ends -> $read > $token
         writer: SELECT lease_fence('NAME', $token) -> error 55000",
        ["$end"],
        &ENDS,
    );
}

/// The wait for a fence of the other mode is in the lock manager from the beginning: no other slot can become free first.
#[test]
fn deadlock_of_a_fence_and_the_other_mode_is_detected() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (0)");
    play_each(
        &cluster,
        "holder: SELECT token FROM lease_acquire('d', '1 day', shared => $first) -> $token
         holder: SET deadlock_timeout = '10min'; BEGIN; SELECT lease_fence('d', $token)
         other: UPDATE idgen.lease SET ends_us = 0
         waiter: SET deadlock_timeout = '10ms'; SET statement_timeout = '8s'
         waiter: BEGIN; UPDATE t SET n = n + 1; SAVEPOINT s
         holder waits for transactionid: UPDATE t SET n = n + 1
         waiter: SELECT lease_acquire('d', '1 day', shared => $second) -> error 40P01
         waiter: ROLLBACK TO s
         waiter: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $waiter_pid -> 0
         waiter: ROLLBACK
         holder ends
         holder: COMMIT; DELETE FROM idgen.lease",
        ["$first", "$second"],
        &[["false", "true"], ["true", "false"]],
    );
}
