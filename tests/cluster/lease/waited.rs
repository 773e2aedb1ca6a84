//! Changes of a term that have waited for its row: the clock that counts is that after the wait.

use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{backend_pid, execute, value, wait_for_event};

use crate::builder;

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
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('t', lock_delay => '1 s')");
    let (mut holder, mut operator, mut other) = (cluster.client(), cluster.client(), cluster.client());
    let token = acquire(&mut holder, "'t', '1 hour'").token;
    let operator_pid = backend_pid(&mut operator);
    let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let waited_us: i64 = std::thread::scope(|scope| {
        execute(&mut holder, &format!("BEGIN; SELECT lease_renew('t', {token})"));
        let revoking = scope.spawn(|| execute(&mut operator, "SELECT lease_revoke('t')"));
        wait_for_event(&cluster, operator_pid, "Lock");
        execute(&mut holder, "SELECT pg_sleep(1)");
        let waited_us = value(&mut holder, now);
        execute(&mut holder, "COMMIT");
        revoking.join().unwrap();
        waited_us
    });
    acquire(&mut other, "'t', '1 hour'");
    let delay_us = value::<i64>(&mut other, now) - waited_us;
    assert!(delay_us >= 1_000_000, "granted {delay_us} us after the revocation, within the lock delay");
}
