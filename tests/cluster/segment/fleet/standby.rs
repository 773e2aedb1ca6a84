//! A coordinator with a synchronous standby.

use idgen_testkit::ids::assert_distinct;
use idgen_testkit::sql::PATIENCE;
use idgen_testkit::{Cluster, Stop};

use super::{attached, coordinator, draw, draw_dry, draw_patiently};
use crate::max_id;

/// A grant counts only when the synchronous standby has it, although commits of the coordinator do not wait for it.
#[test]
fn grant_counts_once_the_synchronous_standby_has_it() {
    let primary = coordinator(Cluster::builder().conf("synchronous_commit", "local"));
    let standby = primary.standby_builder().synchronous().start();
    let server = attached(&primary.conninfo(), "10 seconds");
    let mut seen = draw(&server, 100);
    standby.stop(Stop::Fast);
    seen.extend(draw_dry(&server).0);
    primary.kill9_postmaster();
    standby.start_again();
    standby.promote();
    // Without asking the server what it has received.
    standby.execute("SELECT segment_resume('t', 0)");
    seen.extend(draw(&standby, 5000));
    assert_distinct(seen);
}

/// The first request waits in vain for the standby. Its values are a gap, and a retry asks for no others.
#[test]
fn retries_burn_no_values_while_the_synchronous_standby_is_away() {
    let primary = coordinator(Cluster::builder());
    let standby = primary.standby_builder().synchronous().start();
    let server = attached(&primary.conninfo(), "10 seconds");
    let mut seen = draw(&server, 100);
    standby.stop(Stop::Fast);
    seen.extend(draw_dry(&server).0);
    let granted = || max_id(&mut primary.client(), "t");
    let retries = |least: usize| {
        primary.wait_for(2 * PATIENCE, "retries", || {
            // Sessions go on asking.
            draw_dry(&server);
            primary.log().matches("canceling statement due to statement timeout").count() >= least
        });
    };
    retries(1);
    let burned = granted();
    retries(4);
    assert_eq!(granted(), burned);
    standby.start_again();
    let next = draw_patiently(&server, 1000);
    assert_eq!(next[0], burned + 1);
    seen.extend(next);
    assert_distinct(seen);
}
