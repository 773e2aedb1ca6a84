//! One line in order: each value is asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idgen_sim::history::order;
use idgen_testkit::ids::last;
use idgen_testkit::parallel::End;
use idgen_testkit::recorder::Draws;
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, value, wait_for_event};
use idgen_testkit::{Cluster, Proxy, pause, rounds};
use postgres::Client;

use super::{attached, coordinator, draw};
use crate::max_id;

/// A tag whose values are asked for one by one.
fn in_order(conninfo: &str) -> Cluster {
    let server = attached(conninfo, "10 seconds");
    server.execute("SELECT segment_alter('t', step => 1, min_step => 1, max_step => 1)");
    server
}

#[test]
fn values_that_are_asked_for_one_by_one_are_in_one_order() {
    let coordinator = coordinator(Cluster::builder());
    let servers = [0, 1, 2].map(|_| in_order(&coordinator.conninfo()));
    let mut clients = servers.each_ref().map(Cluster::client);
    let mut drawn: Vec<i64> = Vec::new();
    for turn in 0..60 {
        drawn.push(value(&mut clients[turn * 7 % 3], "SELECT segment_next('t')"));
        assert_eq!(last(&drawn), drawn.len() as i64, "in turn {turn}");
    }
}

/// A reader draws a value itself, because none is in memory.
#[test]
fn open_transaction_holds_settled_values_back_on_each_server() {
    let coordinator = coordinator(Cluster::builder());
    let servers = [0, 1].map(|_| in_order(&coordinator.conninfo()));
    let [mut open, mut other, mut elsewhere] = [&servers[0], &servers[0], &servers[1]].map(Cluster::client);
    execute(&mut open, "BEGIN");
    let held: i64 = value(&mut open, "SELECT segment_next('t')");
    let [later, there]: [i64; 2] = [&mut other, &mut elsewhere].map(|client| value(client, "SELECT segment_next('t')"));
    assert!(held < later && later < there);
    let settled = "SELECT segment_settled('t')";
    assert!(value::<i64>(&mut other, settled) < held);
    assert!(value::<i64>(&mut elsewhere, settled) > there, "no transaction is open there");
    execute(&mut open, "COMMIT");
    assert!(value::<i64>(&mut other, settled) > later);
}

#[test]
fn sessions_that_wait_together_leave_no_gap() {
    let coordinator = coordinator(Cluster::builder());
    let server = in_order(&coordinator.conninfo());
    let mut clients = [(); 6].map(|()| server.client());
    let mut drawn: Vec<i64> = Vec::new();
    for round in 0..rounds(100, 2000) {
        drawn.extend(std::thread::scope(|scope| {
            // Some ask while others are served.
            let draws = clients
                .each_mut()
                .map(|client| scope.spawn(|| ids(client, "SELECT segment_next('t') FROM generate_series(1, 3)")));
            draws.map(|draw| draw.join().expect("it draws")).concat()
        }));
        assert_eq!(max_id(&mut clients[0], "t"), drawn.len() as i64, "in round {round}");
    }
}

/// Later requests do not discard the value of a session that has not woken up yet.
#[test]
fn session_that_wakes_slowly_gets_its_value() {
    let coordinator = coordinator(Cluster::builder());
    let proxy = Proxy::on_socket(&coordinator);
    let server = in_order(&proxy.conninfo());
    let mut drawn = draw(&server, 1);
    let mut slow = server.client();
    let pid: i32 = value(&mut slow, "SELECT pg_backend_pid()");
    proxy.stop_forwarding();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| value::<i64>(&mut slow, "SELECT segment_next('t')"));
        wait_for_event(&server, pid, "Extension");
        let paused = pause(pid);
        proxy.resume_forwarding();
        server.wait_for(PATIENCE, "the value", || max_id(&mut server.client(), "t") == 2);
        drawn.extend(draw(&server, 20));
        drop(paused);
        drawn.push(late.join().expect("it draws"));
    });
    drawn.sort_unstable();
    assert_eq!(drawn, (1..=22).collect::<Vec<_>>());
}

/// Draws until this many values were drawn. A call that is canceled gets none.
fn draw_timed(client: &mut Client, count: usize, draws: &Draws<i64>) {
    let mut drawn = 0;
    while drawn < count {
        match draws.draw(client, "SELECT segment_next('t')", |row| [row.get(0)]) {
            Ok(()) => drawn += 1,
            Err(error) => assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}"),
        }
    }
}

/// Holds answers back for some milliseconds, again and again.
fn hold_back(proxy: &Proxy, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        proxy.stop_forwarding();
        std::thread::sleep(Duration::from_millis(fastrand::u64(5..25)));
        proxy.resume_forwarding();
        std::thread::sleep(Duration::from_millis(fastrand::u64(1..5)));
    }
}

/// The answers for one of two servers come late: by then, the other one has drawn higher values. Sessions share what a
/// request brings, and some cancel their calls.
#[test]
fn value_is_above_all_that_were_drawn_before_on_any_server() {
    let coordinator = coordinator(Cluster::builder());
    let proxy = Proxy::on_socket(&coordinator);
    let servers = [coordinator.conninfo(), proxy.conninfo()].map(|conninfo| in_order(&conninfo));
    let mut clients: Vec<Client> = Vec::new();
    for server in &servers {
        clients.extend((0..4).map(|_| server.client()));
        execute(clients.last_mut().expect("one of four"), "SET statement_timeout = '30ms'");
    }
    let is_over = AtomicBool::new(false);
    let draws = Draws::default();
    std::thread::scope(|scope| {
        let end = End(&is_over);
        scope.spawn(|| hold_back(&proxy, &is_over));
        let start = |client| scope.spawn(|| draw_timed(client, rounds(50, 1000), &draws));
        let sessions: Vec<_> = clients.iter_mut().map(start).collect();
        sessions.into_iter().for_each(|session| session.join().expect("it draws"));
        drop(end);
    });
    order::judge(&draws.into_draws()).assert_clean("one line in order");
}

#[test]
fn value_of_a_canceled_call_is_never_drawn() {
    let coordinator = coordinator(Cluster::builder());
    let proxy = Proxy::on_socket(&coordinator);
    let [server, other] = [proxy.conninfo(), coordinator.conninfo()].map(|conninfo| in_order(&conninfo));
    draw(&server, 1);
    proxy.stop_forwarding();
    let mut client = server.client();
    execute(&mut client, "SET statement_timeout = '100ms'");
    expect_error(&mut client, "SELECT segment_next('t')", "57014");
    proxy.resume_forwarding();
    server.wait_for(PATIENCE, "the answer", || max_id(&mut server.client(), "t") == 2);
    let above = draw(&other, 1)[0];
    let next = draw(&server, 1)[0];
    assert!(next > above, "{next} after {above}");
}

#[test]
fn tag_that_is_attached_again_stays_in_order() {
    let coordinator = coordinator(Cluster::builder());
    let server = in_order(&coordinator.conninfo());
    // Also before it has any value.
    for _ in 0..2 {
        server.execute("SELECT segment_detach('t')");
        server.execute("SELECT segment_attach('t')");
        let limits = "SELECT int8range(min_step, max_step, '[]')::text FROM idgen.segment";
        assert_eq!(value::<String>(&mut server.client(), limits), "[1,2)");
        draw(&server, 1);
    }
}
