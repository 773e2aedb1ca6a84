//! Worker ids as a table: without a rectangle of id times, they depend on the wall clock.

use idgen_sim::history::rectangles;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::{Cluster, rounds};
use postgres::{Client, Error};

use crate::storm::{Fault, Storm, repeat};
use crate::worker_ids::{Holder, Told};

/// Worker ids that end by the wall clock, as a table. A holder puts the times of its clock into its ids.
const WORKER_IDS: &str =
    "CREATE SEQUENCE tokens; CREATE TABLE worker (id int PRIMARY KEY, token bigint, expires timestamptz);
    INSERT INTO worker SELECT id, 0, '-infinity' FROM generate_series(1, 8) AS id";

/// One turn of a holder, which gives its worker id back.
fn hold_worker_id(client: &mut Client, told: &Told) -> Result<(), Error> {
    let (from, until) = (epoch_us("expires - interval '100 ms'"), epoch_us("expires"));
    let acquire = format!(
        "UPDATE worker SET token = nextval('tokens'), expires = clock_timestamp() + interval '100 ms'
         WHERE id = (SELECT id FROM worker WHERE expires < clock_timestamp() LIMIT 1 FOR UPDATE SKIP LOCKED)
         RETURNING id, token, {from}, {until}"
    );
    let Some(row) = client.query_opt(&acquire, &[])? else { return Ok(()) };
    let (id, token): (i32, i64) = (row.get(0), row.get(1));
    let mut holder = Holder::new(told, id, token, row.get(2), row.get(3));
    let is_held = "WHERE id = $1 AND token = $2 AND expires > clock_timestamp()";
    let renew =
        format!("UPDATE worker SET expires = clock_timestamp() + interval '100 ms' {is_held} RETURNING {until}");
    let Some(row) = client.query_opt(&renew, &[&id, &token])? else { return Ok(()) };
    holder.renewed(row.get(0));
    let release =
        format!("UPDATE worker SET expires = '-infinity' {is_held} RETURNING {}", epoch_us("clock_timestamp()"));
    let Some(row) = client.query_opt(&release, &[&id, &token])? else { return Ok(()) };
    holder.next_us = row.get(0);
    holder.give_back();
    Ok(())
}

#[test]
fn judge_finds_id_times_twice_of_worker_ids_that_end_by_the_wall_clock() {
    let cluster = Cluster::builder().conf("fsync", "off").fake_clock().start();
    cluster.execute(WORKER_IDS);
    let verdict = |steps: &[Fault]| {
        let (told, storm) = (Told::default(), Storm::new(&cluster));
        let session = |_| {
            let mut session = storm.connect("postgres").expect("the storm has begun");
            while storm.goes_on() {
                hold_worker_id(&mut session.client, &told).expect("a table");
            }
            storm.forget(session.pid);
        };
        storm.run(4, session, || told.count(), rounds(1_000, 20_000), steps);
        rectangles::judge(&told.into_rectangles())
    };
    verdict(&[]).assert_clean("a clock without steps");
    let verdict = verdict(&repeat(&[Fault::Clock(500), Fault::Clock(0)], rounds(20, 200)));
    println!("worker ids that end by the wall clock: {verdict}");
    assert!(verdict.count(rectangles::OVERLAP) > 0);
}
