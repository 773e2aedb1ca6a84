//! Terms: what a holder's token is worth when the term is another's.

use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{execute, expect_error, value};
use postgres::Client;

use crate::{builder, release, renew, wait_for_state};

/// The row of `t` without what a look leaves.
fn row(client: &mut Client) -> String {
    value(client, "SELECT lease::text FROM idgen.lease WHERE name = 't'")
}

const PROOFS: [&str; 5] = [
    "SELECT lease_renew('t', $token)",
    "SELECT lease_release('t', $token)",
    "SELECT lease_fence('t', $token)",
    "SELECT lease_acquire('t', token => $token)",
    "SELECT lease_acquire('t', token => $token, bind_session => true)",
];

#[test]
fn a_token_is_worth_nothing_once_another_has_taken_over() {
    let cluster = builder().start_with_extension();
    let (mut first, mut second) = (cluster.client(), cluster.client());
    let old = acquire(&mut first, "'t', '100 ms', 'same'").token;
    wait_for_state(&cluster, "t", "0 expired");
    // It is his as long as nobody else wants it.
    renew(&mut first, "t", old);
    wait_for_state(&cluster, "t", "0 expired");
    let new = acquire(&mut second, "'t', '1 day', 'same'").token;
    assert!(new > old);
    let before = row(&mut second);
    for proof in PROOFS {
        let error = expect_error(&mut first, &proof.replace("$token", &old.to_string()), "55000");
        assert_eq!(error.message(), format!("lease \"t\" is not held under token {old}"));
        let detail = error.detail().expect("how the lease stands");
        assert!(detail.starts_with("Slot 0 is held by \"same\" (role postgres) since "), "{detail}");
        assert_eq!(row(&mut second), before, "{proof}");
    }
    let names = format!("ARRAY['t', 't'], ARRAY[{old}, {new}]");
    let renewed = "SELECT string_agg(name || ' ' || token, ',') FROM lease_renew_many";
    assert_eq!(value::<String>(&mut first, &format!("{renewed}({names})")), format!("t {new}"));
    assert!(release(&mut second, "t", new));
}

#[test]
fn what_is_not_there_is_not_made_again_by_its_token() {
    let cluster = builder().start_with_extension();
    let (mut client, mut superuser) = (cluster.client(), cluster.client());
    for (hold, end) in [
        ("'t', '1 day'", "SELECT lease_release('t', $token)"),
        ("'t', '1 day'", "DELETE FROM idgen.lease"),
        ("'t', '1 day'", "SELECT lease_revoke('t')"),
    ] {
        let token = acquire(&mut client, hold).token;
        execute(&mut superuser, &end.replace("$token", &token.to_string()));
        for proof in PROOFS {
            let error = expect_error(&mut client, &proof.replace("$token", &token.to_string()), "55000");
            assert!(error.detail().is_some_and(|detail| !detail.contains("held by")), "{error:?}");
        }
        let held = "SELECT count(*) FROM idgen.lease WHERE depth > 0";
        assert_eq!(value::<i64>(&mut superuser, held), 0, "{end}");
    }
}

#[test]
fn another_role_is_told_that_it_is_not_the_holder() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE ROLE one LOGIN; CREATE ROLE two LOGIN; CREATE ROLE three LOGIN; GRANT one TO three");
    let [mut one, mut two, mut three] = ["one", "two", "three"].map(|role| cluster.client_as("postgres", role));
    let token = acquire(&mut one, "'t', '1 day', 'same'").token.to_string();
    let before = row(&mut cluster.client());
    for proof in PROOFS {
        let error = expect_error(&mut two, &proof.replace("$token", &token), "42501");
        assert_eq!(error.detail(), Some("It was acquired by role \"one\"."), "{proof}");
    }
    assert_eq!(row(&mut cluster.client()), before);
    // A member of the holder's role is as good as the holder.
    for proof in [PROOFS[0], PROOFS[2], PROOFS[3], PROOFS[1], PROOFS[1]] {
        execute(&mut three, &proof.replace("$token", &token));
    }
}
