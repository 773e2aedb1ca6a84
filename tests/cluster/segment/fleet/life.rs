//! Drawing, outages, crashes and restarts.

use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, ids, inner_statements, value, wait_for_event};
use idgen_testkit::{Cluster, Stop, run};

use super::{
    attached, coordinator, coordinator_and_server, draw, draw_dry, draw_patiently, request_at_least, wait_for_servers,
};
use crate::with_segment;

#[test]
fn servers_and_their_coordinator_draw_different_values_smoke() {
    let coordinator = coordinator(Cluster::builder());
    let servers = [0, 1].map(|_| attached(&coordinator.conninfo(), "10 seconds"));
    let drawn = std::thread::scope(|scope| {
        let all = [&coordinator, &servers[0], &servers[1]];
        all.map(|server| scope.spawn(move || (0..20).flat_map(|_| draw(server, 300)).collect::<Vec<_>>()))
            .map(|worker| worker.join().expect("it draws"))
    });
    drawn.iter().for_each(|drawn| assert_increasing(drawn));
    let highest = *assert_distinct(drawn.concat()).last().expect("values were drawn");
    let sql = "SELECT max_id FROM idgen.segment";
    assert!(value::<i64>(&mut coordinator.client(), sql) >= highest, "G2 at the coordinator");
    for (server, drawn) in servers.iter().zip(&drawn[1..]) {
        assert!(value::<i64>(&mut server.client(), sql) >= last(drawn), "G2 here");
    }
}

#[test]
fn draws_go_on_from_the_stock_while_the_coordinator_is_away() {
    let (coordinator, server) = coordinator_and_server();
    request_at_least(&server, 1000);
    let first = draw(&server, 1);
    coordinator.stop(Stop::Immediate);
    let (rest, detail) = draw_dry(&server);
    assert!(rest.len() >= 999, "{} values were left", rest.len());
    assert_eq!([first, rest.clone()].concat(), (1..=last(&rest)).collect::<Vec<_>>());
    assert!(detail.contains("connection to server"), "{detail}");
    coordinator.start_again();
    assert_eq!(draw(&server, 1), [last(&rest) + 1]);
}

/// The stock is in memory only, and nothing gives it back.
#[test]
fn crash_of_an_attached_server_leaves_a_gap_and_repeats_nothing_smoke() {
    let (_coordinator, server) = coordinator_and_server();
    request_at_least(&server, 1000);
    let mut seen = draw(&server, 10);
    let received: i64 = value(&mut server.client(), "SELECT max_id FROM idgen.segment");
    server.restart_by(Stop::Immediate);
    let next = draw(&server, 10);
    assert_eq!(next[0], received + 1, "the gap is the stock");
    seen.extend(next);
    server.kill9_and_restart();
    seen.extend(draw(&server, 10));
    assert_increasing(&seen);
}

/// A restored dump is another server.
#[test]
fn restored_dump_is_another_server() {
    let (coordinator, server) = coordinator_and_server();
    let mut seen = draw(&server, 50);
    wait_for_servers(&coordinator, 1);
    let copy = Cluster::builder().conf("idgen.coordinator", &coordinator.conninfo()).start();
    let file = idgen_testkit::dump::file(&server, "dump.sql");
    run(server.program("pg_dump").args(["-d", "postgres", "-f"]).arg(&file));
    run(copy.program("psql").args(["-d", "postgres", "--set=ON_ERROR_STOP=1", "-f"]).arg(&file));
    seen.extend(ids(&mut copy.client(), &crate::singly(50)));
    seen.extend(draw(&server, 5000));
    seen.extend(draw(&copy, 5000));
    wait_for_servers(&coordinator, 2);
    assert_distinct(seen);
}

/// The supply launcher starts the supply worker: no session draws.
#[test]
fn idle_server_reports_after_a_crash_and_a_restart() {
    let (coordinator, server) = coordinator_and_server();
    draw(&server, 1);
    wait_for_servers(&coordinator, 1);
    let mut client = coordinator.client();
    for how in [Stop::Immediate, Stop::Fast] {
        server.stop(how);
        let stopped: String = value(&mut client, "SELECT clock_timestamp()::text");
        server.start_again();
        let has_reported = format!("SELECT bool_and(reported_at > '{stopped}') FROM idgen.segment_server");
        server.wait_for(PATIENCE, "a report", || value(&mut client, &has_reported));
    }
}

/// A cancel ends no more than a transaction of the worker.
#[test]
fn cancel_does_not_end_an_idle_supply_worker() {
    let (coordinator, server) = coordinator_and_server();
    draw(&server, 1);
    wait_for_servers(&coordinator, 1);
    let (mut client, mut there) = (server.client(), coordinator.client());
    let worker = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen supply'";
    let pids: Vec<i32> = column(&mut client, worker);
    // Whatever it does then, the next time it is idle.
    wait_for_event(&server, pids[0], "Extension");
    assert!(value::<bool>(&mut client, &format!("SELECT pg_cancel_backend({})", pids[0])));
    let cancelled: String = value(&mut there, "SELECT clock_timestamp()::text");
    let has_reported = format!("SELECT bool_and(reported_at > '{cancelled}') FROM idgen.segment_server");
    server.wait_for(PATIENCE, "a report", || {
        assert_eq!(column::<i32>(&mut client, worker), pids, "the worker goes on");
        value(&mut there, &has_reported)
    });
}

#[test]
fn database_with_attached_segments_can_be_dropped() {
    let (_coordinator, server) = coordinator_and_server();
    server.execute("CREATE DATABASE d");
    let mut client = server.client_in("d");
    execute(&mut client, "CREATE EXTENSION idgen");
    execute(&mut client, "SELECT segment_attach('t')");
    execute(&mut client, "SELECT segment_next('t')");
    let worker = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen supply' AND datname = 'd'";
    assert_eq!(column::<i32>(&mut client, worker).len(), 1);
    drop(client);
    server.execute("DROP DATABASE d");
    assert_eq!(column::<i32>(&mut server.client(), worker), []);
    assert_eq!(draw(&server, 10).len(), 10, "the worker of another database stays");
}

/// The launcher takes the only slot that the refill worker could have.
#[test]
fn launcher_without_a_slot_for_a_worker_leaves_its_own() {
    let builder = Cluster::builder().conf("max_logical_replication_workers", "0");
    // One for the keeper, which has its slot first.
    let server = with_segment(builder.conf("max_worker_processes", "2"), 10);
    server.restart_with("idgen.coordinator", "host=/nowhere");
    let mut client = server.client();
    let launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen supply launcher'";
    server.wait_for(PATIENCE, "the launcher", || !column::<i32>(&mut client, launcher).is_empty());
    server.wait_for(PATIENCE, "a value", || client.simple_query("SELECT segment_next('t')").is_ok());
    let log = server.log();
    assert!(log.contains("could not start all supply workers"), "{log}");
}

#[test]
fn request_for_values_executes_three_statements() {
    let coordinator = coordinator(Cluster::builder());
    let mut client = coordinator.client();
    execute(&mut client, "SELECT segment_request('t', 1, 'elsewhere', 0, 10)");
    let request = "SELECT segment_request('t', 1, 'elsewhere', 10, 10)";
    let statements = inner_statements(&coordinator, &mut client, request);
    assert!(statements.is_none_or(|statements| statements == 3), "{statements:?}");
}

/// Whatever its kind: the connection works after it.
#[test]
fn error_of_one_tag_at_the_coordinator_delays_no_other() {
    let coordinator = coordinator(Cluster::builder());
    coordinator.execute(
        "SELECT segment_create('u');
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN IF NEW.tag = 'u' THEN RAISE division_by_zero; END IF; RETURN NEW; END$$;
         CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON idgen.segment_server FOR EACH ROW EXECUTE FUNCTION fail()",
    );
    let server = attached(&coordinator.conninfo(), "2 seconds");
    server.execute("SELECT segment_attach('u', '2 seconds')");
    let mut client = server.client();
    execute(&mut client, "SET idgen.segment_timeout = '1s'");
    let error = expect_error(&mut client, "SELECT segment_next('u')", "55P03");
    assert!(error.detail().is_some_and(|detail| detail.contains("division_by_zero")), "{error:?}");
    assert_eq!(draw(&server, 1000).len(), 1000);
    let log = server.log();
    assert!(!log.contains("could not fetch values of attached segments"), "the coordinator answers:\n{log}");
}

#[test]
fn coordinator_that_is_read_only_is_passed_over() {
    let primary = coordinator(Cluster::builder());
    let standby = primary.standby();
    let hosts = [&standby, &primary].map(|cluster| cluster.host()).join(",");
    let conninfo = format!("host={hosts} port={} user=postgres dbname=postgres", primary.port());
    let server = attached(&format!("{conninfo} target_session_attrs=any"), "10 seconds");
    assert_eq!(draw_patiently(&server, 100).len(), 100);
    let log = server.log();
    assert!(!log.contains("could not fetch values of segment"), "the failure is no tag's:\n{log}");
}
