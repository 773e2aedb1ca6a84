//! Tags that are attached, detached, altered, dropped and created again.

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, hint, ids, value};

use crate::stale::keep_rows;

use super::{
    attached, coordinator, coordinator_and_server, draw, refused, request_at_least, two_servers, wait_for_servers,
};

#[test]
fn detached_tag_draws_nothing_until_it_has_a_bound_of_its_own() {
    let (coordinator, server) = coordinator_and_server();
    request_at_least(&server, 1000);
    let mut client = server.client();
    // Also before it has any values.
    execute(&mut client, "SELECT segment_detach('t')");
    expect_error(&mut client, "SELECT segment_next('t')", "55000");
    execute(&mut client, "SELECT segment_attach('t', '10 seconds')");
    let mut seen = draw(&server, 10);
    wait_for_servers(&coordinator, 1);
    execute(&mut client, "SELECT segment_detach('t')");
    let error = expect_error(&mut client, "SELECT segment_next('t')", "55000");
    assert!(error.message().contains("was detached"), "{error:?}");
    assert!(hint(&error).contains("segment_attach"), "{error:?}");
    expect_error(&mut client, "SELECT segment_detach('t')", "55000");
    // The coordinator hears of it.
    wait_for_servers(&coordinator, 0);
    execute(&mut client, "SELECT segment_attach('t', '10 seconds')");
    seen.extend(draw(&server, 10));
    wait_for_servers(&coordinator, 1);
    // Also if no supply worker runs.
    let worker = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE backend_type = 'idgen supply'";
    execute(&mut client, worker);
    execute(&mut client, "SELECT segment_detach('t')");
    wait_for_servers(&coordinator, 0);
    execute(&mut client, "SELECT segment_attach('t', '10 seconds')");
    seen.extend(draw(&server, 3000));
    wait_for_servers(&coordinator, 1);
    seen.extend(draw(&coordinator, 50));
    assert_distinct(seen);
}

/// Its own values are those that no server has: the coordinator goes on above them.
#[test]
fn tag_that_was_drawn_from_before_is_attached_above_its_values() {
    let coordinator = coordinator(Cluster::builder());
    let other = attached(&coordinator.conninfo(), "10 seconds");
    let server = Cluster::builder().conf("idgen.coordinator", &coordinator.conninfo()).start_with_extension();
    server.execute("SELECT segment_create('t', step => 100)");
    let mut seen = draw(&server, 5000);
    server.execute("SELECT segment_attach('t')");
    seen.extend(draw(&server, 5000));
    assert_increasing(&seen);
    let mut client = other.client();
    other.wait_for(PATIENCE, "values above those", || {
        let value: i64 = value(&mut client, "SELECT segment_next('t')");
        value > 5000
    });
}

#[test]
fn change_of_the_coordinators_tag_discards_the_stock() {
    let (coordinator, server) = coordinator_and_server();
    request_at_least(&server, 1_000_000);
    let mut seen = draw(&server, 10);
    let mut client = server.client();
    type Seen = fn(&[i64]) -> bool;
    let changes: [(&str, Seen); 3] = [
        ("SELECT segment_alter('t', max_id => 100000000)", |seen| last(seen) > 100_000_000),
        ("SELECT segment_alter('t', stride => 10, residue => 7)", |seen| last(seen) == seen[seen.len() - 2] + 10),
        ("SELECT segment_drop('t'), segment_create('t', start => 200000000)", |seen| last(seen) >= 200_000_000),
    ];
    for (change, is_seen) in changes {
        coordinator.execute(change);
        // The stock is far from used up: a report tells of the change.
        server.wait_for(PATIENCE, change, || {
            seen.extend(ids(&mut client, "SELECT segment_next('t')"));
            is_seen(&seen)
        });
    }
    assert_increasing(&seen);
}

#[test]
fn numbers_of_an_attached_tag_are_altered_at_the_coordinator_only() {
    let (coordinator, server) = coordinator_and_server();
    draw(&server, 1);
    let mut client = server.client();
    for setting in ["max_id => 5000", "stride => 3", "residue => 0", "upper_bound => 9000"] {
        let error = expect_error(&mut client, &format!("SELECT segment_alter('t', {setting})"), "55000");
        assert!(hint(&error).contains("at the coordinator"), "{error:?}");
    }
    // A tag that is attached serves no other server.
    let third = Cluster::builder().conf("idgen.coordinator", &server.conninfo()).start_with_extension();
    third.execute("SELECT segment_attach('t')");
    assert!(refused(&mut third.client(), "55P03").contains("is attached itself"));
    // Nor itself.
    server.reload_with("idgen.coordinator", &server.conninfo());
    coordinator.execute("SELECT segment_alter('t', max_id => 100000)");
    super::wait_for_error(&server, "is attached itself");
}

#[test]
fn upper_bound_of_the_coordinator_ends_the_values_of_all() {
    let coordinator = coordinator(Cluster::builder());
    coordinator.execute("SELECT segment_alter('t', upper_bound => 100)");
    let server = attached(&coordinator.conninfo(), "10 seconds");
    let (drawn, error) = crate::draw_until_refused(&mut server.client(), "t");
    assert_eq!(drawn, (1..=100).collect::<Vec<_>>());
    assert_eq!(error.code().code(), "2200H", "{error:?}");
    assert!(hint(&error).contains("at the coordinator"), "{error:?}");
    super::wait_for_error(&server, "has reached its upper bound");
    coordinator.execute("SELECT segment_alter('t', upper_bound => 200)");
    let mut client = server.client();
    server.wait_for(PATIENCE, "values again", || client.simple_query("SELECT segment_next('t')").is_ok());
}

/// What the HINT says makes no value twice, although other servers have drawn above what this one has received.
#[test]
fn detached_tag_gets_no_values_of_the_fleet_back() {
    let (coordinator, server) = coordinator_and_server();
    let mut seen = draw(&server, 10);
    seen.extend(draw(&coordinator, 100));
    server.execute("SELECT segment_detach('t')");
    let mut client = server.client();
    for statement in ["SELECT segment_next('t')", "SELECT segment_alter('t', upper_bound => 9223372036854775807)"] {
        let error = expect_error(&mut client, statement, "55000");
        assert!(hint(&error).contains("max_id => <the upper_bound at the coordinator>"), "{error:?}");
    }
    // As a coordinator, it has none either.
    let third = attached(&server.conninfo(), "10 seconds");
    assert!(refused(&mut third.client(), "55P03").contains("of the coordinator was detached from another one"));
    // As the HINT says, where the coordinator has a bound.
    coordinator.execute("SELECT segment_alter('t', upper_bound => 1000000)");
    server.execute("SELECT segment_alter('t', max_id => 1000000, upper_bound => 9223372036854775807)");
    seen.extend([draw(&server, 10), draw(&coordinator, 1000)].concat());
    assert_distinct(seen);
}

/// The coordinator goes on below them, and so do the servers that are still attached.
#[test]
fn own_values_of_a_detached_tag_are_not_reported() {
    let (coordinator, server) = coordinator_and_server();
    let mut seen = draw(&server, 10);
    wait_for_servers(&coordinator, 1);
    server.execute(
        "BEGIN; SELECT segment_detach('t');
         SELECT segment_alter('t', max_id => 9000000000, upper_bound => 9223372036854775807); COMMIT",
    );
    seen.extend(draw(&server, 10));
    assert_eq!(last(&seen), 9_000_000_010);
    wait_for_servers(&coordinator, 0);
    seen.extend(draw(&coordinator, 10));
    assert!(last(&seen) < 9_000_000_000, "{}", last(&seen));
    // Once it is attached again, they count: its values rise.
    server.execute("SELECT segment_attach('t')");
    seen.extend(draw(&server, 10));
    assert!(last(&seen) > 9_000_000_010, "{}", last(&seen));
    assert_distinct(seen);
}

/// The coordinator never granted them, and yet it has lost nothing. It hears of the end of the first attachment first.
#[test]
fn own_values_of_a_tag_that_is_attached_again_prove_no_loss() {
    let (coordinator, server) = coordinator_and_server();
    let mut seen = draw(&server, 10);
    wait_for_servers(&coordinator, 1);
    // One that is away is not waited for.
    coordinator.execute("SELECT segment_request('t', 7, 'away', 0, 0)");
    let away = |max_id: i64| {
        format!(
            "SELECT segment_detach('t');
             SELECT segment_alter('t', max_id => {max_id}, upper_bound => {max_id} + 1000);
             SELECT segment_attach('t', '10 seconds');"
        )
    };
    server.execute(&format!("BEGIN; {} {} COMMIT", away(50_000), away(60_000)));
    seen.extend(draw(&server, 10));
    assert!(last(&seen) > 60_000, "{}", last(&seen));
    wait_for_servers(&coordinator, 2);
    seen.extend(draw(&coordinator, 10));
    assert_distinct(seen);
    assert!(!coordinator.log().contains("has lost grants"), "{}", coordinator.log());
}

#[test]
fn values_that_a_trigger_keeps_out_of_the_row_of_a_server_are_not_handed_out() {
    let (_coordinator, server) = coordinator_and_server();
    server.execute(&keep_rows("segment", "NEW.max_id := OLD.max_id; RETURN NEW"));
    let detail = refused(&mut server.client(), "55P03");
    assert!(detail.starts_with("could not record values of segment"), "{detail}");
    server.execute("DROP TRIGGER zz ON idgen.segment");
    assert_eq!(draw(&server, 1).len(), 1);
}

/// The servers still have values of the dropped one.
#[test]
fn tag_that_is_created_again_repeats_no_value_of_its_servers() {
    let (coordinator, servers, mut seen) = two_servers();
    coordinator.execute("SELECT segment_drop('t')");
    let mut client = coordinator.client();
    execute(&mut client, "BEGIN; SELECT segment_create('t')");
    expect_error(&mut client, "SELECT segment_next('t')", "55000");
    execute(&mut client, "ROLLBACK; SELECT segment_create('t')");
    seen.extend(draw(&coordinator, 10));
    // Below the values that the second one has drawn.
    seen.extend(draw(&servers[0], 3000));
    seen.extend(draw(&servers[1], 3000));
    assert_distinct(seen);
    // A server that is detached is forgotten, also without the tag.
    coordinator.execute("SELECT segment_drop('t')");
    servers.iter().for_each(|server| server.execute("SELECT segment_detach('t')"));
    wait_for_servers(&coordinator, 0);
    coordinator.execute("SELECT segment_create('t')");
    assert_eq!(draw(&coordinator, 1), [1]);
}
