//! Timeouts of a few milliseconds while many sessions want one lock, so that timeouts and grants often coincide.

use idgen_testkit::Cluster;
use idgen_testkit::rounds;
use idgen_testkit::sql::{backend_pid, execute, value};
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

#[derive(Default)]
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

/// Tries to take the lock repeatedly, and counts the held locks whenever that fails.
fn contend(cluster: &Cluster, form: &Form, tries: usize) -> Seen {
    let mut client = cluster.client();
    let pid = backend_pid(&mut client);
    let mut seen = Seen::default();
    for ms in TIMEOUTS_MS.iter().cycle().take(tries) {
        if !form.take.contains("$ms") {
            execute(&mut client, &format!("SET lock_timeout = {ms}"));
        }
        execute(&mut client, "BEGIN");
        let answer = client.query_one(&form.take.replace("$ms", &ms.to_string()), &[]).map(|row| row.get::<_, bool>(0));
        let granted = answer.unwrap_or_else(|error| {
            assert!(!form.take.contains("$ms"), "a try call does not raise an error: {}: {error:?}", form.take);
            assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE), "{}: {error:?}", form.take);
            execute(&mut client, "ROLLBACK; BEGIN");
            false
        });
        let held = locks_of(&mut client, pid);
        if granted {
            seen.granted += 1;
            assert!(held > 0, "{} succeeded but holds nothing", form.take);
            execute(&mut client, &format!("SELECT pg_sleep(0.001); {}", form.release));
        } else {
            seen.refused += 1;
            seen.ghosts += held as usize;
            execute(&mut client, "SELECT pg_advisory_unlock_all()");
        }
        execute(&mut client, "COMMIT");
        assert_eq!(locks_of(&mut client, pid), 0, "{}", form.take);
    }
    assert_eq!(
        value::<i64>(&mut client, "SELECT count(*) FROM idgen.lock_get_holds() WHERE pid = pg_backend_pid()"),
        0
    );
    seen
}

fn storm(cluster: &Cluster, sessions: usize, tries: usize, form_of: impl Fn(usize) -> &'static Form) -> Seen {
    let tries = tries.div_ceil(sessions);
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..sessions)
            .map(|n| {
                let form = form_of(n);
                scope.spawn(move || contend(cluster, form, tries))
            })
            .collect();
        Seen::sum(sessions.into_iter().map(|session| session.join().unwrap()))
    })
}

#[test]
fn session_whose_call_failed_holds_nothing() {
    let cluster = builder().start_with_extension();
    let named = Seen::sum(
        SESSIONS
            .into_iter()
            .map(|sessions| storm(&cluster, sessions, rounds(2_000, 500_000), |n| &FORMS[n % FORMS.len()])),
    );
    let control = storm(&cluster, SESSIONS[0], rounds(2_000, 100_000), |_| &CONTROL);
    println!(
        "named locks: {} granted, {} refused, {} ghosts; pg_advisory_lock with lock_timeout: {} granted, {} refused, {} ghosts",
        named.granted, named.refused, named.ghosts, control.granted, control.refused, control.ghosts
    );
    assert_eq!(named.ghosts, 0);
    assert!(named.granted > 0 && named.refused > 0, "there was no contention");
    if control.ghosts == 0 {
        // The tests in timeout_race force this moment. Here it is left to chance.
        println!("the control has no ghosts, so this run proves nothing");
    }
}
