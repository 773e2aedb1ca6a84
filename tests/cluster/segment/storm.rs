//! Sessions create segments and draw from more of them than have rings: one value, sets that are read in part, blocks, and
//! in the transaction that creates. Commits are asynchronous, and the server is killed under load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_sim::history::Verdict;
use idgen_sim::history::order::{self, Bound, Draw};
use idgen_testkit::recorder::now;
use idgen_testkit::sql::PATIENCE;
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::{Client, Error, SimpleQueryMessage};

const SESSIONS: usize = 6;
const RINGS: &str = "4";
/// Drawn by all sessions in each round before the server dies.
const DRAWS: usize = 3_000;

/// What sessions have drawn, by segment.
type Seen = HashMap<String, Vec<Draw<i64>>>;

/// The first columns of the rows that a message returns: numbers.
fn numbers(client: &mut Client, sql: &str) -> Result<Vec<i64>, Error> {
    let number = |message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).and_then(|value| value.parse().ok()),
        _ => None,
    };
    Ok(client.simple_query(sql)?.into_iter().filter_map(number).collect())
}

/// Draws until the server dies. `created` are the segments whose creation was committed, as far as this session knows.
fn draw_until_death(mut client: Client, seed: u64, created: &[String], drawn: &AtomicUsize) -> (Seen, Vec<String>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut seen, mut created) = (Seen::new(), created.to_vec());
    loop {
        let is_new = created.is_empty() || rng.u8(..20) == 0;
        let tag =
            if is_new { format!("{seed}-{}", created.len()) } else { created[rng.usize(..created.len())].clone() };
        let count = rng.i64(1..40);
        let draws = match rng.u8(..4) {
            0 => format!("SELECT segment_next_many('{tag}', 2000) LIMIT {count}"),
            1 => format!("SELECT v FROM segment_reserve('{tag}', {count}), generate_series(first_id, last_id) AS v"),
            _ => format!("SELECT segment_next('{tag}') FROM generate_series(1, {count})"),
        };
        let sql = match is_new {
            true => format!("BEGIN; SELECT segment_create('{tag}', step => 10, max_step => 100); {draws}; COMMIT"),
            false => draws,
        };
        let sent = now();
        match numbers(&mut client, &sql) {
            Ok(ids) => {
                drawn.fetch_add(ids.len(), Ordering::Relaxed);
                seen.entry(tag.clone()).or_default().push(Draw { sent, returned: now(), ids });
                created.extend(is_new.then_some(tag));
            }
            Err(error) => {
                let is_death = error.as_db_error().is_none_or(|error| error.severity() == "FATAL");
                assert!(is_death, "{sql}: {error:?}");
                return (seen, created);
            }
        }
    }
}

#[test]
fn no_value_comes_twice_and_no_segment_is_lost() {
    let builder = Cluster::builder().conf("idgen.max_segments", RINGS).conf("synchronous_commit", "off");
    let cluster = builder.conf("wal_writer_delay", "10s").start_with_extension();
    cluster.execute(
        "ALTER DATABASE postgres SET synchronous_commit = off; ALTER ROLE postgres SET synchronous_commit = off",
    );
    let mut created: Vec<String> = Vec::new();
    let (mut all, mut bounds) = (Seen::new(), HashMap::<String, Vec<Bound<i64>>>::new());
    for round in 0..rounds(4, 200) as u64 {
        let drawn = AtomicUsize::new(0);
        // Before the server can die.
        let clients = (0..SESSIONS as u64).map(|session| (session, cluster.client())).collect::<Vec<_>>();
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let work = |(session, client)| {
                let (created, drawn) = (&created, &drawn);
                scope.spawn(move || draw_until_death(client, round * 100 + session, created, drawn))
            };
            let sessions: Vec<_> = clients.into_iter().map(work).collect();
            cluster.wait_for(PATIENCE, "the sessions to have drawn", || drawn.load(Ordering::Relaxed) > DRAWS);
            if round % 2 == 0 {
                cluster.kill9_postmaster()
            } else {
                cluster.stop(Stop::Immediate)
            }
            sessions.into_iter().map(|session| session.join().unwrap()).collect()
        });
        cluster.start_again();
        for (seen, of_session) in outcomes {
            seen.into_iter().for_each(|(tag, draws)| all.entry(tag).or_default().extend(draws));
            created.extend(of_session);
        }
        created.sort_unstable();
        created.dedup();
        let mut client = cluster.client();
        for tag in &created {
            let sent = now();
            let next = numbers(&mut client, &format!("SELECT segment_next('{tag}')"));
            let ids = next.unwrap_or_else(|error| panic!("round {round}, {tag}: {error:?}"));
            all.entry(tag.clone()).or_default().push(Draw { sent, returned: now(), ids });
            let sent = now();
            let bound = numbers(&mut client, &format!("SELECT max_id FROM idgen.segment WHERE tag = '{tag}'"));
            let bound = Bound { sent, bound: bound.expect("the server runs")[0] };
            bounds.entry(tag.clone()).or_default().push(bound);
        }
    }
    let mut verdict = Verdict::default();
    for (tag, draws) in all {
        verdict.merge(order::judge(&draws));
        verdict.merge(order::judge_bounds(&draws, &bounds[&tag]));
    }
    println!("values of segments: {verdict}");
    verdict.assert_clean("segments");
}
