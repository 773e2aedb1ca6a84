//! Readers and writers with short terms, whose sessions are killed and paused: what they write in fenced transactions shows
//! that none worked beside a writer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use idgen_testkit::sql::{backend_pid, execute, row, value};
use idgen_testkit::{Cluster, pause, rounds};
use postgres::Client;
use postgres::error::SqlState;

use super::start;
use crate::random;

const WRITERS: usize = 6;
const READERS: usize = 18;
const TTL_US: u64 = 200_000;

struct Storm<'a> {
    cluster: &'a Cluster,
    wanted: usize,
    written: AtomicUsize,
    /// The sessions that may be terminated or paused.
    sessions: Mutex<Vec<i32>>,
    is_over: AtomicBool,
}

impl Storm<'_> {
    fn goes_on(&self) -> bool {
        self.written.load(Ordering::Relaxed) < self.wanted
    }

    /// Runs one session after another.
    fn take_part(&self, shared: bool) {
        while self.goes_on() {
            let mut client = self.cluster.client();
            let pid = backend_pid(&mut client);
            self.sessions.lock().unwrap().push(pid);
            let end = self.session(&mut client, shared);
            self.sessions.lock().unwrap().retain(|known| *known != pid);
            if let Err(error) = end {
                // An error without a SQLSTATE means a lost connection.
                assert!(error.code().is_none_or(|code| *code == SqlState::ADMIN_SHUTDOWN), "{error:?}");
            }
        }
    }

    fn session(&self, client: &mut Client, shared: bool) -> Result<(), postgres::Error> {
        while self.goes_on() {
            let bound = random(4) == 0;
            let call = format!(
                "lease_try_acquire('defined', '10 s', '{TTL_US} us', shared => {shared}, bind_session => {bound})"
            );
            let Some(token) = acquire(client, &format!("SELECT token FROM {call}"))? else { continue };
            let work = format!(
                "BEGIN; SELECT lease_fence('defined', {token}); INSERT INTO work VALUES ({token}, {shared}, clock_timestamp());
                 SELECT pg_sleep({}); UPDATE work SET ended = clock_timestamp() WHERE token = {token}; COMMIT",
                random(20) as f64 / 1000.0
            );
            if is_held(client.batch_execute(&work))? {
                self.written.fetch_add(1, Ordering::Relaxed);
            } else {
                client.batch_execute("ROLLBACK")?;
            }
            match random(8) {
                // Disconnects.
                0 => return Ok(()),
                // Does not release. A bound term would never end.
                1 if !bound => {}
                _ => drop(is_held(client.batch_execute(&format!("SELECT lease_release('defined', {token})")))?),
            }
        }
        Ok(())
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
            let victim = random(sessions.len() as u64);
            if random(2) == 0 {
                let pid = sessions.swap_remove(victim);
                drop(sessions);
                execute(&mut client, &format!("SELECT pg_terminate_backend({pid})"));
            } else {
                let _paused = pause(sessions[victim]);
                drop(sessions);
                std::thread::sleep(Duration::from_micros(TTL_US + TTL_US / 2));
            }
        }
    }

    /// Reads all rows at once: terms of both modes never run at the same time.
    fn watch(&self) {
        let mut client = self.cluster.client();
        let count = "count(*) FILTER (WHERE depth > 0 AND slot";
        let sql = format!("SELECT {count} < 65536), {count} >= 65536) FROM idgen.lease WHERE name = 'defined'");
        while !self.is_over.load(Ordering::Relaxed) {
            let row = row(&mut client, &sql);
            let (writers, readers): (i64, i64) = (row.get(0), row.get(1));
            assert!(writers == 0 || readers == 0 && writers == 1, "{writers} writers beside {readers} readers");
        }
    }
}

/// Acquires in one of the ways in which a session can. `None` if it holds nothing afterwards.
fn acquire(client: &mut Client, query: &str) -> Result<Option<i64>, postgres::Error> {
    let token = |client: &mut Client, sql: &str| Ok(client.query_opt(sql, &[])?.and_then(|row| row.get(0)));
    let cursor = format!(
        "BEGIN; DECLARE c CURSOR FOR SELECT CASE n WHEN 1 THEN ({query}) ELSE 1 / (n - 2) END FROM generate_series(1, 2) AS n"
    );
    match random(8) {
        0 => {
            client.batch_execute(&cursor)?;
            let token = token(client, "FETCH c")?;
            client.batch_execute("SAVEPOINT s")?;
            let failed = client.batch_execute("FETCH c").expect_err("a division by zero");
            if failed.code() != Some(&SqlState::DIVISION_BY_ZERO) {
                return Err(failed);
            }
            client.batch_execute("ROLLBACK TO s; COMMIT")?;
            Ok(token)
        }
        1 => {
            client.batch_execute(&format!("{cursor}; SAVEPOINT s; FETCH c; ROLLBACK TO s; COMMIT"))?;
            Ok(None)
        }
        2 => {
            client.batch_execute(&format!("SET statement_timeout = '{} ms'", 1 + random(3)))?;
            let taken = token(client, query);
            // It can be cancelled too.
            while let Err(error) = client.batch_execute("RESET statement_timeout") {
                if error.code() != Some(&SqlState::QUERY_CANCELED) {
                    return Err(error);
                }
            }
            match taken {
                Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => Ok(None),
                taken => taken,
            }
        }
        3 => {
            client.batch_execute("SET default_transaction_isolation = 'repeatable read'")?;
            let token = token(client, query)?;
            client.batch_execute("RESET default_transaction_isolation")?;
            Ok(token)
        }
        _ => token(client, query),
    }
}

/// False if the lease was lost.
fn is_held(outcome: Result<(), postgres::Error>) -> Result<bool, postgres::Error> {
    match outcome {
        Err(error) if error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

#[test]
fn no_reader_works_beside_a_writer() {
    let cluster = start();
    cluster.execute(
        "CREATE TABLE work (token bigint PRIMARY KEY, shared boolean, began timestamptz, ended timestamptz);
         CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON work
             FOR EACH ROW EXECUTE FUNCTION lease_guard('defined', 'shared')",
    );
    let storm = Storm {
        cluster: &cluster,
        wanted: rounds(600, 20_000),
        written: AtomicUsize::new(0),
        sessions: Mutex::new(Vec::new()),
        is_over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let helpers = [scope.spawn(|| storm.disturb()), scope.spawn(|| storm.watch())];
        let start = |index| storm.take_part(index >= WRITERS);
        let clients: Vec<_> = (0..WRITERS + READERS).map(|index| scope.spawn(move || start(index))).collect();
        let ends: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        storm.is_over.store(true, Ordering::Relaxed);
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
        ends.into_iter().for_each(|end| end.unwrap());
    });
    let mut client = cluster.client();
    let beside = |condition: &str| -> i64 {
        let sql = "SELECT count(*) FROM work AS one JOIN work AS two \
                   ON one.token < two.token AND one.began <= two.ended AND two.began <= one.ended WHERE";
        value(&mut client, &format!("{sql} {condition}"))
    };
    let [readers_together, others_together] =
        ["one.shared AND two.shared", "NOT (one.shared AND two.shared)"].map(beside);
    let [readers, writers]: [i64; 2] = ["shared", "NOT shared"]
        .map(|kind| value(&mut cluster.client(), &format!("SELECT count(*) FROM work WHERE {kind}")));
    let take_overs: i64 = value(&mut cluster.client(), "SELECT sum(take_overs)::bigint FROM idgen.stat_lease");
    println!(
        "{readers} readers, {writers} writers, {readers_together} pairs of readers at once, {take_overs} take-overs"
    );
    assert_eq!(others_together, 0);
    assert!(readers_together > 0, "no two readers met, so the storm proves nothing");
    // The queue serves both in order, so neither starves.
    let fewest = (storm.wanted / 20) as i64;
    assert!(readers > fewest && writers > fewest, "{readers} readers and {writers} writers");
}
