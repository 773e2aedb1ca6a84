//! No id repeats and each session's ids increase, over sessions, databases, spellings and parallel workers.

use std::sync::atomic::{AtomicBool, Ordering};

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::parallel::{run_in_workers, with_workers};
use idgen_testkit::sql::{execute, row, value};
use postgres::{Client, Statement};

/// The number of ids of one statement.
const CHUNK: i32 = 500;

/// Spellings of one layout, with the same worker id.
const SPELLINGS: [&str; 5] = [
    "",
    "'snowflake'",
    "'time:41 worker:10 sequence:12 unit:1ms epoch:2010-11-04T01:42:54.657Z'",
    "'twitter'",
    "'  time:41   worker:10 sequence:12 epoch:1288834974657ms '",
];

/// A session that cycles through every way to draw.
struct Session {
    client: Client,
    ways: Vec<Statement>,
    turn: usize,
}

impl Session {
    fn new(mut client: Client, number: usize) -> Session {
        let mut ways = Vec::new();
        for spelling in SPELLINGS {
            let more = if spelling.is_empty() { String::new() } else { format!(", {spelling}") };
            for sql in [
                format!("SELECT array_agg(snowflake_next({spelling})) FROM generate_series(1, $1::int)"),
                format!("SELECT array_agg(id) FROM snowflake_next_many($1::int{more}) AS id"),
            ] {
                ways.push(client.prepare(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}")));
            }
        }
        // Each session begins with another way, so that all ways run concurrently.
        Session { client, ways, turn: number }
    }

    fn draw(&mut self, received: &mut Vec<i64>) {
        let way = &self.ways[self.turn % self.ways.len()];
        self.turn += 1;
        let chunk: Vec<i64> = self.client.query_one(way, &[&CHUNK]).expect("ids").get(0);
        assert_eq!(chunk.len(), CHUNK as usize);
        received.extend(chunk);
    }
}

const DATABASES: [&str; 2] = ["postgres", "other"];

fn two_databases() -> Cluster {
    let cluster = Cluster::builder().conf("idgen.worker_id", "21").start_with_extension();
    cluster.execute("CREATE DATABASE other");
    execute(&mut cluster.client_in("other"), "CREATE EXTENSION idgen");
    cluster
}

#[test]
fn parallel_workers_and_sessions_repeat_no_id_smoke() {
    let cluster = two_databases();
    let mut client = cluster.client();
    with_workers(&mut client, "big", 200_000);
    let finished = AtomicBool::new(false);
    let (plans, drawn) = std::thread::scope(|scope| {
        let draw = |number: usize| {
            let mut session = Session::new(cluster.client_in(DATABASES[number % 2]), number);
            let mut received = Vec::new();
            while !finished.load(Ordering::Relaxed) {
                session.draw(&mut received);
            }
            assert_increasing(&received);
            received
        };
        let sessions: Vec<_> = (0..4).map(|number| scope.spawn(move || draw(number))).collect();
        let plans: Vec<Vec<String>> = (0..3).map(|n| create_in_parallel(&mut client, n)).collect();
        finished.store(true, Ordering::Relaxed);
        let drawn: Vec<Vec<i64>> = sessions.into_iter().map(|session| session.join().unwrap()).collect();
        (plans, drawn.concat())
    });
    plans.iter().for_each(|plan| assert_drawn_by_workers(plan));

    let mut all = drawn;
    assert!(!all.is_empty());
    for n in 0..3 {
        let stored: Vec<i64> = value(&mut client, &format!("SELECT array_agg(id) FROM t{n}"));
        assert_eq!(stored.len(), 200_000);
        all.extend(stored);
    }
    // One id space: every id has this server's worker id, and the view has one row.
    assert!(all.iter().all(|id| (id >> 12) & 1023 == 21));
    let shown = row(&mut client, "SELECT issued, last_id FROM idgen.stat_snowflake");
    let all = assert_distinct(all);
    assert_eq!((shown.get(0), shown.get(1)), (all.len() as i64, all[all.len() - 1]), "ids of workers are counted");
}

/// Creates table t`n` of ids drawn by parallel workers, and returns the plan.
fn create_in_parallel(client: &mut Client, n: usize) -> Vec<String> {
    let call = ["snowflake_next()", "snowflake_next('snowflake')", "snowflake_next('twitter')"][n];
    run_in_workers(client, &format!("CREATE TABLE t{n} AS SELECT {call} AS id FROM big"))
}

/// The scan below the Gather node computes the ids.
fn assert_drawn_by_workers(plan: &[String]) {
    let line = |text: &str| plan.iter().position(|line| line.contains(text));
    let shown = plan.join("\n");
    let scan = line("Parallel Seq Scan on public.big").unwrap_or_else(|| panic!("{shown}"));
    assert!(line("Gather").is_some_and(|gather| gather < scan), "{shown}");
    assert!(plan[scan + 1].contains("Output: snowflake_next("), "{shown}");
}
