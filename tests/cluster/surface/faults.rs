//! Faults on purpose, which the run must find.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use idgen_testkit::Cluster;

use crate::session::{Session, Statement};

/// The body of a function, and what the session says about a call of it.
const FAULTS: [(&str, &str); 6] = [
    ("RAISE SQLSTATE 'XX000'", "an internal error"),
    ("RAISE SQLSTATE '58030'", "an internal error"),
    ("RAISE SQLSTATE '42804'", "not in docs/errors.md"),
    ("PERFORM pg_advisory_lock(1); RAISE SQLSTATE '22023'", "the failed call holds advisory"),
    ("PERFORM pg_sleep(60)", "it hangs"),
    ("RAISE SQLSTATE '57P01'", "not in docs/errors.md"),
];

#[test]
fn session_finds_faults_on_purpose() {
    let cluster = Cluster::builder().start_with_extension();
    for (body, complaint) in FAULTS {
        cluster.execute(&format!(
            "CREATE OR REPLACE FUNCTION fault() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {body}; END $$"
        ));
        let mut session = Session::new(&cluster, "postgres", 0, &BTreeSet::from(["22023".to_owned()]));
        let call = AssertUnwindSafe(|| session.attempt(Statement::new("SELECT fault()")).is_some());
        let panic = catch_unwind(call).expect_err(body);
        let said = panic.downcast_ref::<String>().expect("a message");
        assert!(said.contains(complaint), "{body}: {said}");
    }
}
