//! The supply launcher, which starts the supply workers after a start of the server.

use idgen_testkit::Cluster;
use idgen_testkit::segment::draw;
use idgen_testkit::sql::{PATIENCE, column};

use crate::with_segment;

/// The launcher takes the only slot that the refill worker could have.
#[test]
fn launcher_without_a_slot_for_a_worker_leaves_its_own() {
    let builder = Cluster::builder().conf("max_logical_replication_workers", "0");
    // One for the keeper, which has its slot first.
    let server = with_segment(builder.conf("max_worker_processes", "2"), 10);
    server.set_conf("idgen.coordinator", "host=/nowhere");
    server.restart();
    let mut client = server.client();
    let launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen supply launcher'";
    server.wait_for(PATIENCE, "the launcher", || !column::<i32>(&mut client, launcher).is_empty());
    server.wait_for(PATIENCE, "a value", || client.simple_query(&draw("t")).is_ok());
    let log = server.log();
    assert!(log.contains("could not start all supply workers"), "{log}");
}
