//! A value is used only after its refill has committed durably, under every setting.

use idgen_testkit::ids::last;
use idgen_testkit::segment::next;
use idgen_testkit::sql::{execute, ids, value};
use idgen_testkit::{Cluster, rounds};

use crate::refill::wait_for_report;
use crate::{COMMITS_WAIT_FOR_LOCK, HOLD_COMMITS, RELEASE_COMMITS, draw_dry, max_id, singly, with_segment};

#[test]
fn value_is_not_used_before_its_refill_has_committed() {
    let cluster = with_segment(Cluster::builder(), 100);
    cluster.execute(COMMITS_WAIT_FOR_LOCK);
    let mut client = cluster.client();
    let first = ids(&mut client, &singly(10));
    let mut holder = cluster.client();
    execute(&mut holder, HOLD_COMMITS);
    // The worker writes the row and fails before the commit, again and again.
    let (mut drawn, _) = draw_dry(&mut client);
    wait_for_report(&cluster, "t", "canceling statement due to lock timeout");
    let (more, error) = draw_dry(&mut client);
    assert_eq!(more, []);
    assert_eq!(error.detail(), Some("canceling statement due to lock timeout"));
    drawn.splice(0..0, first);
    let durable = max_id(&mut client, "t");
    assert_eq!(drawn, (1..=durable).collect::<Vec<_>>());

    execute(&mut holder, RELEASE_COMMITS);
    assert_eq!(next(&mut client, "t"), durable + 1);
}

/// synchronous_commit is off for the server, the database and the role.
#[test]
fn refill_is_durable_with_synchronous_commit_off() {
    // A long delay keeps unflushed commits in memory until the server is killed.
    let builder = Cluster::builder().conf("wal_writer_delay", "10s").conf("synchronous_commit", "off");
    let cluster = with_segment(builder, 100);
    cluster.execute(
        "ALTER DATABASE postgres SET synchronous_commit = off;
         ALTER ROLE postgres SET synchronous_commit = off",
    );
    for _ in 0..rounds(2, 20) {
        let mut client = cluster.client();
        assert_eq!(value::<String>(&mut client, "SHOW synchronous_commit"), "off");
        execute(&mut client, "BEGIN");
        let seen = ids(&mut client, &singly(1234));
        cluster.kill9_postmaster();
        cluster.start_again();
        let new = next(&mut cluster.client(), "t");
        assert!(new > last(&seen), "{new} after {}", last(&seen));
    }
}
