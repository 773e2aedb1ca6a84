//! Scripts of several sessions: each kind of step, and each way in which a script fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use idgen_testkit::script::play;

use crate::{builder, recoveries};

#[test]
fn steps_run_in_their_sessions_in_order() {
    let cluster = builder().start();
    play(
        &cluster,
        "a: CREATE TABLE t (n int); INSERT INTO t VALUES (7), (8)
        -- A comment.
        a: SELECT n, NULL FROM t -> 7|null, 8|null
        a: DELETE FROM t WHERE n = 9 RETURNING n -> nothing
        a: SELECT max(n) FROM t -> $n
        b: SELECT $n + 1 -> $n > $n
        a: SELECT '$n $nn $n$n', pg_backend_pid() = $a_pid, $b_pid <> $a_pid
            -> 9 $nn 99|t|t",
    );
}

#[test]
fn step_that_waits_goes_on_when_another_session_lets_it() {
    let cluster = builder().start();
    play(
        &cluster,
        "a: CREATE TABLE t (n int PRIMARY KEY); SELECT pg_advisory_lock(1)
        b waits for advisory: SELECT pg_advisory_lock(1); SELECT 7
        c waits for Lock: SELECT pg_advisory_lock(1)
        c waits for advisory
        until: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' -> 3
        a: SELECT pg_advisory_unlock(1)
        b ends -> '', 7
        a: SELECT pg_cancel_backend($c_pid)
        c ends -> error 57014 canceling statement
        b leaves
        until: SELECT count(*) FROM pg_stat_activity WHERE pid = $b_pid -> 0
        a: SELECT pg_terminate_backend(pg_backend_pid()) -> error
        b: SELECT pg_advisory_lock(2)
        d waits for advisory: SELECT pg_advisory_lock(2)
        d is paused
        b: SELECT pg_advisory_unlock(2) -> t
        b: SELECT wait_event FROM pg_stat_activity WHERE pid = $d_pid -> advisory
        d resumes
        d ends
        c: INSERT INTO t VALUES (1), (1) -> error 23505 Key (n)=(1) already exists",
    );
}

#[test]
fn steps_change_the_server_and_whose_the_sessions_are() {
    let cluster = builder().fake_clock().start();
    play(
        &cluster,
        "a: CREATE ROLE app LOGIN
        a: CREATE DATABASE shop
        a: CREATE TABLE t AS SELECT now() AS began
        b connects to shop as app
        b: SELECT current_database(), current_user -> shop|app
        c connects as app
        c: SELECT current_database(), current_user -> has postgres and app
        clock: 3600 s
        a: SELECT now() - began > '59 min' FROM t -> t
        clock: -3600 s
        a: SELECT now() < began FROM t -> t
        setting: work_mem = 1MB
        a: SHOW work_mem -> 1MB
        setting: search_path = ''
        d: SHOW search_path -> ''
        server: restarts
        c: SELECT current_user -> postgres
        server: crashes
        a: SELECT count(*) FROM public.t -> 1
        c: SELECT
        a is killed
        c: SELECT count(*) FROM public.t -> 1",
    );
    assert_eq!(recoveries(&cluster), 2);
}

#[test]
fn script_with_another_outcome_fails() {
    let cluster = builder().start();
    for (script, failure) in [
        ("a: SELECT 7 -> 8", "a: SELECT 7 -> 8"),
        ("a: SELECT 7 -> nothing", "right: \"nothing\""),
        ("a: SELECT 1 / 0", "22012"),
        ("a: SELECT 1 / 0 -> 7", "22012"),
        ("a: SELECT 1 / 0 -> error 55000", "a: SELECT 1 / 0 -> error 55000"),
        ("a: SELECT 1 / 0 -> error 22012 another text", "division by zero"),
        ("a: SELECT 7 -> error 22012", "Ok(\"7\")"),
        ("a: SELECT 7 -> error", "Ok(\"7\")"),
        ("a: SELECT 7 -> $n > 7", "7 after 7"),
        ("a: SELECT $n", "42601"),
        ("a waits for advisory: SELECT 7", "it does not wait, but returns Ok(\"7\")"),
        (
            "a: SELECT pg_advisory_lock(1)\nb waits for advisory: SELECT pg_advisory_lock(1)",
            "session b waits at the end",
        ),
        ("a: SELECT pg_advisory_lock(2)\nb waits for advisory: SELECT pg_advisory_lock(2)\nb: SELECT 7", "still waits"),
        ("a waits for Lock", "a waits for Lock: it does not wait"),
        ("a ends", "a ends: it does not wait"),
        ("a runs: SELECT 7", "is no step"),
        ("a: SELECT 7 -> $n|8", "is no variable"),
        ("a: SELECT 7 -> $n\na: SELECT 8 -> $n", "has a value"),
        ("a: SELECT 7\na resumes", "a resumes: it is not paused"),
        ("a: SELECT 'xyz' -> has x and a", "a: SELECT 'xyz' -> has x and a: xyz"),
        ("a: SELECT 7\na connects as postgres", "it is connected"),
        ("setting: a", "no value"),
        ("clock: 1 h", "no seconds"),
        ("server: sleeps", "is no step"),
        ("server: restarts -> x", "no outcome"),
        ("a connects as postgres -> x", "no outcome"),
        ("a: SELECT 7\na is paused -> x", "no outcome"),
        (
            "a: SELECT pg_advisory_lock(3)\nb waits for advisory: SELECT pg_advisory_lock(3)\nserver: restarts",
            "b waits at",
        ),
    ] {
        let failed = catch_unwind(AssertUnwindSafe(|| play(&cluster, script))).expect_err(script);
        let message = failed.downcast_ref::<String>().expect("a message");
        assert!(message.contains(failure), "{script}: {message}");
    }
}
