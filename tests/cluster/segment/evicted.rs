//! More tags than rings: a tag loses its ring to another one.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, value, wait_until_waiting};
use idgen_testkit::{Cluster, rounds};

use crate::refill::wait_until_worker_waits;

/// Makes the commits of refills wait for an advisory lock of their tag.
const COMMITS_WAIT_FOR_LOCK_OF_TAG: &str = "
    CREATE FUNCTION await_permission() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0
        AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(ascii(NEW.tag)); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER before_commit AFTER UPDATE ON idgen.segment DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION await_permission();";

/// While the worker serves p, it is to serve a next. Then b takes the ring of a, and waits for a value.
#[test]
fn demand_of_a_tag_that_takes_a_ring_is_served() {
    let builder = Cluster::builder().conf("idgen.max_segments", "3").conf("idgen.segment_low_water", "0");
    let cluster = builder.start_with_extension();
    let [mut client, mut observer, mut holder] = [(); 3].map(|()| cluster.client());
    for tag in ["x", "a", "c", "p", "b"] {
        create(&mut client, tag, ", step => 1, max_step => 1");
    }
    // p takes the ring of x, which comes before that of a, and a is the first to be asked for room. Each has one value.
    for tag in ["x", "a", "c", "p"] {
        next(&mut client, tag);
        let has_value = format!("SELECT remaining = 1 FROM idgen.stat_segment WHERE tag = '{tag}'");
        cluster.wait_for(PATIENCE, "the next refill", || value(&mut observer, &has_value));
    }
    execute(&mut client, COMMITS_WAIT_FOR_LOCK_OF_TAG);
    execute(&mut holder, "SELECT pg_advisory_lock(ascii('c')), pg_advisory_lock(ascii('p'))");
    next(&mut client, "c");
    let worker = wait_until_worker_waits(&cluster, "advisory");
    assert_eq!(["p", "a"].map(|tag| next(&mut client, tag)), [2, 2]);
    execute(&mut holder, "SELECT pg_advisory_unlock(ascii('c'))");
    let awaits_p =
        format!("SELECT count(*) = 1 FROM pg_locks WHERE pid = {worker} AND NOT granted AND objid::int = ascii('p')");
    cluster.wait_for(PATIENCE, "the refill of p", || value(&mut observer, &awaits_p));
    let pid = backend_pid(&mut client);
    std::thread::scope(|scope| {
        let drawn = scope.spawn(|| next(&mut client, "b"));
        wait_until_waiting(&cluster, pid);
        let with_rings: Vec<String> = column(&mut observer, "SELECT tag FROM idgen.stat_segment ORDER BY tag");
        assert_eq!(with_rings, ["b", "c", "p"]);
        execute(&mut holder, "SELECT pg_advisory_unlock(ascii('p'))");
        assert_eq!(drawn.join().expect("it is served"), 1);
    });
}

/// What the tag had left when it lost its ring belongs to its old row.
#[test]
fn changed_tag_without_a_ring_draws_by_its_new_row() {
    let builder = Cluster::builder().conf("idgen.max_segments", "1").conf("max_prepared_transactions", "1");
    let cluster = builder.start_with_extension();
    let [mut client, mut changer] = [cluster.client(), cluster.client()];
    ["t", "other"].iter().for_each(|tag| create(&mut client, tag, ""));
    for (change, first) in [
        ("SELECT segment_alter('t', max_id => 5000)", 5001),
        ("BEGIN; SELECT segment_alter('t', max_id => 10000); PREPARE TRANSACTION 'x'; COMMIT PREPARED 'x'", 10_001),
        ("SELECT segment_drop('t'), segment_create('t', start => 20)", 20),
    ] {
        next(&mut client, "t");
        let before = next(&mut client, "t");
        next(&mut client, "other");
        assert_eq!(next(&mut client, "t"), before + 1, "kept");
        next(&mut client, "other");
        for statement in change.split("; ") {
            execute(&mut changer, statement);
        }
        assert_eq!(next(&mut client, "t"), first, "{change}");
    }
}

const TAGS: usize = 10;

/// Draws from all tags in turn until the server ends: one by one, by sets, and by sets that are read in part. Returns what it
/// has seen of each tag.
fn draw_until_crash(cluster: &Cluster, session: usize, calls: &AtomicUsize) -> [Vec<i64>; TAGS] {
    let mut client = cluster.client();
    let mut seen: [Vec<i64>; TAGS] = Default::default();
    for n in session.. {
        let tag = n * 7 % TAGS;
        let draw = [
            "segment_next('t{tag}')",
            "segment_next_many('t{tag}', 20)",
            "segment_next_many('t{tag}', 100000) LIMIT 3",
        ];
        let sql = format!("SELECT {}", draw[n % draw.len()].replace("{tag}", &tag.to_string()));
        let Ok(rows) = client.query(&sql, &[]) else { break };
        seen[tag].extend(rows.iter().map(|row| row.get::<_, i64>(0)));
        calls.fetch_add(1, Relaxed);
    }
    seen
}

#[test]
fn crash_with_more_tags_than_rings_repeats_no_value() {
    let builder = Cluster::builder().conf("idgen.max_segments", "3").conf("synchronous_commit", "off");
    let cluster = builder.start_with_extension();
    (0..TAGS).for_each(|tag| create(&mut cluster.client(), &format!("t{tag}"), ", step => 50"));
    let mut seen: [Vec<i64>; TAGS] = Default::default();
    for _ in 0..rounds(2, 20) {
        let calls = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (cluster, calls) = (&cluster, &calls);
            let sessions = [0, 1, 2, 3].map(|n| scope.spawn(move || draw_until_crash(cluster, n, calls)));
            cluster.wait_for(PATIENCE, "many calls", || calls.load(Relaxed) > 3000);
            cluster.kill9_postmaster();
            for session in sessions {
                for (tag, values) in session.join().unwrap().into_iter().enumerate() {
                    assert_increasing(&values);
                    seen[tag].extend(values);
                }
            }
        });
        cluster.start_again();
    }
    seen.into_iter().for_each(|values| drop(assert_distinct(values)));
}
