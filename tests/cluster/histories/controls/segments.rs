//! Segments as a table: each session takes the next ten values by raising `max_id`.

use idgen_sim::history::Verdict;
use idgen_sim::history::order::{self, Draw};
use idgen_testkit::recorder::{Draws, now};
use idgen_testkit::{Builder, Cluster, rounds};
use postgres::{Client, Error};

use crate::storm::{Fault, Storm, repeat};

const STEP: i64 = 10;

/// Sessions draw from a segment that ends at `max_id`, while faults happen.
fn drawn(
    builder: Builder,
    draw: impl Fn(&mut Client, &Draws<i64>) -> Result<(), Error> + Sync,
    wanted: usize,
    faults: &[Fault],
) -> Verdict {
    let cluster = builder.start();
    let create = "CREATE TABLE segment (max_id bigint NOT NULL); INSERT INTO segment VALUES (0)";
    cluster.execute(&format!("SET synchronous_commit = on; {create}"));
    let (draws, storm) = (Draws::default(), Storm::new(&cluster));
    let session = |_| {
        while let Some(mut session) = storm.connect("postgres") {
            while storm.goes_on() && draw(&mut session.client, &draws).is_ok() {}
            storm.forget(session.pid);
        }
    };
    storm.run(4, session, || draws.count(), wanted, faults);
    order::judge(&draws.into_draws())
}

/// The row is locked from the reading to the commit.
fn locked(client: &mut Client, draws: &Draws<i64>) -> Result<(), Error> {
    let next = format!("UPDATE segment SET max_id = max_id + {STEP} RETURNING max_id");
    let values = format!("WITH next AS ({next}) SELECT generate_series(max_id - {STEP} + 1, max_id) FROM next");
    draws.draw(client, &values, |row| [row.get(0)])
}

/// The program reads `max_id`, and writes the sum.
fn read_before(client: &mut Client, draws: &Draws<i64>) -> Result<(), Error> {
    let sent = now();
    let max_id: i64 = client.query_one("SELECT max_id FROM segment", &[])?.get(0);
    client.execute("UPDATE segment SET max_id = $1", &[&(max_id + STEP)])?;
    draws.add(Draw { sent, returned: now(), ids: (max_id + 1..=max_id + STEP).collect() });
    Ok(())
}

#[test]
fn judge_finds_values_twice_of_a_segment_that_is_read_without_a_lock() {
    let builder = || Cluster::builder().conf("fsync", "off");
    let wanted = rounds(5_000, 100_000);
    drawn(builder(), locked, wanted, &[]).assert_clean("a row that is locked");
    let verdict = drawn(builder(), read_before, wanted, &[]);
    println!("a segment without a lock: {verdict}");
    assert!(verdict.count(order::TWICE) > 0);
}

/// The values are used before `max_id` is durable.
#[test]
fn judge_finds_values_twice_of_a_segment_that_commits_asynchronously() {
    let builder = || Cluster::builder().conf("wal_writer_delay", "10s");
    let (wanted, kills) = (rounds(2_000, 20_000), repeat(&[Fault::KillPostmaster], rounds(3, 10)));
    drawn(builder(), locked, wanted, &kills).assert_clean("commits that are durable");
    let verdict = drawn(builder().conf("synchronous_commit", "off"), locked, wanted, &kills);
    println!("a segment with asynchronous commits: {verdict}");
    assert!(verdict.count(order::TWICE) > 0);
}
