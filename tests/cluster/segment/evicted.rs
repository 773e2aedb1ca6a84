//! More tags than rings: a tag loses its ring to another one.

use idgen_testkit::Cluster;
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, value, wait_until_waiting};

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
    for tag in ["p", "a", "c", "b"] {
        create(&mut client, tag, ", step => 1, max_step => 1");
    }
    // The ring of p comes before that of a, which is then the one that was refilled longest ago. Each has one value.
    for tag in ["p", "a", "c", "p"] {
        next(&mut client, tag);
        let has_value = format!("SELECT remaining = 1 FROM idgen.stat_segment WHERE tag = '{tag}'");
        cluster.wait_for(PATIENCE, "the next refill", || value(&mut observer, &has_value));
    }
    execute(&mut client, COMMITS_WAIT_FOR_LOCK_OF_TAG);
    execute(&mut holder, "SELECT pg_advisory_lock(ascii('c')), pg_advisory_lock(ascii('p'))");
    next(&mut client, "c");
    let worker = wait_until_worker_waits(&cluster, "advisory");
    assert_eq!(["p", "a"].map(|tag| next(&mut client, tag)), [3, 2]);
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
