//! A coordinator with a synchronous standby.

use idgen_testkit::ids::assert_distinct;
use idgen_testkit::{Cluster, Stop};

use super::{attached, coordinator, draw, draw_dry};

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
