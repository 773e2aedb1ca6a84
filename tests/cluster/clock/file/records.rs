//! One of the two records is damaged while the server is down: generation continues.

use std::fs;

use idgen_core::clock::record::{RECORD, Record};
use idgen_testkit::high_water::{bytes, file, newest_record};
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{PATIENCE, ids, value};
use idgen_testkit::{Builder, Cluster, Stop};

use super::{assert_after, next, start};

/// The offset of even records. Odd ones are at the start of the file.
pub const OTHER: usize = 8192;
/// The distance of each record's second copy.
const COPY: usize = 4096;

fn both_records(cluster: &Cluster) -> [Option<Record>; 2] {
    let bytes = bytes(cluster);
    [0, OTHER].map(|at| Record::decode(&bytes[at..at + RECORD]))
}

/// The offsets of the newer and the older record.
fn offsets(cluster: &Cluster) -> [usize; 2] {
    let [first, second] = both_records(cluster).map(|record| record.expect("a whole record").turn);
    if first > second { [0, OTHER] } else { [OTHER, 0] }
}

fn flip_bit(cluster: &Cluster, at: usize) {
    let mut bytes = bytes(cluster);
    bytes[at] ^= 0x10;
    fs::write(file(cluster), bytes).unwrap();
}

pub fn flip_both(cluster: &Cluster, at: usize) {
    flip_bit(cluster, at);
    flip_bit(cluster, at + COPY);
}

pub fn truncate(cluster: &Cluster, length: u64) {
    fs::OpenOptions::new().write(true).open(file(cluster)).unwrap().set_len(length).unwrap();
}

/// The default layout with 16 ids a millisecond: at the full rate the time of ids advances even ahead of the clock.
const SIXTEEN: &str = "time:41 worker:10 sequence:4 epoch:1288834974657ms";

fn for_one_record(builder: Builder) -> Cluster {
    let builder = builder.conf("idgen.max_drift", "0").conf("idgen.clock_window", "300ms");
    start(builder.conf("idgen.layout", SIXTEEN))
}

/// Draws ids that only the newer record allows.
fn with_ids_past_the_older_mark(cluster: &Cluster) -> Vec<i64> {
    let mut client = cluster.client();
    let mut seen = vec![next(&mut client)];
    let turn = newest_record(cluster).record.turn;
    cluster.wait_for(PATIENCE, "ids past the mark of the older record", || {
        seen.extend(ids(&mut client, "SELECT snowflake_next_many(600)"));
        let older_ms = both_records(cluster).map(|record| record.map_or(i64::MAX, |record| record.mark_ms));
        let last_ms = (seen.last().unwrap() >> 14) + 1_288_834_974_657;
        newest_record(cluster).record.turn >= turn + 2 && last_ms > older_ms[0].min(older_ms[1]) + 30
    });
    assert_increasing(&seen);
    seen
}

/// Ids continue above everything that either record can have promised, and both records are written again.
fn assert_ids_continue(cluster: &Cluster, seen: &mut Vec<i64>) {
    let mut client = cluster.client();
    let mut after = ids(&mut client, "SELECT snowflake_next_many(1000)");
    let turn = newest_record(cluster).record.turn;
    cluster.wait_for(PATIENCE, "both records to be written", || {
        after.extend(ids(&mut client, "SELECT snowflake_next_many(600)"));
        newest_record(cluster).record.turn >= turn + 2
    });
    assert_after(seen, &after);
    assert_increasing(&after);
    seen.extend(after);
    assert!(!newest_record(cluster).other_is_damaged);
}

/// The server cannot tell which record is damaged, so ids begin a little ahead of the clock.
#[test]
fn damaged_record_repeats_no_id() {
    type Damage = fn(&Cluster, [usize; 2]);
    let cases: [(&str, Damage, bool); 10] = [
        ("newer", |cluster, [newer, _]| flip_bit(cluster, newer + 20), false),
        ("newer, crash", |cluster, [newer, _]| flip_bit(cluster, newer + RECORD - 1), true),
        ("both copies of the newer", |cluster, [newer, _]| flip_both(cluster, newer + 20), false),
        ("both copies of the newer, crash", |cluster, [newer, _]| flip_both(cluster, newer + 20), true),
        ("older", |cluster, [_, older]| flip_bit(cluster, older), false),
        ("older, crash", |cluster, [_, older]| flip_bit(cluster, older + 100), true),
        ("newer, crash, and the clock set back", |cluster, [newer, _]| flip_bit(cluster, newer + 20), true),
        ("older, crash, and the clock set back", |cluster, [_, older]| flip_bit(cluster, older + 20), true),
        ("cut after the first record, crash", |cluster, _| truncate(cluster, RECORD as u64), true),
        ("cut where the second record begins", |cluster, _| truncate(cluster, OTHER as u64), false),
    ];
    for (name, damage, crash) in cases {
        // A new server each time, because ids must not be ahead of the clock at the start.
        let cluster = for_one_record(Cluster::builder().fake_clock());
        // Shown if an assertion fails.
        println!("{name}");
        let mut seen = with_ids_past_the_older_mark(&cluster);
        if crash {
            cluster.kill9_postmaster();
        } else {
            cluster.stop(Stop::Fast);
        }
        damage(&cluster, offsets(&cluster));
        if name.ends_with("set back") {
            cluster.clock().set_offset_ms(-3_600_000);
        }
        cluster.start_again();
        assert_ids_continue(&cluster, &mut seen);
    }
}

/// The mark in the newer record can be far ahead of the clock and of the older record.
#[test]
fn damaged_newer_record_after_a_far_observed_id_repeats_no_id() {
    let cluster = start(Cluster::builder());
    let mut client = cluster.client();
    next(&mut client);
    let far = "snowflake_make(clock_timestamp() + interval '10min', 9, 0)";
    let observed: i64 = value(&mut client, &format!("SELECT id FROM (SELECT {far}) AS m (id), snowflake_observe(id)"));
    let seen = [observed, next(&mut client)];
    assert_increasing(&seen);
    cluster.kill9_postmaster();
    flip_bit(&cluster, offsets(&cluster)[0] + 20);
    cluster.start_again();
    assert_after(&seen, &[next(&mut cluster.client())]);
}
