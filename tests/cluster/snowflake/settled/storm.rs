//! Many writers that commit late, in any order or not at all, and consumers that read by id, or by the value of a segment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use idgen_sim::history::settled::{self, Read};
use idgen_testkit::sql::{backend_pid, column, execute, ids, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

const WRITERS: usize = 64;
/// Rows of one storm. A process of the server crashes after the first half.
const ROWS: usize = 100_000;
const ROWS_OF_AN_INSERT: usize = 20;

/// What all threads of a storm share.
struct Storm<'a> {
    cluster: &'a Cluster,
    /// Rows that were inserted, committed or not.
    inserted: AtomicUsize,
    is_over: AtomicBool,
    /// How many transactions were prepared.
    prepared: AtomicUsize,
}

/// Ends the storm also if a check fails: otherwise the test would wait for its writers for ever.
struct End<'a>(&'a Storm<'a>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// A session that can be lost, and then is another one.
struct Writer<'a> {
    storm: &'a Storm<'a>,
    rng: Rng,
    client: Option<Client>,
}

impl Writer<'_> {
    fn run(&mut self) {
        while !self.storm.is_over.load(Ordering::Relaxed) {
            // Terminated, or the server has crashed: the next turn takes a new session.
            if self.turn().is_none() {
                self.client = self.storm.cluster.try_client().ok();
            }
        }
    }

    fn turn(&mut self) -> Option<()> {
        match self.rng.u8(..20) {
            0 | 1 => self.end_a_prepared_one(),
            2 => self.terminate_another(),
            ending => self.transaction(ending),
        }
    }

    fn execute(&mut self, sql: &str) -> Option<()> {
        self.client.as_mut()?.batch_execute(sql).ok()
    }

    fn transaction(&mut self, ending: u8) -> Option<()> {
        let insert = format!("INSERT INTO event (writer) SELECT 1 FROM generate_series(1, {ROWS_OF_AN_INSERT})");
        self.execute(&format!("BEGIN; {insert}"))?;
        self.storm.inserted.fetch_add(ROWS_OF_AN_INSERT, Ordering::Relaxed);
        // The rest of the transaction's work.
        std::thread::sleep(Duration::from_micros(self.rng.u64(..20_000)));
        match ending {
            3 => self.execute("ROLLBACK"),
            4 => self.prepare(),
            5..=7 => self.execute(&format!("SAVEPOINT s; {insert}; ROLLBACK TO s; {insert}; COMMIT")),
            _ => self.execute("COMMIT"),
        }
    }

    fn prepare(&mut self) -> Option<()> {
        let number = self.storm.prepared.fetch_add(1, Ordering::Relaxed);
        self.execute(&format!("PREPARE TRANSACTION 'p{number}'"))
    }

    fn end_a_prepared_one(&mut self) -> Option<()> {
        let sql = "SELECT gid FROM pg_prepared_xacts ORDER BY random() LIMIT 1";
        let prepared = self.client.as_mut()?.query_opt(sql, &[]).ok()?;
        let ending = if self.rng.bool() { "COMMIT" } else { "ROLLBACK" };
        if let Some(row) = prepared {
            // Another writer may end it first, which is an error.
            let _ = self.execute(&format!("{ending} PREPARED '{}'", row.get::<_, String>(0)));
        }
        Some(())
    }

    fn terminate_another(&mut self) -> Option<()> {
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE query LIKE '%INSERT INTO event%' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1",
        )
    }
}

/// A consumer that reads by a column, up to what it takes as complete.
struct Consumer {
    column: &'static str,
    upper: &'static str,
    position: i64,
    reads: Vec<Read>,
}

impl Consumer {
    fn new([column, upper]: [&'static str; 2]) -> Consumer {
        Consumer { column, upper, position: 0, reads: Vec::new() }
    }

    /// `None` if the session is lost.
    fn read(&mut self, client: &mut Client) -> Option<()> {
        let upper: i64 = client.query_one(self.upper, &[]).ok()?.get(0);
        let sql = format!("SELECT {0} FROM event WHERE {0} > $1 AND {0} <= $2", self.column);
        let rows = client.query(&sql, &[&self.position, &upper]).ok()?;
        let ids = rows.iter().map(|row| row.get(0)).collect();
        self.reads.push(Read { after: self.position, settled: upper, ids });
        // An id that was settled stays settled. A crash forgets what is known of values.
        assert!(upper >= self.position || self.upper != SETTLED, "{upper} settled after {}", self.position);
        self.position = upper.max(self.position);
        Some(())
    }
}

const SETTLED: &str = "SELECT snowflake_settled()";
const SETTLED_VALUE: &str = "SELECT segment_settled('event')";
/// By settled ids, by settled values, and up to the newest id.
const CONSUMERS: [[&str; 2]; 3] =
    [["id", SETTLED], ["value", SETTLED_VALUE], ["id", "SELECT coalesce(max(id), 0) FROM event"]];

/// Steps the clock and reads, until so many rows were inserted.
fn consume(storm: &Storm, consumers: &mut [Consumer; 3], until: usize) {
    let mut client = None;
    for step in 0.. {
        if storm.inserted.load(Ordering::Relaxed) >= until {
            break;
        }
        // Back and forth by up to two seconds.
        storm.cluster.clock().set_offset_ms([0, -1900, 700, -300, 100][step / 20 % 5]);
        let outcome = client.as_mut().and_then(|client| consumers.iter_mut().try_for_each(|c| c.read(client)));
        if outcome.is_none() {
            client = storm.cluster.try_client().ok();
        }
    }
    storm.cluster.clock().set_offset_ms(0);
}

fn run_storm(cluster: &Cluster, consumers: &mut [Consumer; 3], seed: u64) {
    let storm = Storm {
        cluster,
        inserted: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        prepared: AtomicUsize::new(0),
    };
    let mut rng = Rng::with_seed(seed);
    std::thread::scope(|scope| {
        let _end = End(&storm);
        for _ in 0..WRITERS {
            let mut writer = Writer { storm: &storm, rng: rng.fork(), client: None };
            scope.spawn(move || writer.run());
        }
        consume(&storm, consumers, ROWS / 2);
        let mut victim = cluster.client();
        let pid = backend_pid(&mut victim);
        cluster.kill9(pid);
        cluster.wait_until_ready();
        consume(&storm, consumers, ROWS);
    });
}

#[test]
fn consumer_of_settled_ids_reads_each_row_once() {
    let builder = Cluster::builder().fake_clock().conf("max_connections", "300");
    let cluster = builder.conf("max_prepared_transactions", "200").start_with_extension();
    cluster.execute("SELECT segment_create('event')");
    cluster.execute(
        "CREATE TABLE event (id bigint PRIMARY KEY DEFAULT snowflake_next(),
            value bigint UNIQUE DEFAULT segment_next('event'), writer int)",
    );
    let mut consumers = CONSUMERS.map(Consumer::new);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for round in 0..rounds(1, 10) {
        run_storm(&cluster, &mut consumers, seed + round as u64);
        // With transactions still prepared.
        cluster.stop(Stop::Immediate);
        cluster.start_again();
    }
    let mut client = cluster.client();
    for gid in column::<String>(&mut client, "SELECT gid FROM pg_prepared_xacts") {
        execute(&mut client, &format!("COMMIT PREPARED '{gid}'"));
    }
    consumers.iter_mut().for_each(|consumer| consumer.read(&mut client).expect("the server runs"));
    let verdicts = consumers.each_ref().map(|consumer| {
        let rows = ids(&mut client, &format!("SELECT {} FROM event", consumer.column));
        let verdict = settled::judge(&consumer.reads, &rows, &[]);
        println!("{}: {verdict}", consumer.upper);
        let read = consumer.reads.iter().map(|read| read.ids.len()).sum::<usize>();
        (verdict, read == rows.len())
    });
    let [ids, values, (naive, _)] = verdicts;
    for (verdict, is_each_read_once) in [ids, values] {
        verdict.assert_clean("settled reads");
        assert!(is_each_read_once);
    }
    assert!(naive.count(settled::MISSED) > 0, "no transaction has committed after a later id");
    assert_eq!(value::<i64>(&mut client, SETTLED), consumers[0].position);
}
