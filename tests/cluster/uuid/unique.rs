//! UUIDs of all sessions and databases strictly rise in the order of issue, over crashes and clock steps.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::{Client, Error};

use crate::{WAYS, draw, uuids};

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
    /// The greatest UUID that any session has received.
    greatest: &'a Mutex<u128>,
}

impl Session<'_> {
    fn draw(&mut self, before: u128) -> Result<Vec<u128>, Error> {
        let drawn = uuids(&self.client.query_one(&self.sql, &[])?);
        assert_eq!(drawn.len(), CHUNK);
        assert!(drawn[0] > before, "{:032x} was drawn after {before:032x} was received", drawn[0]);
        Ok(drawn)
    }

    fn draw_until_the_crash(mut self) -> Vec<u128> {
        let mut received = Vec::new();
        loop {
            let before = *self.greatest.lock().unwrap();
            match self.draw(before) {
                Ok(drawn) => {
                    let mut greatest = self.greatest.lock().unwrap();
                    *greatest = last(&drawn).max(*greatest);
                    received.extend(drawn);
                    self.statements.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let is_crash = error.as_db_error().is_none_or(|error| error.code().code().starts_with("57P"));
                    assert!(is_crash, "{error:?}");
                    return received;
                }
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

/// Draws in all sessions, sets the clock to each of these offsets, and lets the server crash. Returns what the clients
/// received. Each of it is above `before`.
fn draw_until_crash(cluster: &Cluster, offsets_ms: &[i64], death: Death, before: u128) -> Vec<u128> {
    let statements: [AtomicUsize; SESSIONS] = Default::default();
    let greatest = Mutex::new(before);
    let mut clients: Vec<Client> = (0..SESSIONS).map(|n| cluster.client_in(DATABASES[n % 2])).collect();
    let victim = backend_pid(&mut clients[3]);
    let received: Vec<Vec<u128>> = std::thread::scope(|scope| {
        let start = |(n, client): (usize, Client)| {
            let sql = WAYS[n / 2 % WAYS.len()].replace("$n", &CHUNK.to_string());
            let session = Session { client, sql, statements: &statements[n], greatest: &greatest };
            scope.spawn(move || session.draw_until_the_crash())
        };
        let sessions: Vec<_> = clients.into_iter().enumerate().map(start).collect();
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
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    received.iter().for_each(|uuids| assert_increasing(uuids));
    received.concat()
}

#[test]
fn uuids_rise_over_sessions_databases_crashes_and_clock_steps_smoke() {
    let cluster = two_databases();
    let mut seen: Vec<u128> = Vec::new();
    let mut greatest = 0;
    // Two hours ahead, so that each later clock is set back and none is behind the true time.
    let mut offset_ms = 2 * HOUR_MS;
    for _ in 0..rounds(1, 10) {
        for death in [Death::Postmaster, Death::Immediate, Death::Backend] {
            let steps = [0, -3, -10_000, 60_000, -60_000].map(|step_ms| offset_ms + step_ms);
            let received = draw_until_crash(&cluster, &steps, death, greatest);
            // An hour back while the server is down or recovers, in the next round ahead again.
            offset_ms = if offset_ms > HOUR_MS { offset_ms - HOUR_MS } else { 2 * HOUR_MS };
            cluster.clock().set_offset_ms(offset_ms);
            match death {
                Death::Backend => cluster.wait_until_ready(),
                Death::Postmaster | Death::Immediate => cluster.start_again(),
            }
            seen.extend(received);
            seen = assert_distinct(seen);
            let next = draw(&mut cluster.client_in("other"), WAYS[0], 1)[0];
            assert!(next > last(&seen), "{death:?}: {next:032x} after {:032x}", last(&seen));
            seen.push(next);
            greatest = next;
        }
    }
}

/// The control: without the mark and the label, the clock alone decides where UUIDs begin after a crash.
#[test]
fn uuids_fall_back_with_the_clock_without_the_mark() {
    let cluster = two_databases();
    // No worker can write the label.
    cluster.set_conf("max_worker_processes", "0");
    cluster.restart();
    cluster.clock().set_offset_ms(2 * HOUR_MS);
    let received = draw_until_crash(&cluster, &[2 * HOUR_MS], Death::Postmaster, 0);
    std::fs::remove_dir_all(cluster.data_dir().join("idgen")).expect("the mark's directory");
    cluster.clock().set_offset_ms(HOUR_MS);
    cluster.start_again();
    let next = draw(&mut cluster.client(), WAYS[0], 1)[0];
    let greatest = last(&assert_distinct(received));
    assert!(next < greatest, "{next:032x} after {greatest:032x}");
}
