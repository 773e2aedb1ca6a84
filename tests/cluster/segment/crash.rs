//! Crashes: no value that a client has seen is issued again, committed or not, and only values in the ring are lost. A value
//! is used only after its refill has committed.

use idgen_testkit::ids::{assert_increasing, last};
use idgen_testkit::segment::next;
use idgen_testkit::sql::{backend_pid, execute, ids};
use idgen_testkit::{Cluster, Stop};

use crate::refill::{wait_for_report, wait_until_no_worker, wait_until_worker_waits};
use crate::{COMMITS_WAIT_FOR_LOCK, HOLD_COMMITS, RELEASE_COMMITS, draw_dry, max_id, remaining, singly, with_segment};

#[derive(Clone, Copy, Debug)]
enum Death {
    Immediate,
    Postmaster,
    Backend,
}

fn crash(cluster: &Cluster, death: Death, backend: i32) {
    match death {
        Death::Immediate => cluster.restart_by(Stop::Immediate),
        Death::Postmaster => cluster.kill9_and_restart(),
        Death::Backend => {
            cluster.kill9(backend);
            cluster.wait_until_ready();
        }
    }
}

/// The values are of an open transaction.
#[test]
fn gap_after_a_crash_is_what_was_in_the_ring() {
    let cluster = with_segment(Cluster::builder(), 1000);
    for death in [Death::Immediate, Death::Postmaster, Death::Backend] {
        let mut client = cluster.client();
        let backend = backend_pid(&mut client);
        execute(&mut client, "BEGIN");
        let seen = ids(&mut client, &singly(2300));
        wait_until_no_worker(&cluster, "postgres");
        let left = remaining(&mut cluster.client());
        // Between half a range, below which a refill starts, and two ranges.
        assert!((500..=2000).contains(&left), "{left} left");
        assert_eq!(max_id(&mut cluster.client(), "t"), last(&seen) + left);
        crash(&cluster, death, backend);
        assert_eq!(next(&mut cluster.client(), "t"), last(&seen) + left + 1, "{death:?}");
    }
}

/// The progress of a refill when its worker is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// It is about to read the row.
    Begun,
    /// It has written the row and is about to commit.
    Written,
    /// It has committed locally and waits for a standby, which may or may not have the commit.
    Committed,
}

/// Blocks the next refill at this moment and kills its worker. Returns the last value of the current range, which was drawn.
fn kill_worker_in_refill(cluster: &Cluster, moment: Moment) -> i64 {
    const LAST: i64 = 3;
    let mut client = cluster.client();
    execute(&mut client, "BEGIN");
    let mut seen = vec![next(&mut client, "t")];
    let left = remaining(&mut client);
    seen.extend(ids(&mut client, &singly(left - LAST)));
    let mut holder = cluster.client();
    let event = match moment {
        Moment::Begun => {
            execute(&mut holder, "BEGIN; LOCK TABLE idgen.segment IN EXCLUSIVE MODE");
            "relation"
        }
        Moment::Written => {
            execute(&mut holder, HOLD_COMMITS);
            "advisory"
        }
        Moment::Committed => {
            cluster.reload_with("synchronous_standby_names", "absent");
            "SyncRep"
        }
    };
    // Drawing the last value of the range requests the next range.
    seen.extend(ids(&mut client, &singly(LAST)));
    assert_increasing(&seen);
    assert_eq!(remaining(&mut client), 0);
    cluster.kill9(wait_until_worker_waits(cluster, event));
    cluster.wait_until_ready();
    cluster.reload_with("synchronous_standby_names", "");
    last(&seen)
}

#[test]
fn worker_killed_during_a_refill_repeats_no_value() {
    const STEP: i64 = 100;
    // Only the last value of a range requests a refill.
    let cluster = with_segment(Cluster::builder().conf("idgen.segment_low_water", "0"), STEP);
    cluster.execute(COMMITS_WAIT_FOR_LOCK);
    for (moment, lost) in [(Moment::Begun, 0), (Moment::Written, 0), (Moment::Committed, STEP)] {
        let seen = kill_worker_in_refill(&cluster, moment);
        assert_eq!(next(&mut cluster.client(), "t"), seen + lost + 1, "{moment:?}");
    }
}

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
