//! Timeouts of a few milliseconds while many sessions want one lock, so that timeouts and grants often coincide.

use idgen_testkit::Cluster;
use idgen_testkit::rounds;
use idgen_testkit::sql::{backend_pid, execute, value};
use postgres::Client;
use postgres::error::SqlState;

use crate::{builder, locks_of};

const SESSIONS: [usize; 2] = [16, 64];
const TIMEOUTS_MS: [u32; 3] = [1, 2, 5];

/// One way to take the lock. `$ms` in `take` is the timeout. Without it, `lock_timeout` applies.
struct Form {
    take: &'static str,
    release: &'static str,
}

const ONE: &str = "SELECT lock_release('hot')";
const MANY: &str = "SELECT lock_release_many('{cold,hot}')";
/// The end of the transaction releases a transaction lock.
const NONE: &str = "";

const FORMS: [Form; 8] = [
    Form { take: "SELECT lock_try_acquire('hot', '$ms ms')", release: ONE },
    Form { take: "SELECT lock_try_acquire_xact('hot', '$ms ms')", release: NONE },
    Form { take: "SELECT lock_try_acquire_many('{cold,hot}', '$ms ms')", release: MANY },
    Form { take: "SELECT lock_try_acquire_many_xact('{cold,hot}', '$ms ms')", release: NONE },
    Form { take: "SELECT true FROM lock_acquire('hot')", release: ONE },
    Form { take: "SELECT true FROM lock_acquire_xact('hot')", release: NONE },
    Form { take: "SELECT true FROM lock_acquire_many('{cold,hot}')", release: MANY },
    Form { take: "SELECT true FROM lock_acquire_many_xact('{cold,hot}')", release: NONE },
];

/// The call without idgen.
const CONTROL: Form = Form { take: "SELECT true FROM pg_advisory_lock(42)", release: "SELECT pg_advisory_unlock(42)" };

#[derive(Debug, Default)]
struct Seen {
    granted: usize,
    refused: usize,
    /// Locks held by a session whose call failed.
    ghosts: usize,
}

impl Seen {
    fn sum(sessions: impl Iterator<Item = Seen>) -> Seen {
        sessions.fold(Seen::default(), |all, one| Seen {
            granted: all.granted + one.granted,
            refused: all.refused + one.refused,
            ghosts: all.ghosts + one.ghosts,
        })
    }
}

/// What ends a wait that takes too long.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// `lock_timeout`, or the timeout of the call.
    Timeout,
    /// `statement_timeout`, which can strike at any time in the message.
    Cancel,
}

/// Tries to take the lock repeatedly, and counts the held locks whenever that fails.
fn contend(cluster: &Cluster, form: &Form, end: End, tries: usize) -> Seen {
    let mut client = cluster.client();
    let pid = backend_pid(&mut client);
    let mut seen = Seen::default();
    for ms in TIMEOUTS_MS.iter().cycle().take(tries) {
        let granted = match end {
            End::Timeout => take_in_time(&mut client, form, *ms),
            End::Cancel => take_uncancelled(&mut client, form, *ms),
        };
        let held = locks_of(&mut client, pid);
        if granted {
            seen.granted += 1;
            let is_over = end == End::Cancel && form.release == NONE;
            assert!(held > 0 || is_over, "{} succeeded but holds nothing", form.take);
            execute(&mut client, &format!("SELECT pg_sleep(0.001); {}", form.release));
        } else {
            seen.refused += 1;
            seen.ghosts += held as usize;
            execute(&mut client, "SELECT pg_advisory_unlock_all()");
        }
        if end == End::Timeout {
            execute(&mut client, "COMMIT");
        }
        assert_eq!(locks_of(&mut client, pid), 0, "{}", form.take);
    }
    let noted = "SELECT count(*) FROM idgen.lock_get_holds() WHERE pid = pg_backend_pid()";
    assert_eq!(value::<i64>(&mut client, noted), 0);
    seen
}

/// In a transaction block, which goes on.
fn take_in_time(client: &mut Client, form: &Form, ms: u32) -> bool {
    if !form.take.contains("$ms") {
        execute(client, &format!("SET lock_timeout = {ms}"));
    }
    execute(client, "BEGIN");
    let answer = client.query_one(&form.take.replace("$ms", &ms.to_string()), &[]).map(|row| row.get(0));
    answer.unwrap_or_else(|error| {
        assert!(!form.take.contains("$ms"), "a try call does not raise an error: {}: {error:?}", form.take);
        assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE), "{}: {error:?}", form.take);
        execute(client, "ROLLBACK; BEGIN");
        false
    })
}

/// In a transaction of its own.
fn take_uncancelled(client: &mut Client, form: &Form, ms: u32) -> bool {
    let take = client.prepare(&form.take.replace("$ms ms", "1 min")).expect("the form can be prepared");
    execute(client, &format!("SET statement_timeout = {ms}"));
    let answer = client.query_one(&take, &[]).map(|row| row.get(0));
    // It can be cancelled too.
    while client.batch_execute("RESET statement_timeout").is_err() {}
    answer.unwrap_or_else(|error| {
        assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED), "{}: {error:?}", form.take);
        false
    })
}

fn storm(cluster: &Cluster, sessions: usize, end: End, tries: usize, form_of: impl Fn(usize) -> &'static Form) -> Seen {
    let tries = tries.div_ceil(sessions);
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..sessions)
            .map(|n| {
                let form = form_of(n);
                scope.spawn(move || contend(cluster, form, end, tries))
            })
            .collect();
        Seen::sum(sessions.into_iter().map(|session| session.join().unwrap()))
    })
}

fn form(session: usize) -> &'static Form {
    &FORMS[session % FORMS.len()]
}

#[test]
fn session_whose_call_failed_holds_nothing() {
    let cluster = builder().start_with_extension();
    let storms = SESSIONS.map(|sessions| storm(&cluster, sessions, End::Timeout, rounds(2_000, 500_000), form));
    let named = Seen::sum(storms.into_iter());
    let control = storm(&cluster, SESSIONS[0], End::Timeout, rounds(2_000, 100_000), |_| &CONTROL);
    println!("named locks: {named:?}; pg_advisory_lock with lock_timeout: {control:?}");
    assert_eq!(named.ghosts, 0);
    assert!(named.granted > 0 && named.refused > 0, "there was no contention");
    if control.ghosts == 0 {
        // The tests in timeout_race force this moment. Here it is left to chance.
        println!("the control has no ghosts, so this run proves nothing");
    }
}

/// The tests in messages force the moment after the call.
#[test]
fn cancelled_session_holds_nothing() {
    let cluster = builder().start_with_extension();
    let named = storm(&cluster, FORMS.len(), End::Cancel, rounds(4_000, 1_000_000), form);
    println!("named locks under cancels: {named:?}");
    assert_eq!(named.ghosts, 0);
    assert!(named.granted > 0 && named.refused > 0, "there was no contention");
}
