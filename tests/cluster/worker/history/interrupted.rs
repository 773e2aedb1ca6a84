//! Failovers: the standby that is promoted may lack the last grants and renewals.

use idgen_testkit::Stop;
use idgen_testkit::sql::{execute, expect_error, hint, value};

use super::{acquire, assert_apart, builder, define, release, renew, renewal};

/// As `ANY 1 (a, b)` allows it: one standby has all that was granted, and the other one is promoted.
#[test]
fn a_lagging_standby_that_is_promoted_grants_no_id_time_again_smoke() {
    let primary = builder().start_with_extension();
    define(&primary);
    let (current, laggard) = (primary.standby(), primary.standby());
    primary.set_conf("synchronous_standby_names", "ANY 1 (*)");
    primary.reload();
    let mut client = primary.client();
    let mut first = acquire(&mut client);
    let mut kept = acquire(&mut client);
    laggard.wait_until_replayed(&primary);

    laggard.stop(Stop::Fast);
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    renew(&mut client, &mut kept, "10 s");
    current.wait_until_replayed(&primary);
    primary.stop(Stop::Immediate);
    laggard.start_again();
    laggard.promote();

    let mut client = laggard.client();
    let error = expect_error(&mut client, &renewal(first.token, "10 s"), "55000");
    assert!(error.message().contains("before the history of this coordinator was interrupted"), "{}", error.message());
    assert!(hint(&error).contains("worker_acquire()"));
    expect_error(&mut client, &format!("SELECT worker_confirm('p', {})", kept.token), "55000");
    // An old holder can end its term, and then nothing of its times is granted again.
    release(&mut client, &first);
    let mut anew = [acquire(&mut client), acquire(&mut client), acquire(&mut client)];
    assert!(anew.iter().any(|told| told.worker_id == first.worker_id));
    assert!(anew.iter().any(|told| told.worker_id == second.worker_id));
    for told in &mut anew {
        renew(&mut client, told, "14 s");
    }
    expect_error(&mut client, &renewal(kept.token, "10 s"), "55000");
    let [one, two, three] = &anew;
    assert_apart(&[&first, &kept, &second, one, two, three]);
    let since = "SELECT since > clock_timestamp() - interval '1 min' AND timeline = 2 FROM idgen.worker_history";
    assert!(value::<bool>(&mut client, since));
}

/// A second failover, before the grants after the first one begin.
#[test]
fn two_failovers_in_a_row_grant_no_id_time_again() {
    let primary = builder().start_with_extension();
    define(&primary);
    let mut client = primary.client();
    let first = acquire(&mut client);
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    primary.stop(Stop::Immediate);
    standby.promote();

    let mut client = standby.client();
    release(&mut client, &first);
    let second = acquire(&mut client);
    let laggard = standby.standby();
    laggard.wait_until_replayed(&standby);
    laggard.stop(Stop::Fast);
    release(&mut client, &second);
    // Of this one the laggard knows nothing.
    let mut third = acquire(&mut client);
    renew(&mut client, &mut third, "14 s");
    standby.stop(Stop::Immediate);
    laggard.start_again();
    laggard.promote();

    let mut client = laggard.client();
    release(&mut client, &second);
    let fourth: Vec<_> = (0..4).map(|_| acquire(&mut client)).collect();
    let mut all = vec![&first, &second, &third];
    all.extend(&fourth);
    assert_apart(&all);
}

/// Without an interruption nothing waits: a restart and a crash leave server, timeline, database and directory as they were.
#[test]
fn a_restart_and_a_crash_are_no_interruption() {
    let cluster = builder().start_with_extension();
    define(&cluster);
    let mut told = acquire(&mut cluster.client());
    cluster.restart();
    renew(&mut cluster.client(), &mut told, "10 s");
    cluster.kill9_postmaster();
    cluster.start_again();
    let mut client = cluster.client();
    renew(&mut client, &mut told, "10 s");
    acquire(&mut client);
    assert!(value::<bool>(&mut client, "SELECT since = '-infinity' FROM idgen.worker_history"));
    execute(&mut client, &format!("SELECT worker_confirm('p', {})", told.token));
}
