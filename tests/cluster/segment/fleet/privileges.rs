//! Here the privileges of the local tag count, and at the coordinator those of the role that connects.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{execute, expect_error};

use super::{attached, coordinator, draw, refused};

#[test]
fn privileges_are_those_of_the_local_tag_and_of_the_role_at_the_coordinator() {
    let coordinator = coordinator(Cluster::builder());
    coordinator.execute("CREATE ROLE fleet LOGIN");
    let server = attached(&coordinator.connect_string("postgres", "fleet"), "10 seconds");
    let detail = refused(&mut server.client(), "55P03");
    assert!(detail.contains("permission denied for segment \"t\""), "{detail}");
    coordinator.execute("SELECT segment_grant('t', 'fleet')");
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
    coordinator.execute("SELECT segment_revoke('t', 'fleet')");
    expect_error(&mut fleet, "SELECT segment_request('t', 1, 'me', 0, 10)", "42501");
    expect_error(&mut fleet, "SELECT segment_leave('t', 1, 0)", "42501");
}
