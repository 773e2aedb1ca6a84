//! Terms: a token is valid for one term only.

use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{execute, expect_error, value};
use postgres::Client;

use crate::{builder, release, renew, wait_for_state};

/// The row of `t`, without columns that reads change.
fn row(client: &mut Client) -> String {
    value(client, "SELECT lease::text FROM idgen.lease WHERE name = 't'")
}

const CALLS: [&str; 5] = [
    "SELECT lease_renew('t', $token)",
    "SELECT lease_release('t', $token)",
    "SELECT lease_fence('t', $token)",
    "SELECT lease_acquire('t', token => $token)",
    "SELECT lease_acquire('t', token => $token, bind_session => true)",
];

#[test]
fn token_is_invalid_once_another_session_has_taken_over() {
    let cluster = builder().start_with_extension();
    let (mut first, mut second) = (cluster.client(), cluster.client());
    let old = acquire(&mut first, "'t', '100 ms', 'same'").token;
    wait_for_state(&cluster, "t", "0 expired");
    // An expired term can be renewed until another session takes over.
    renew(&mut first, "t", old);
    wait_for_state(&cluster, "t", "0 expired");
    let new = acquire(&mut second, "'t', '1 day', 'same'").token;
    assert!(new > old);
    let before = row(&mut second);
    for call in CALLS {
        let error = expect_error(&mut first, &call.replace("$token", &old.to_string()), "55000");
        assert_eq!(error.message(), format!("lease \"t\" is not held under token {old}"));
        let detail = error.detail().expect("a DETAIL with the state of the lease");
        assert!(detail.starts_with("Slot 0 is held by \"same\" (role postgres) since "), "{detail}");
        assert_eq!(row(&mut second), before, "{call}");
    }
    let names = format!("ARRAY['t', 't'], ARRAY[{old}, {new}]");
    let renewed = "SELECT string_agg(name || ' ' || token, ',') FROM lease_renew_many";
    assert_eq!(value::<String>(&mut first, &format!("{renewed}({names})")), format!("t {new}"));
    assert!(release(&mut second, "t", new));
}

#[test]
fn token_does_not_bring_a_missing_row_back() {
    let cluster = builder().start_with_extension();
    let (mut client, mut superuser) = (cluster.client(), cluster.client());
    for (hold, end) in [
        ("'t', '1 day'", "SELECT lease_release('t', $token)"),
        ("'t', '1 day'", "DELETE FROM idgen.lease"),
        ("'t', '1 day'", "SELECT lease_revoke('t')"),
    ] {
        let token = acquire(&mut client, hold).token;
        execute(&mut superuser, &end.replace("$token", &token.to_string()));
        for call in CALLS {
            let error = expect_error(&mut client, &call.replace("$token", &token.to_string()), "55000");
            assert!(error.detail().is_some_and(|detail| !detail.contains("held by")), "{error:?}");
        }
        let held = "SELECT count(*) FROM idgen.lease WHERE depth > 0";
        assert_eq!(value::<i64>(&mut superuser, held), 0, "{end}");
    }
}

#[test]
fn call_by_another_role_fails() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE ROLE one LOGIN; CREATE ROLE two LOGIN; CREATE ROLE three LOGIN; GRANT one TO three");
    let [mut one, mut two, mut three] = ["one", "two", "three"].map(|role| cluster.client_as("postgres", role));
    let token = acquire(&mut one, "'t', '1 day', 'same'").token.to_string();
    let before = row(&mut cluster.client());
    for call in CALLS {
        let error = expect_error(&mut two, &call.replace("$token", &token), "42501");
        assert_eq!(error.detail(), Some("It was acquired by role \"one\"."), "{call}");
    }
    assert_eq!(row(&mut cluster.client()), before);
    // A member of the holder's role may act for the holder.
    for call in [CALLS[0], CALLS[2], CALLS[3], CALLS[1], CALLS[1]] {
        execute(&mut three, &call.replace("$token", &token));
    }
}

/// A release does not wait for the disk, unless the transaction has called something that must.
#[test]
fn release_leaves_synchronous_commit_as_it_was() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('a'), lease_define('b')");
    for other in ["lease_renew_many('{a}', ARRAY[$a])", "lease_acquire('c')", "lease_release('b', $b)"] {
        let [a, b] = ["a", "b"].map(|name| acquire(&mut client, &format!("'{name}', '1 day'")).token.to_string());
        let other = other.replace("$a", &a).replace("$b", &b);
        let release = format!("lease_release('a', {a})");
        for calls in [[&release, &other], [&other, &release]] {
            let [first, second] = calls;
            let _ = client.batch_execute(&format!("BEGIN; SELECT {first}; SELECT {second}; COMMIT"));
            let _ = client.batch_execute("ROLLBACK");
            assert_eq!(value::<String>(&mut client, "SHOW synchronous_commit"), "on", "{first}, {second}");
        }
        execute(&mut client, "SELECT lease_revoke(name) FROM idgen.leases WHERE state = 'held'");
    }
}
