//! A semaphore whose clients hold, disconnect and pause: there are never more holders than slots, by the rows and by the
//! clients' own records.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use idgen_testkit::lease::Grant;
use idgen_testkit::sql::{backend_pid, column, execute, value};
use idgen_testkit::{Cluster, pause, rounds};
use postgres::Client;
use postgres::error::SqlState;

use crate::{boot_us, builder};

const SLOTS: i32 = 16;
const CLIENTS: usize = 64;
const TTL_US: i64 = 300_000;

/// The time in which a client was sure to hold a slot, by CLOCK_BOOTTIME.
#[derive(Clone, Copy, Debug)]
struct Held {
    grant: Grant,
    from_us: i64,
    until_us: i64,
}

struct Storm<'a> {
    cluster: &'a Cluster,
    wanted: usize,
    grants: AtomicUsize,
    held: Mutex<Vec<Held>>,
    /// The sessions that may be terminated or paused.
    sessions: Mutex<Vec<i32>>,
    is_over: AtomicBool,
}

fn random(limit: u64) -> u64 {
    RandomState::new().hash_one(()) % limit
}

impl Storm<'_> {
    /// Runs one session of a client after another.
    fn take_part(&self) {
        while self.grants.load(Ordering::Relaxed) < self.wanted {
            let mut client = self.cluster.client();
            let pid = backend_pid(&mut client);
            self.sessions.lock().unwrap().push(pid);
            let end = self.session(&mut client);
            self.sessions.lock().unwrap().retain(|known| *known != pid);
            if let Err(error) = end {
                // An error without a SQLSTATE means a lost connection.
                assert!(error.code().is_none_or(|code| *code == SqlState::ADMIN_SHUTDOWN), "{error:?}");
            }
        }
    }

    fn session(&self, client: &mut Client) -> Result<(), postgres::Error> {
        while self.grants.load(Ordering::Relaxed) < self.wanted {
            let bound = random(4) == 0;
            let wish = format!("SELECT slot, token FROM lease_try_acquire('s', '1 s', bind_session => {bound})");
            let Some(row) = client.query_opt(&wish, &[])? else { continue };
            self.grants.fetch_add(1, Ordering::Relaxed);
            let grant = Grant { slot: row.get(0), token: row.get(1) };
            // A successful renewal grants the ttl from the time when it was sent.
            let from_us = boot_us();
            if !is_held(client.execute("SELECT lease_renew('s', $1)", &[&grant.token]).map(drop))? {
                continue;
            }
            let part = random(8);
            if part > 1 {
                std::thread::sleep(Duration::from_millis(random(10 * part)));
            }
            // A client that does not release the lease holds it for the whole ttl, unless its session ends.
            let now_us = boot_us();
            if bound {
                client.simple_query("")?;
                self.record(grant, from_us, now_us);
            } else {
                let ends_us = from_us + TTL_US;
                self.record(grant, from_us, if part > 1 { now_us.min(ends_us) } else { ends_us });
            }
            match part {
                // Disconnects.
                0 => return Ok(()),
                // Keeps the lease without releasing it. A bound one would never become free.
                1 if !bound => {}
                _ => {
                    is_held(client.execute("SELECT lease_release('s', $1)", &[&grant.token]).map(drop))?;
                }
            }
        }
        Ok(())
    }

    fn record(&self, grant: Grant, from_us: i64, until_us: i64) {
        self.held.lock().unwrap().push(Held { grant, from_us, until_us });
    }

    /// Terminates random sessions and pauses others for longer than a term.
    fn disturb(&self) {
        let mut client = self.cluster.client();
        while !self.is_over.load(Ordering::Relaxed) {
            // Every session in the list is alive: clients remove their session before they end it.
            let mut sessions = self.sessions.lock().unwrap();
            if sessions.is_empty() {
                continue;
            }
            let victim = random(sessions.len() as u64) as usize;
            if random(2) == 0 {
                let pid = sessions.swap_remove(victim);
                drop(sessions);
                execute(&mut client, &format!("SELECT pg_terminate_backend({pid})"));
            } else {
                let _paused = pause(sessions[victim]);
                drop(sessions);
                std::thread::sleep(Duration::from_micros(TTL_US as u64 + random(50_000)));
            }
        }
    }

    /// Counts the terms that are still running after all rows were read.
    fn watch(&self) {
        let mut client = self.cluster.client();
        while !self.is_over.load(Ordering::Relaxed) {
            let ends: Vec<i64> = column(&mut client, "SELECT ends_us FROM idgen.lease WHERE name = 's' AND depth > 0");
            let now_us = boot_us();
            let unexpired = ends.iter().filter(|ends_us| **ends_us > now_us).count();
            assert!(unexpired <= SLOTS as usize, "{unexpired} hold {SLOTS} slots");
        }
    }
}

/// False if the lease was lost.
fn is_held(outcome: Result<(), postgres::Error>) -> Result<bool, postgres::Error> {
    match outcome {
        Err(error) if error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// The largest number of holders at one time.
fn most_at_once(held: &[Held]) -> i32 {
    let mut changes: Vec<(i64, i32)> = held.iter().flat_map(|held| [(held.from_us, 1), (held.until_us, -1)]).collect();
    // At the same moment, releases sort before grants.
    changes.sort_unstable();
    changes
        .iter()
        .scan(0, |count, (_, change)| {
            *count += change;
            Some(*count)
        })
        .max()
        .unwrap_or(0)
}

#[test]
fn semaphore_never_has_more_holders_than_slots() {
    let cluster = builder().start_with_extension();
    cluster.execute(&format!("SELECT lease_define('s', {SLOTS}, '{TTL_US} us')"));
    let storm = Storm {
        cluster: &cluster,
        wanted: rounds(1000, 20_000),
        grants: AtomicUsize::new(0),
        held: Mutex::new(Vec::new()),
        sessions: Mutex::new(Vec::new()),
        is_over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let helpers = [scope.spawn(|| storm.disturb()), scope.spawn(|| storm.watch())];
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| storm.take_part())).collect();
        let ends: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        storm.is_over.store(true, Ordering::Relaxed);
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
        ends.into_iter().for_each(|end| end.unwrap());
    });
    let mut held = storm.held.into_inner().unwrap();
    held.sort_unstable_by_key(|held| (held.grant.slot, held.grant.token));
    for two in held.windows(2).filter(|two| two[0].grant.slot == two[1].grant.slot) {
        assert!(two[0].until_us <= two[1].from_us, "one slot, two holders: {two:?}");
    }
    let most = most_at_once(&held);
    let take_overs: i64 = value(&mut cluster.client(), "SELECT take_overs FROM idgen.stat_lease");
    println!("{} terms, {take_overs} take-overs, at most {most} holders at once", held.len());
    assert!(most > SLOTS / 2 && take_overs > 0, "there was no contention");
    assert!(most <= SLOTS, "{most} hold {SLOTS} slots");
}
