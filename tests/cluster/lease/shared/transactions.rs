//! Shared terms that transactions have begun and not committed.

use super::{for_each_name, for_each_name_and, start};
use idgen_testkit::script::{play, play_each};

/// Its row is not visible yet, but other readers are granted beside it. 27751 is the class of the locks of such readers.
#[test]
fn uncommitted_reader_keeps_writers_out_until_it_ends_smoke() {
    let held = "writer waits for Extension
         beside: SELECT lease_release('NAME', $token) -> t";
    for_each_name_and(
        "reader: BEGIN; SAVEPOINT s; READ -> $token
         beside: READ -> $other
         beside: SELECT lease_release('NAME', $other) -> t
         beside: SELECT count(*) FROM idgen.leases WHERE name = 'NAME' AND state = 'held' -> 0
         writer: SELECT lease_try_acquire('NAME') -> nothing
         -- A refused call leaves no lock.
         beside: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $writer_pid -> 0
         writer waits for advisory: WRITE
         beside: SELECT objsubid FROM pg_locks WHERE pid = $writer_pid AND NOT granted -> 27751
         reader: $ending
         $held
         writer ends -> $written > $token",
        ["$ending", "$held"],
        &[
            ["COMMIT", held],
            ["ROLLBACK", ""],
            ["ROLLBACK TO s", ""],
            ["RELEASE s; COMMIT", held],
            ["RELEASE s; ROLLBACK", ""],
        ],
    );
}

/// It has ended the term of the writer, which the others do not see.
#[test]
fn readers_wait_for_the_first_one_after_a_writer() {
    play_each(
        &start(),
        "other: SELECT lease_release('defined', token) FROM lease_acquire('defined') -> t
         first: BEGIN; SELECT lease_acquire('defined', shared => true)
         second waits for transactionid: SELECT lease_acquire('defined', shared => true)
         first: $end
         second ends
         other: SELECT count(*) FROM idgen.leases -> $left
         other: DELETE FROM idgen.lease",
        ["$end", "$left"],
        &[["COMMIT", "2"], ["ROLLBACK", "1"]],
    );
}

#[test]
fn killed_session_with_an_uncommitted_reader_lets_a_writer_in() {
    play(
        &start(),
        "reader: BEGIN; SELECT lease_acquire('defined', shared => true)
         writer waits for advisory: SELECT lease_acquire('defined')
         other: SELECT objsubid FROM pg_locks WHERE pid = $writer_pid AND NOT granted -> 27751
         other: SELECT pg_terminate_backend($reader_pid) -> t
         writer ends",
    );
}

/// Each waits for the other's transaction.
#[test]
fn deadlock_of_two_readers_that_want_to_write_is_detected() {
    play(
        &start(),
        "one: BEGIN; SET deadlock_timeout = '10min'; SELECT lease_acquire('defined', shared => true)
         two: BEGIN; SET deadlock_timeout = '10ms'; SELECT lease_acquire('defined', shared => true)
         one waits for advisory: SELECT lease_acquire('defined')
         other: SELECT objsubid FROM pg_locks WHERE pid = $one_pid AND NOT granted -> 27751
         two: SELECT lease_acquire('defined') -> error 40P01
         two: ROLLBACK
         -- Its own shared term still keeps it from writing.
         one waits for Extension
         two: SELECT pg_cancel_backend($one_pid)
         one ends -> error 57014",
    );
}

#[test]
fn reader_that_is_refused_keeps_no_lock() {
    for_each_name(
        "writer: WRITE -> $token
         writer: BEGIN; SELECT lease_fence('NAME', $token)
         other: SELECT lease_release('NAME', $token) -> t
         reader: BEGIN; SELECT lease_try_acquire('NAME', shared => true) -> nothing
         other: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $reader_pid -> 0
         writer: COMMIT
         other: SELECT token FROM lease_try_acquire('NAME') -> $written > $token
         reader: COMMIT",
    );
}

/// Locks and rows go with their terms.
#[test]
fn released_shared_terms_leave_no_row_and_no_lock() {
    let begin = "reader: SELECT 0 -> $token
         ";
    let once = "reader: READ -> $token > $token
         reader: BEGIN; SELECT lease_fence('NAME', $token); COMMIT
         reader: SELECT lease_release('NAME', $token) -> t
         -- In the transaction of the fence, too.
         reader: READ -> $token > $token
         reader: BEGIN; SELECT lease_fence('NAME', $token); SELECT lease_release('NAME', $token); COMMIT
         ";
    let end = "other: SELECT count(*) FROM idgen.lease WHERE slot > 0 -> 0
         other: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $reader_pid -> 0";
    for_each_name(&(begin.to_owned() + &once.repeat(20) + end));
}

/// A cursor acquires at its first row. Its second row is an error.
#[test]
fn reader_that_a_cursor_has_acquired_ends_with_its_savepoint() {
    for_each_name_and(
        "reader: BEGIN; DECLARE c CURSOR FOR SELECT CASE n WHEN 1 THEN (READ) ELSE 1 / (n - 2) END
             FROM generate_series(1, 2) AS n
         $before
         reader: FETCH c -> $token
         reader: SAVEPOINT t
         reader: FETCH c -> error 22012
         reader: ROLLBACK TO $savepoint
         reader: COMMIT
         other: SELECT count(*) FROM idgen.leases WHERE name = 'NAME' AND state = 'held' -> $held",
        ["$before", "$savepoint", "$held"],
        &[["", "t", "1"], ["reader: SAVEPOINT s", "s", "0"]],
    );
}
