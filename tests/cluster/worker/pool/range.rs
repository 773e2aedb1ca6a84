//! A pool whose range has changed: its holders outside of the range renew no more, so that another pool may have the freed
//! worker ids.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, check, expect_error, value};

use super::{WORKER, coordinator, wait_for_state};
use crate::{POOL, pooled, try_acquire};

fn move_range(coordinator: &Cluster) {
    coordinator.execute("UPDATE idgen.lease_definition SET first_slot = 100");
}

#[test]
fn holder_outside_of_the_new_range_renews_no_more_and_the_check_names_it() {
    let coordinator = coordinator(2, "2 s");
    let mut client = coordinator.client();
    let grant = try_acquire(&mut client, &format!("'{POOL}', ttl => '2 s'")).expect("a grant");
    assert!(check(&mut client, "pools").0);
    move_range(&coordinator);
    let (is_fine, message) = check(&mut client, "pools");
    assert!(!is_fine && message.contains("worker id 0 is outside of the range of its pool \"servers\""), "{message}");
    let renewal = format!("SELECT worker_renew('{POOL}', {}, not_after) FROM idgen.worker_number", grant.token);
    let error = expect_error(&mut client, &renewal, "55000");
    assert_eq!(error.message(), "worker id 0 of pool \"servers\" is outside of the pool's range");
    assert_eq!(error.detail(), Some("The pool was changed, and now has the worker ids 100 to 101."));
    coordinator.wait_for(PATIENCE, "the id times to end", || check(&mut client, "pools").0);
}

#[test]
fn server_outside_of_the_new_range_leases_another_worker_id() {
    let coordinator = coordinator(2, "3 s");
    let server = pooled(&coordinator.conninfo()).start_with_extension();
    wait_for_state(&server, "leased");
    let mut client = server.client();
    assert_eq!(value::<i32>(&mut client, WORKER), 0);
    move_range(&coordinator);
    server.wait_for(PATIENCE, "another worker id", || value::<i32>(&mut client, WORKER) == 100);
}
