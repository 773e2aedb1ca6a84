//! Here the privileges of the local tag count, and at the coordinator those of the role that connects.

use idgen_testkit::Cluster;
use idgen_testkit::script::play;
use idgen_testkit::sql::{execute, expect_error, value};

use super::{attached, coordinator, coordinator_and_server, draw, refused};

#[test]
fn privileges_are_those_of_the_local_tag_and_of_the_role_at_the_coordinator() {
    let coordinator = coordinator(Cluster::builder());
    // The functions that a server calls are in the schema public.
    coordinator.execute("CREATE ROLE fleet LOGIN; REVOKE USAGE ON SCHEMA idgen FROM public");
    let server = attached(&coordinator.connect_string("postgres", "fleet"), "10 seconds");
    let detail = refused(&mut server.client(), "55P03");
    let denied = "permission denied to act as a server of segment \"t\"";
    assert!(detail.contains(denied), "{detail}");
    coordinator.execute("SELECT segment_grant('t', 'fleet')");
    let detail = refused(&mut server.client(), "55P03");
    assert!(detail.contains(denied), "a role that may draw is no server: {detail}");
    coordinator.execute("SELECT segment_grant('t', 'fleet', server => true)");
    assert_eq!(draw(&server, 1).len(), 1);

    server.execute("CREATE ROLE app LOGIN");
    let mut app = server.client_as("postgres", "app");
    expect_error(&mut app, "SELECT segment_next('t')", "42501");
    expect_error(&mut app, "SELECT segment_attach('t')", "42501");
    expect_error(&mut app, "SELECT segment_detach('t')", "42501");
    server.execute("SELECT segment_grant('t', 'app')");
    execute(&mut app, "SELECT segment_next('t')");
    expect_error(&mut app, "SELECT segment_detach('t')", "42501");

    let mut fleet = coordinator.client_as("postgres", "fleet");
    expect_error(&mut fleet, "SELECT segment_resume('t', 5)", "42501");
    coordinator.execute("SELECT segment_revoke('t', 'fleet', server => true)");
    expect_error(&mut fleet, "SELECT segment_request('t', 1, 'me', 0, 10)", "42501");
    expect_error(&mut fleet, "SELECT segment_leave('t', 1, 0)", "42501");
}

/// The owner of the database may insert rows for a restore. That alone lets it draw nothing from the coordinator, and a
/// function of its own with the same name does not help it.
#[test]
fn restored_row_is_attached_only_for_a_role_that_may_attach() {
    let (coordinator, server) = coordinator_and_server();
    server.execute("CREATE ROLE keeper LOGIN; ALTER DATABASE postgres OWNER TO keeper");
    coordinator.execute("SELECT segment_create('u'), segment_create('v')");
    let mut keeper = server.client_as("postgres", "keeper");
    let restore = |tag: &str| {
        format!("INSERT INTO idgen.segment (tag, owner, server, reserve) VALUES ('{tag}', 'keeper', 1, '10 seconds')")
    };
    execute(&mut keeper, "CREATE FUNCTION segment_attach(int) RETURNS void LANGUAGE sql AS ''");
    execute(&mut keeper, &restore("u"));
    let error = expect_error(&mut keeper, "SELECT segment_next('u')", "55000");
    assert!(error.message().contains("was detached"), "{error:?}");
    server.execute("GRANT EXECUTE ON FUNCTION segment_attach(text, interval) TO keeper");
    execute(&mut keeper, &restore("v"));
    assert_eq!(value::<i64>(&mut keeper, "SELECT segment_next('v')"), 1);
}

/// A tag that was dropped has no owner. So any role that knows the number of a server may forget it, and must keep nobody
/// from other tags.
#[test]
fn server_leaves_a_dropped_tag_without_blocking_others() {
    play(
        &coordinator(Cluster::builder()),
        "root: CREATE ROLE maker LOGIN; GRANT EXECUTE ON FUNCTION segment_create TO maker
         maker connects as maker
         maker: SELECT segment_create('x')
         maker: SELECT first_id FROM segment_request('x', 1, 'one', 0, 1) -> 1
         maker: SELECT segment_drop('x')
         maker: BEGIN; SELECT segment_leave('x', 1, 0)
         root: SELECT count(segment_next('t')) FROM generate_series(1, 5000) -> 5000
         root: SELECT segment_create('y'), segment_alter('t', max_id => 1000000)
         root: SELECT first_id FROM segment_request('t', 2, 'two', 0, 1) -> 1000001
         -- A tag of this name does not begin before it is known whether the server has left.
         creator waits for transactionid: SELECT segment_create('x')
         maker: ROLLBACK
         creator ends
         root: SELECT first_id FROM segment_request('x', 1, 'one', 1, 1) -> 2
         root: SELECT segment_drop('x')
         -- Nor does it leave before it is known whether there is such a tag.
         creator: BEGIN; SELECT segment_create('x')
         maker: SELECT segment_leave('x', 1, 2) -> error 55P03
         creator: COMMIT
         maker: SELECT segment_leave('x', 1, 2) -> error 42501
         root: SELECT segment_leave('x', 1, 2)
         root: SELECT segment_next('x') -> 3",
    );
}

/// The error comes at once: requests of other servers wait for the same lock.
#[test]
fn role_without_the_privilege_waits_for_no_lock() {
    let coordinator = coordinator(Cluster::builder());
    coordinator.execute("CREATE ROLE stranger LOGIN");
    let mut owner = coordinator.client();
    execute(&mut owner, "BEGIN; SELECT FROM idgen.segment FOR UPDATE");
    let mut stranger = coordinator.client_as("postgres", "stranger");
    expect_error(&mut stranger, "SELECT segment_request('t', 1, 'me', 0, 10)", "42501");
}
