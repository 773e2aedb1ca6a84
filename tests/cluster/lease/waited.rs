//! Changes of a term that have waited for its row: the clock that counts is that after the wait.

use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{backend_pid, execute, value, wait_for_event};

use crate::{builder, scenario};

#[test]
fn renewal_that_has_waited_moves_no_end_back() {
    let cluster = builder().start_with_extension();
    for (name, end) in [
        ("one", "lease_renew('one', $1)"),
        ("of a ttl", "lease_renew('of a ttl', $1, '2 s')"),
        ("many", "(SELECT expires_at FROM lease_renew_many(ARRAY['many'], ARRAY[$1]))"),
    ] {
        let (mut holder, mut late, mut other) = (cluster.client(), cluster.client(), cluster.client());
        let token = acquire(&mut holder, &format!("'{name}', '2 s'")).token;
        let end = end.replace("$1", &token.to_string());
        let renew = format!("SELECT (extract(epoch FROM {end}) * 1000000)::bigint");
        let late_pid = backend_pid(&mut late);
        let told_us: i64 = std::thread::scope(|scope| {
            execute(&mut holder, &format!("BEGIN; {renew}"));
            let waiting = scope.spawn(|| execute(&mut late, &renew));
            wait_for_event(&cluster, late_pid, "Lock");
            execute(&mut holder, "SELECT pg_sleep(1)");
            let told_us = value(&mut holder, &renew);
            execute(&mut holder, "COMMIT");
            waiting.join().unwrap();
            told_us
        });
        // The next holder begins once the row's term is over.
        let began = acquire(&mut other, &format!("'{name}', '1 hour'")).token;
        assert!(began > token);
        let began_us: i64 = value(
            &mut other,
            &format!(
                "SELECT (extract(epoch FROM acquired_at) * 1000000)::bigint FROM idgen.lease WHERE name = '{name}'"
            ),
        );
        assert!(began_us >= told_us, "{name}: taken over {} us before the end that was told", told_us - began_us);
    }
}

#[test]
fn revocation_that_has_waited_begins_the_whole_lock_delay() {
    scenario(
        "operator: SELECT lease_define('t', lock_delay => '1 s')
         holder: SELECT token FROM lease_acquire('t', '1 hour') -> $token
         holder: BEGIN; SELECT lease_renew('t', $token)
         operator waits for Lock: SELECT lease_revoke('t')
         holder: SELECT pg_sleep(1)
         holder: SELECT clock_timestamp() -> $waited
         holder: COMMIT
         operator ends
         other: SELECT lease_acquire('t', '1 hour')
         -- Not granted within the lock delay.
         other: SELECT clock_timestamp() >= timestamptz '$waited' + interval '1 s' -> t",
    );
}
