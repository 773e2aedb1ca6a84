//! A coordinator whose history has changed: it does not know what an earlier one has granted, until the servers tell it.

use idgen_testkit::dump::file;
use idgen_testkit::ids::{assert_distinct, last};
use idgen_testkit::sql::{PATIENCE, expect_error, value};
use idgen_testkit::{Cluster, Stop, run};

use super::{
    attached, coordinator, draw, draw_dry, draw_patiently, refused, request_at_least, two_servers, wait_for_error,
    wait_for_servers,
};
use crate::max_id;

/// A coordinator and two servers, then the same coordinator as an old base backup of it. The servers have values that the
/// backup does not know of.
struct Restored {
    coordinator: Cluster,
    servers: [Cluster; 2],
    seen: Vec<i64>,
}

impl Restored {
    fn begin() -> Restored {
        let (origin, servers, mut seen) = two_servers();
        let restored = origin.copy();
        seen.extend(servers.iter().flat_map(|server| draw(server, 5000)));
        origin.stop(Stop::Immediate);
        Restored { coordinator: restored, servers, seen }
    }

    fn lead(&self, server: usize) {
        self.servers[server].set_conf("idgen.coordinator", &self.coordinator.conninfo());
        self.servers[server].reload();
    }

    fn assert_grants_once_all_servers_have_reported(mut self) {
        self.lead(0);
        // Until then servers draw from their stock.
        let (rest, detail) = draw_dry(&self.servers[0]);
        assert!(!rest.is_empty());
        self.seen.extend(rest);
        wait_for_error(&self.servers[0], "have not reported");
        assert!(detail.is_empty() || !detail.contains("internal"), "{detail}");
        // The coordinator's own draws wait too.
        let own = refused(&mut self.coordinator.client(), "55P03");
        assert!(own.contains("segment_resume"), "{own}");
        self.lead(1);
        // The second one reports although nobody draws from it.
        self.seen.extend(draw_patiently(&self.servers[0], 3000));
        self.seen.extend(draw(&self.servers[1], 3000));
        self.seen.extend(draw(&self.coordinator, 3000));
        assert_distinct(self.seen);
    }
}

#[test]
fn restored_coordinator_grants_once_all_servers_have_reported() {
    Restored::begin().assert_grants_once_all_servers_have_reported();
}

#[test]
fn operator_decides_for_a_server_that_is_gone() {
    let mut all = Restored::begin();
    let gone: i64 = value(&mut all.servers[1].client(), "SELECT max_id FROM idgen.segment");
    all.servers[1].stop(Stop::Immediate);
    all.lead(0);
    all.seen.extend(draw_dry(&all.servers[0]).0);
    wait_for_error(&all.servers[0], "have not reported");
    let mut client = all.coordinator.client();
    expect_error(&mut client, "SELECT segment_resume('t', NULL)", "22004");
    all.coordinator.execute(&format!("SELECT segment_resume('t', {gone})"));
    let next = draw(&all.servers[0], 3000);
    assert!(next[0] > gone, "{} after {gone}", next[0]);
    all.seen.extend(next);
    // It was not gone after all.
    all.servers[1].start_again();
    all.lead(1);
    all.seen.extend(draw(&all.servers[1], 3000));
    assert_distinct(all.seen);
}

/// An asynchronous standby lacks the last grants.
#[test]
fn promoted_standby_begins_past_what_the_servers_have_received() {
    let primary = coordinator(Cluster::builder());
    let standby = primary.standby();
    let conninfo = format!(
        "host={},{} port={},{} user=postgres dbname=postgres target_session_attrs=read-write",
        primary.host(),
        standby.host(),
        primary.port(),
        standby.port()
    );
    let servers = [0, 1].map(|_| attached(&conninfo, "10 seconds"));
    servers.iter().for_each(|server| request_at_least(server, 100));
    let mut seen: Vec<i64> = servers.iter().flat_map(|server| draw(server, 10)).collect();
    wait_for_servers(&primary, 2);
    standby.wait_until_replayed(&primary);
    standby.stop(Stop::Fast);
    seen.extend(servers.iter().flat_map(|server| draw(server, 5000)));
    primary.kill9_postmaster();
    standby.start_again();
    standby.promote();
    for server in &servers {
        seen.extend(draw_patiently(server, 5000));
    }
    assert_distinct(seen);
}

/// Values of a coordinator of another system are not those of the former one.
#[test]
fn replaced_coordinator_discards_the_stock() {
    let former = coordinator(Cluster::builder());
    let server = attached(&former.conninfo(), "10 seconds");
    request_at_least(&server, 1000);
    let mut seen = draw(&server, 10);
    let new = coordinator(Cluster::builder().new_system_identifier());
    new.execute("SELECT segment_alter('t', max_id => 1000000)");
    server.reload_with("idgen.coordinator", &new.conninfo());
    let mut client = server.client();
    server.wait_for(PATIENCE, "values of the new coordinator", || {
        seen.push(value(&mut client, "SELECT segment_next('t')"));
        last(&seen) > 1_000_000
    });
    assert!(seen.len() < 1000, "the stock was discarded after {} values", seen.len());
}

/// In the same database, nothing but the rows tells of the restore.
#[test]
fn restored_dump_grants_once_all_servers_have_reported() {
    let (coordinator, servers, mut seen) = two_servers();
    let dump = file(&coordinator, "dump.sql");
    run(coordinator.program("pg_dump").args(["-d", "postgres", "--clean", "-f"]).arg(&dump));
    seen.extend(draw(&servers[0], 5000));
    let restore = ["-d", "postgres", "--set=ON_ERROR_STOP=1", "--single-transaction", "-f"];
    run(coordinator.program("psql").args(restore).arg(&dump));
    seen.extend(draw_patiently(&servers[1], 5000));
    seen.extend(draw_patiently(&coordinator, 10));
    seen.extend(draw_patiently(&servers[0], 5000));
    assert_distinct(seen);
}

/// It begins to write on the timeline of its primary, without the last grants of that.
#[test]
fn standby_without_its_signal_file_grants_once_all_servers_have_reported() {
    let (primary, servers, mut seen) = two_servers();
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    standby.stop(Stop::Fast);
    seen.extend(servers.iter().flat_map(|server| draw(server, 5000)));
    primary.stop(Stop::Immediate);
    std::fs::remove_file(standby.data_dir().join("standby.signal")).expect("it is a standby");
    standby.start_again();
    let all = Restored { coordinator: standby, servers, seen };
    all.assert_grants_once_all_servers_have_reported();
}

/// Server, timeline, database and directory stay the same.
#[test]
fn backup_restored_in_place_grants_once_all_servers_have_reported() {
    for shuts_down in [false, true] {
        let (coordinator, servers, mut seen) = two_servers();
        let backup = coordinator.base_backup();
        // The second server has the highest values, of which the backup does not know.
        seen.extend(servers.iter().flat_map(|server| draw(server, 5000)));
        coordinator.stop(Stop::Immediate);
        servers[1].stop(Stop::Immediate);
        coordinator.restore_in_place(&backup);
        if shuts_down {
            coordinator.recover_and_shut_down();
        }
        coordinator.start_again();
        seen.extend(draw_dry(&servers[0]).0);
        wait_for_error(&servers[0], "have not reported");
        servers[1].start_again();
        for server in [&servers[0], &servers[1], &coordinator] {
            seen.extend(draw_patiently(server, 3000));
        }
        assert_distinct(seen);
    }
}

/// The rows of 0.14.0 do not name the backup that their directory was restored from. A server that is gone does not block
/// the coordinator after the update.
#[test]
fn rows_of_an_earlier_release_do_not_interrupt_the_history_of_a_restored_coordinator() {
    let all = Restored::begin();
    let coordinator = &all.coordinator;
    let mut client = coordinator.client();
    let of_origin: String = value(&mut client, "SELECT history FROM idgen.segment");
    (0..2).for_each(|server| all.lead(server));
    let have_reported =
        format!("SELECT every(history LIKE '% %' AND history <> '{of_origin}') FROM idgen.segment_server");
    coordinator.wait_for(PATIENCE, "the reports of both servers", || value(&mut client, &have_reported));
    all.servers[1].stop(Stop::Immediate);
    coordinator.execute(
        "UPDATE idgen.segment SET history = split_part(history, ' ', 1);
         UPDATE idgen.segment_server SET history = split_part(history, ' ', 1)",
    );
    coordinator.stop(Stop::Fast);
    // The earlier release has restored it, and drew no number.
    std::fs::remove_file(coordinator.data_dir().join("idgen_place")).expect("a server has a number");
    coordinator.start_again();
    let mut seen = all.seen.clone();
    seen.extend(draw(coordinator, 3000));
    seen.extend(draw(&all.servers[0], 3000));
    assert_distinct(seen);
}

/// The coordinator falls back to a state in which the server had not been detached yet.
#[test]
fn server_that_was_attached_again_is_known_to_an_earlier_coordinator() {
    let origin = coordinator(Cluster::builder());
    let server = attached(&origin.conninfo(), "10 seconds");
    let mut seen = draw(&server, 10);
    wait_for_servers(&origin, 1);
    let restored = origin.copy();
    server.execute("SELECT segment_detach('t')");
    wait_for_servers(&origin, 0);
    server.execute("SELECT segment_attach('t', '10 seconds')");
    seen.extend(draw(&server, 10));
    origin.stop(Stop::Immediate);
    server.reload_with("idgen.coordinator", &restored.conninfo());
    seen.extend(draw_patiently(&server, 5000));
    assert_distinct(seen);
}

/// Even the files are the same. The first server that reports tells, and the coordinator waits for the others.
#[test]
fn coordinator_that_was_set_back_in_place_is_found_out_by_a_server() {
    let (coordinator, servers, mut seen) = two_servers();
    coordinator.stop(Stop::Fast);
    let backup = coordinator.cold_backup();
    coordinator.start_again();
    seen.extend(servers.iter().flat_map(|server| draw(server, 5000)));
    coordinator.stop(Stop::Immediate);
    coordinator.overwrite_in_place(&backup);
    coordinator.start_again();
    let mut client = coordinator.client();
    coordinator
        .wait_for(PATIENCE, "the loss to be noticed", || coordinator.log().contains("has lost grants of segment"));
    seen.extend(servers.iter().flat_map(|server| draw_patiently(server, 5000)));
    seen.extend(draw_patiently(&coordinator, 1000));
    assert_distinct(seen);
    let history = "SELECT count(DISTINCT history) FROM (SELECT history FROM idgen.segment UNION ALL SELECT history FROM idgen.segment_server) AS h";
    assert_eq!(value::<i64>(&mut client, history), 1);
}

/// A grant counts only when the synchronous standby has it, although commits of the coordinator do not wait for it.
#[test]
fn grant_counts_once_the_synchronous_standby_has_it() {
    let primary = coordinator(Cluster::builder().conf("synchronous_commit", "local"));
    let standby = primary.standby_builder().synchronous().start();
    let server = attached(&primary.conninfo(), "10 seconds");
    let mut seen = draw(&server, 100);
    standby.stop(Stop::Fast);
    seen.extend(draw_dry(&server).0);
    primary.kill9_postmaster();
    standby.start_again();
    standby.promote();
    // Without asking the server what it has received.
    standby.execute("SELECT segment_resume('t', 0)");
    seen.extend(draw(&standby, 5000));
    assert_distinct(seen);
}

/// The first request waits in vain for the standby. Its values are a gap, and a retry asks for no others.
#[test]
fn retries_burn_no_values_while_the_synchronous_standby_is_away() {
    let primary = coordinator(Cluster::builder());
    let standby = primary.standby_builder().synchronous().start();
    let server = attached(&primary.conninfo(), "10 seconds");
    let mut seen = draw(&server, 100);
    standby.stop(Stop::Fast);
    seen.extend(draw_dry(&server).0);
    let granted = || max_id(&mut primary.client(), "t");
    let retries = |least: usize| {
        primary.wait_for(2 * PATIENCE, "retries", || {
            // Sessions go on asking.
            draw_dry(&server);
            primary.log().matches("canceling statement due to statement timeout").count() >= least
        });
    };
    retries(1);
    let burned = granted();
    retries(4);
    assert_eq!(granted(), burned);
    standby.start_again();
    let next = draw_patiently(&server, 1000);
    assert_eq!(next[0], burned + 1);
    seen.extend(next);
    assert_distinct(seen);
}
