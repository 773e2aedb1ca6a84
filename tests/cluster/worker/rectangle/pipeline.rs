//! A client that pipelines statements: it sends several before it sends Sync.

use idgen_testkit::sql::value;
use idgen_testkit::wire::Session;

use super::builder;

/// The grant is committed before its result is sent, so that no later statement can roll it back.
#[test]
fn rectangle_granted_in_a_pipeline_survives_a_later_error() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
    let mut session = Session::open(&cluster);
    session.execute_without_sync("SELECT worker_acquire('p', 'pipeline', '10 s')");
    let (kind, body) = session.read_to(b'C');
    assert_eq!(kind, b'C', "{body}");
    // A statement that fails rolls back what is not committed.
    session.execute_without_sync("SELECT 1 / 0");
    assert_eq!(session.read_to(b'C').0, b'E');
    session.sync();
    let held = "SELECT count(*) = 1 FROM idgen.workers WHERE owner = 'pipeline' AND state = 'held'";
    assert!(value::<bool>(&mut cluster.client(), held), "a rollback took back a rectangle that the client knows");
}

/// After another statement, the call runs in the transaction of that one.
#[test]
fn pipeline_is_granted_nothing_after_another_statement() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 4, '10 s')");
    let mut session = Session::open(&cluster);
    session.execute_without_sync("SELECT 1");
    assert_eq!(session.read_to(b'C').0, b'C');
    session.execute_without_sync("SELECT worker_acquire('p', 'pipeline', '10 s')");
    let (kind, error) = session.read_to(b'C');
    assert!(kind == b'E' && error.contains("25001"), "{error}");
}
