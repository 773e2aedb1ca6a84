//! The paused holder: clients that count in a table under a lease, each a process that is stopped at random moments for
//! longer than its term. Fenced, no count is lost; without the fence, the control, some are.

use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Paused, pause, rounds};
use postgres::Client;

use crate::{builder, counted};

const CLIENTS: usize = 6;

/// What the clients were told.
#[derive(Default)]
struct Told {
    counted: AtomicUsize,
    refused: AtomicUsize,
}

impl Told {
    fn counted(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }

    /// Reads what one client says, until it ends.
    fn listen(&self, answers: impl BufRead) {
        for answer in answers.lines() {
            match answer.expect("a line").as_str() {
                "counted" => self.counted.fetch_add(1, Ordering::Relaxed),
                "refused" => self.refused.fetch_add(1, Ordering::Relaxed),
                other => panic!("a client says \"{other}\""),
            };
        }
    }
}

/// A client's process, and who listens to it.
struct Holder {
    process: Child,
    listener: Option<JoinHandle<()>>,
}

impl Holder {
    fn start(cluster: &Cluster, number: usize, how: &str, told: &Arc<Told>) -> Holder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holder"));
        command.args([&cluster.connect_string("postgres", "postgres"), &number.to_string(), how]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a program of this package");
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        let told = Arc::clone(told);
        Holder { process, listener: Some(std::thread::spawn(move || told.listen(answers))) }
    }

    fn pause(&self) -> Paused {
        pause(i32::try_from(self.process.id()).expect("a process id is an i32"))
    }

    /// Lets it do what it has begun, and ends it.
    fn finish(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().expect("it is a child").success());
        self.listener.take().expect("only this takes it").join().expect("it was understood");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Outcome {
    counted: usize,
    refused: usize,
    /// What stands in the table.
    counter: usize,
    take_overs: i64,
}

/// Whose the lease is now, and under which token.
fn current(client: &mut Client) -> Option<(usize, i64)> {
    let sql = "SELECT owner::bigint, token FROM idgen.lease WHERE name = 'counter' AND depth > 0";
    let row = client.query_opt(sql, &[]).expect("rows of leases")?;
    Some((row.get::<_, i64>(0) as usize, row.get(1)))
}

/// Pauses the holder, until somebody else has the lease or the holder's own transaction keeps it from that. How many
/// take-overs there were meanwhile.
fn pause_holder(cluster: &Cluster, clients: &[Holder], observer: &mut Client) -> i64 {
    let Some((number, _)) = current(observer) else { return 0 };
    let _paused = clients[number].pause();
    // What it sent before may still be carried out.
    let Some((_, token)) = current(observer).filter(|(owner, _)| *owner == number) else { return 0 };
    let before = counted(observer, "take_overs");
    let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
    cluster.wait_for(PATIENCE, "the paused client's lease to be another's, or to be waited for", || {
        current(observer).is_none_or(|(_, now)| now != token) || value(observer, waits)
    });
    counted(observer, "take_overs") - before
}

/// Counts so far at least, with so many take-overs while a client was paused.
fn count(cluster: &Cluster, how: &str, counts: usize, take_overs: i64) -> Outcome {
    let mut observer = cluster.client();
    execute(&mut observer, "UPDATE counter SET n = 0");
    let told = Arc::new(Told::default());
    let clients: Vec<Holder> = (0..CLIENTS).map(|number| Holder::start(cluster, number, how, &told)).collect();
    let mut seen = 0;
    while told.counted() < counts || seen < take_overs {
        let until = told.counted() + random(12);
        cluster.wait_for(PATIENCE, "the clients to count", || told.counted() >= until);
        seen += pause_holder(cluster, &clients, &mut observer);
    }
    clients.into_iter().for_each(Holder::finish);
    let counter: i64 = value(&mut observer, "SELECT n FROM counter");
    let refused = told.refused.load(Ordering::Relaxed);
    Outcome { counted: told.counted(), refused, counter: counter as usize, take_overs: seen }
}

fn random(limit: u64) -> usize {
    (RandomState::new().hash_one(()) % limit) as usize
}

#[test]
fn a_paused_holder_loses_no_count_if_it_fences() {
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
    assert!(fenced.refused > 0, "no pause has met a write");
    assert!(trusting.counter < trusting.counted, "the control has lost nothing: the pauses prove nothing");
}
