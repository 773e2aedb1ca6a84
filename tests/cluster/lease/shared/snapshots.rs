//! Transactions with a single snapshot: a term of one mode begins only if the snapshot has the writes under the other.

use super::for_each_name_and;

const LEVELS: [[&str; 1]; 2] = [["repeatable read"], ["serializable"]];

/// Each case: what happens before the snapshot and what after it, and if a term of the other mode may begin then.
fn check(next: &str, hold: &str) {
    let script = "-- The holder came and went since the snapshot.
         next: BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM t
         holder: HOLD -> $token
         holder: BEGIN; SELECT lease_fence('NAME', $token); INSERT INTO t VALUES (1); COMMIT
         holder: SELECT lease_release('NAME', $token) -> t
         next: NEXT -> error 40001
         next: ROLLBACK
         -- The holder was there already, and released since.
         holder: HOLD -> $token > $token
         next: BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM t
         holder: BEGIN; SELECT lease_fence('NAME', $token); INSERT INTO t VALUES (1); COMMIT
         holder: SELECT lease_release('NAME', $token) -> t
         next: NEXT -> error 40001
         next: ROLLBACK
         -- The holder expired before the snapshot in which its last write is missing, and did not release.
         holder: HOLD -> $token > $token
         holder: UPDATE idgen.lease SET ends_us = ends_us - ttl_us WHERE token = $token
         next: BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM t
         holder: BEGIN; SELECT lease_fence('NAME', $token); INSERT INTO t VALUES (1); COMMIT
         next: NEXT -> error 40001
         next: ROLLBACK
         -- Nothing has happened since the snapshot.
         holder: SELECT lease_release('NAME', $token) -> t
         next: BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM t
         next: NEXT
         next: ROLLBACK
         -- A transaction of its own has no older snapshot.
         holder: HOLD -> $token > $token
         holder: UPDATE idgen.lease SET ends_us = ends_us - ttl_us WHERE token = $token
         next: SET default_transaction_isolation = '$level'
         next: NEXT";
    for_each_name_and(&script.replace("NEXT", next).replace("HOLD", hold), ["$level"], &LEVELS);
}

#[test]
fn reader_needs_a_snapshot_with_the_last_writes_smoke() {
    check("READ", "WRITE");
}

#[test]
fn writer_needs_a_snapshot_with_what_readers_wrote_smoke() {
    check("WRITE", "READ");
}

#[test]
fn reader_needs_no_snapshot_with_what_readers_wrote() {
    for_each_name_and(
        "two: BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM t
         one: READ -> $token
         two: READ -> $mine > $token
         one: SELECT lease_release('NAME', $token)
         two: COMMIT
         two: BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM t
         one: READ -> $newer
         -- As for an exclusive term.
         two: SELECT lease_fence('NAME', $newer) -> error 40001",
        ["$level"],
        &LEVELS,
    );
}
