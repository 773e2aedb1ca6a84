//! Paused holders: client processes count in a table under a lease and are stopped at random moments for longer than their
//! term. With fences no count is lost. Without them, the control, some are.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Paused, pause, rounds};
use postgres::Client;

use crate::{builder, counter, random};

const CLIENTS: usize = 6;

/// The outcomes that the clients print.
#[derive(Default)]
struct Outcomes {
    counted: AtomicUsize,
    refused: AtomicUsize,
}

impl Outcomes {
    fn counted(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }

    /// Reads the output of one client to its end.
    fn listen(&self, answers: impl BufRead) {
        for answer in answers.lines() {
            match answer.expect("a line").as_str() {
                "counted" => self.counted.fetch_add(1, Ordering::Relaxed),
                "refused" => self.refused.fetch_add(1, Ordering::Relaxed),
                other => panic!("unexpected output \"{other}\""),
            };
        }
    }
}

/// A client's process and the thread that reads its output.
struct Holder {
    process: Child,
    listener: Option<JoinHandle<()>>,
}

impl Holder {
    fn start(cluster: &Cluster, index: usize, how: &str, outcomes: &Arc<Outcomes>) -> Holder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holder"));
        command.args([&cluster.conninfo(), &index.to_string(), how]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a program of this package");
        let answers = BufReader::new(process.stdout.take().expect("standard output is piped"));
        let outcomes = Arc::clone(outcomes);
        Holder { process, listener: Some(std::thread::spawn(move || outcomes.listen(answers))) }
    }

    fn pause(&self) -> Paused {
        pause(i32::try_from(self.process.id()).expect("a process id is an i32"))
    }

    /// Lets the client complete its attempt and exit.
    fn finish(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().expect("a child can be waited for").success());
        self.listener.take().expect("taken only here").join().expect("the output was valid");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The client may have exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Outcome {
    counted: usize,
    refused: usize,
    /// The final value in the table.
    counter: usize,
    take_overs: i64,
}

/// The current owner and token of the lease.
fn current(client: &mut Client) -> Option<(usize, i64)> {
    let sql = "SELECT owner::bigint, token FROM idgen.lease WHERE name = 'counter' AND depth > 0";
    let row = client.query_opt(sql, &[]).expect("a query of idgen.lease")?;
    Some((row.get::<_, i64>(0) as usize, row.get(1)))
}

/// Pauses the holder until another client takes the lease over or waits for the holder's transaction. Returns the number of
/// take-overs during the pause.
fn pause_holder(cluster: &Cluster, clients: &[Holder], observer: &mut Client) -> i64 {
    let Some((number, _)) = current(observer) else { return 0 };
    let _paused = clients[number].pause();
    // The server may still execute what the client sent before the pause.
    let Some((_, token)) = current(observer).filter(|(owner, _)| *owner == number) else { return 0 };
    let before = counter(observer, "take_overs");
    let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
    cluster.wait_for(PATIENCE, "a take-over of the paused client's lease, or a wait for it", || {
        current(observer).is_none_or(|(_, now)| now != token) || value(observer, waits)
    });
    counter(observer, "take_overs") - before
}

/// Runs clients until they have counted this far, with this many take-overs during pauses.
fn count(cluster: &Cluster, how: &str, counts: usize, take_overs: i64) -> Outcome {
    let mut observer = cluster.client();
    execute(&mut observer, "UPDATE counter SET n = 0");
    let outcomes = Arc::new(Outcomes::default());
    let clients: Vec<Holder> = (0..CLIENTS).map(|number| Holder::start(cluster, number, how, &outcomes)).collect();
    let mut seen = 0;
    while outcomes.counted() < counts || seen < take_overs {
        let until = outcomes.counted() + random(12);
        cluster.wait_for(PATIENCE, "the clients to count", || outcomes.counted() >= until);
        seen += pause_holder(cluster, &clients, &mut observer);
    }
    clients.into_iter().for_each(Holder::finish);
    let counter: i64 = value(&mut observer, "SELECT n FROM counter");
    let refused = outcomes.refused.load(Ordering::Relaxed);
    Outcome { counted: outcomes.counted(), refused, counter: counter as usize, take_overs: seen }
}

#[test]
fn paused_holder_that_fences_loses_no_count() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE counter (n bigint); INSERT INTO counter VALUES (0)");
    let fenced = count(&cluster, "fence", rounds(300, 10_000), 30);
    let trusting = count(&cluster, "trust", 100, 10);
    println!(
        "fenced: {} counted, {} refused, {} take-overs while paused; without the fence: {} counted, {} take-overs, {} lost",
        fenced.counted,
        fenced.refused,
        fenced.take_overs,
        trusting.counted,
        trusting.take_overs,
        trusting.counted - trusting.counter
    );
    assert_eq!(fenced.counter, fenced.counted);
    assert!(fenced.refused > 0, "no pause hit a write");
    assert!(trusting.counter < trusting.counted, "the control lost nothing, so the pauses prove nothing");
}
