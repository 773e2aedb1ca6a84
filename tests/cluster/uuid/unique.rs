//! UUIDs of all sessions and databases strictly rise in the order of issue, over crashes and clock steps.

use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_sim::history::order;
use idgen_testkit::recorder::{Draws, is_lost};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use crate::{WAYS, uuids};

const SESSIONS: usize = 16;
const DATABASES: [&str; 2] = ["postgres", "other"];
/// The number of UUIDs of one statement.
const CHUNK: usize = 100;
/// How many statements each session answers between two steps of the clock.
const STATEMENTS: usize = 20;
const HOUR_MS: i64 = 3_600_000;

fn two_databases() -> Cluster {
    let cluster = Cluster::builder().conf("idgen.worker_id", "5").fake_clock().start_with_extension();
    cluster.execute("CREATE DATABASE other");
    execute(&mut cluster.client_in("other"), "CREATE EXTENSION idgen");
    cluster
}

/// What one session does until the server ends it.
struct Session<'a> {
    client: Client,
    /// The session draws in a way of its own, and so with the others in all ways at a time.
    sql: String,
    statements: &'a AtomicUsize,
    draws: &'a Draws<u128>,
}

impl Session<'_> {
    fn draw_until_the_crash(mut self) {
        loop {
            match self.draws.draw(&mut self.client, &self.sql, uuids) {
                Ok(()) => drop(self.statements.fetch_add(1, Ordering::Relaxed)),
                Err(error) => return assert!(is_lost(&error), "{error:?}"),
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Death {
    Postmaster,
    Immediate,
    Backend,
}

/// Draws in all sessions, sets the clock to each of these offsets, and lets the server crash.
fn draw_until_crash(cluster: &Cluster, offsets_ms: &[i64], death: Death, draws: &Draws<u128>) {
    let statements: [AtomicUsize; SESSIONS] = Default::default();
    let mut clients: Vec<Client> = (0..SESSIONS).map(|n| cluster.client_in(DATABASES[n % 2])).collect();
    let victim = backend_pid(&mut clients[3]);
    std::thread::scope(|scope| {
        let start = |(n, client): (usize, Client)| {
            let sql = WAYS[n / 2 % WAYS.len()].replace("$n", &CHUNK.to_string());
            let session = Session { client, sql, statements: &statements[n], draws };
            drop(scope.spawn(move || session.draw_until_the_crash()));
        };
        clients.into_iter().enumerate().for_each(start);
        for offset_ms in offsets_ms {
            cluster.clock().set_offset_ms(*offset_ms);
            let counts = || statements.each_ref().map(|count| count.load(Ordering::Relaxed));
            let at_step = counts();
            let all_went_on = || counts().iter().zip(at_step).all(|(now, then)| *now >= then + STATEMENTS);
            cluster.wait_for(PATIENCE, "all sessions to draw by this clock", all_went_on);
        }
        let steps_back = offsets_ms.windows(2).filter(|pair| pair[1] < pair[0]).count() as i64;
        let noticed = value::<i64>(&mut cluster.client(), "SELECT backward_steps FROM idgen.stat_clock");
        assert!(noticed >= steps_back, "the server has noticed {noticed} steps back");
        match death {
            Death::Postmaster => cluster.kill9_postmaster(),
            Death::Immediate => cluster.stop(Stop::Immediate),
            Death::Backend => cluster.kill9(victim),
        }
    });
}

#[test]
fn uuids_rise_over_sessions_databases_crashes_and_clock_steps_smoke() {
    let cluster = two_databases();
    let draws = Draws::default();
    // Two hours ahead, so that each later clock is set back and none is behind the true time.
    let mut offset_ms = 2 * HOUR_MS;
    for _ in 0..rounds(1, 10) {
        for death in [Death::Postmaster, Death::Immediate, Death::Backend] {
            let steps = [0, -3, -10_000, 60_000, -60_000].map(|step_ms| offset_ms + step_ms);
            draw_until_crash(&cluster, &steps, death, &draws);
            // An hour back while the server is down or recovers, in the next round ahead again.
            offset_ms = if offset_ms > HOUR_MS { offset_ms - HOUR_MS } else { 2 * HOUR_MS };
            cluster.clock().set_offset_ms(offset_ms);
            match death {
                Death::Backend => cluster.wait_until_ready(),
                Death::Postmaster | Death::Immediate => cluster.start_again(),
            }
            draw_once(&mut cluster.client_in("other"), &draws);
        }
    }
    let verdict = order::judge(&draws.into_draws());
    println!("UUIDs: {verdict}");
    verdict.assert_clean("UUIDs");
}

fn draw_once(client: &mut Client, draws: &Draws<u128>) {
    draws.draw(client, &WAYS[0].replace("$n", "1"), uuids).expect("the server runs");
}

/// The control: without the mark and the label, the clock alone decides where UUIDs begin after a crash.
#[test]
fn uuids_fall_back_with_the_clock_without_the_mark() {
    let cluster = two_databases();
    // No worker can write the label.
    cluster.set_conf("max_worker_processes", "0");
    cluster.restart();
    cluster.clock().set_offset_ms(2 * HOUR_MS);
    let draws = Draws::default();
    draw_until_crash(&cluster, &[2 * HOUR_MS], Death::Postmaster, &draws);
    std::fs::remove_dir_all(cluster.data_dir().join("idgen")).expect("the mark's directory");
    cluster.clock().set_offset_ms(HOUR_MS);
    cluster.start_again();
    draw_once(&mut cluster.client(), &draws);
    let verdict = order::judge(&draws.into_draws());
    println!("without the mark: {verdict}");
    assert_eq!(verdict.count(order::ORDER), 1, "{verdict}");
}
