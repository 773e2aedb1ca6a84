//! Restarts of the server while the machine keeps running.

use idgen_testkit::lease::{acquire, assert_held, term};
use idgen_testkit::{Cluster, Stop};

use super::{HOUR_US, SECOND_US, TICK_US, assert_free_between, builder, wait_for_walwriter};
use crate::boot_us;

/// A client may not notice the end of its bound session, so the term begins again with the server. An unbound term follows
/// the clock, which has not stopped.
fn assert_terms_after_restart(stop: fn(&Cluster)) {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    for name in ["bound", "bound long"] {
        acquire(&mut client, &format!("'{name}', ttl => '2 s', bind_session => true"));
    }
    // By their rows one ended long ago and lives only by its session, and the other lasts longer.
    cluster.execute(&format!(
        "UPDATE idgen.lease SET ends_us = {} WHERE name = 'bound';
         UPDATE idgen.lease SET ttl_us = {SECOND_US}, ends_us = {} WHERE name = 'bound long'",
        boot_us() - HOUR_US,
        boot_us() + HOUR_US
    ));
    acquire(&mut client, "'unbound', ttl => '1 hour'");
    acquire(&mut client, "'ends', ttl => '1 s'");
    let (unbound, ends) = (term(&mut client, "unbound"), term(&mut client, "ends"));
    assert_held(&mut cluster.client(), "bound");
    drop(client);

    stop(&cluster);
    let before_us = boot_us();
    cluster.start_again();
    let mut client = cluster.client();
    wait_for_walwriter(&cluster);
    let begun_us = boot_us();
    assert_eq!(term(&mut client, "unbound"), unbound);
    assert_held(&mut client, "unbound");
    assert_held(&mut client, "bound long");
    let ttl_us = 2 * SECOND_US;
    assert_free_between(&cluster, "bound", before_us + ttl_us, begun_us + ttl_us + TICK_US);
    assert_free_between(&cluster, "ends", ends.ends_us, ends.ends_us);
    assert!(unbound.ends_us > boot_us(), "the check is too late to prove anything");
}

#[test]
fn bound_terms_begin_again_after_a_fast_restart() {
    assert_terms_after_restart(|cluster| cluster.stop(Stop::Fast));
}

#[test]
fn bound_terms_begin_again_after_a_crash_smoke() {
    assert_terms_after_restart(Cluster::kill9_postmaster);
}
