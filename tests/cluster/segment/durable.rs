//! A value is used only after the refill it comes from has committed durably, whatever is set.

use idgen_testkit::ids::last;
use idgen_testkit::segment::next;
use idgen_testkit::sql::{execute, ids, value};
use idgen_testkit::{Cluster, rounds};

use crate::refill::wait_for_report;
use crate::{COMMITS_CAN_BE_HELD, HOLD_COMMITS, LET_COMMITS_GO, draw_dry, max_id, singly, with_segment};

#[test]
fn no_value_is_used_before_its_refill_has_committed() {
    let cluster = with_segment(Cluster::builder(), 100);
    cluster.execute(COMMITS_CAN_BE_HELD);
    let mut client = cluster.client();
    let first = ids(&mut client, &singly(10));
    let mut holder = cluster.client();
    execute(&mut holder, HOLD_COMMITS);
    // The worker writes the row, and fails before it commits, again and again.
    let (mut drawn, _) = draw_dry(&mut client);
    wait_for_report(&cluster, "t", "canceling statement due to lock timeout");
    let (more, error) = draw_dry(&mut client);
    assert_eq!(more, []);
    assert_eq!(error.detail(), Some("canceling statement due to lock timeout"));
    drawn.splice(0..0, first);
    let durable = max_id(&mut client, "t");
    assert_eq!(drawn, (1..=durable).collect::<Vec<_>>());

    execute(&mut holder, LET_COMMITS_GO);
    assert_eq!(next(&mut client, "t"), durable + 1);
}

/// Somebody who wants speed sets this for the database and the role, and for the server.
#[test]
fn refills_are_durable_where_nothing_else_is() {
    // What is not flushed by a commit is still in memory when the server is killed.
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
