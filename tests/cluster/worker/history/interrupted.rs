//! Failovers: the promoted standby may lack the last grants and renewals.

use std::time::Duration;

use idgen_testkit::Stop;
use idgen_testkit::script::play;
use idgen_testkit::sql::{check, execute, expect_error, hint, value};

use super::{
    acquire, acquire_all, assert_apart, assert_lost, assert_pool_is_apart_from, builder, define_pool, release, renew,
    renewal, with_pool,
};
use crate::try_acquire;

const PATIENCE: Duration = Duration::from_secs(10);

/// With `ANY 1 (a, b)` one standby has every grant, and the other one can be promoted.
#[test]
fn promoted_lagging_standby_grants_no_id_time_again_smoke() {
    let primary = builder().start_with_extension();
    define_pool(&primary);
    let (current, laggard) = (primary.standby(), primary.standby());
    primary.reload_with("synchronous_standby_names", "ANY 1 (*)");
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
    let error = expect_error(&mut client, &format!("SELECT worker_confirm('p', {})", kept.token), "55000");
    assert!(error.detail().is_some_and(|detail| detail.contains("history of this coordinator was interrupted")));
    assert!(hint(&error).contains("worker_acquire()"));
    // A holder from before can release its worker id, and its times are not granted again.
    release(&mut client, &first);
    assert_lost(&mut client, kept.token);
    let mut regranted = [acquire(&mut client), acquire(&mut client), acquire(&mut client)];
    assert!(regranted.iter().any(|grant| grant.worker_id == first.worker_id));
    assert!(regranted.iter().any(|grant| grant.worker_id == second.worker_id));
    for grant in &mut regranted {
        renew(&mut client, grant, "14 s");
    }
    expect_error(&mut client, &renewal(kept.token, "10 s"), "55000");
    let [one, two, three] = &regranted;
    assert_apart(&[&first, &kept, &second, one, two, three]);
    let since =
        "SELECT since > clock_timestamp() - interval '1 min' AND identity LIKE '%/2/%' FROM idgen.worker_history";
    assert!(value::<bool>(&mut client, since));
}

/// The second failover comes before the grants after the first one begin.
#[test]
fn second_failover_in_a_row_grants_no_id_time_again() {
    let (primary, mut client) = with_pool();
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
    // The laggard does not have this grant.
    let mut third = acquire(&mut client);
    renew(&mut client, &mut third, "14 s");
    standby.stop(Stop::Immediate);
    laggard.start_again();
    laggard.promote();

    let mut client = laggard.client();
    release(&mut client, &second);
    assert_pool_is_apart_from(&[&first, &second, &third], &mut client);
}

/// A restart and a crash change neither server, timeline, database nor directory, so grants do not wait.
#[test]
fn restart_and_crash_do_not_interrupt_the_history() {
    let (cluster, mut client) = with_pool();
    let mut grant = acquire(&mut client);
    cluster.restart();
    renew(&mut cluster.client(), &mut grant, "10 s");
    cluster.kill9_and_restart();
    let mut client = cluster.client();
    renew(&mut client, &mut grant, "10 s");
    acquire(&mut client);
    assert!(value::<bool>(&mut client, "SELECT since = '-infinity' FROM idgen.worker_history"));
    execute(&mut client, &format!("SELECT worker_confirm('p', {})", grant.token));
}

/// The standby lacks the first grant, or the definition of the pool too, which the operator then repeats.
#[test]
fn standby_without_the_first_grant_grants_no_id_time_again() {
    for is_defined in [true, false] {
        let primary = builder().start_with_extension();
        if is_defined {
            define_pool(&primary);
        }
        let standby = primary.standby();
        standby.wait_until_replayed(&primary);
        standby.stop(Stop::Fast);
        if !is_defined {
            define_pool(&primary);
        }
        let mut client = primary.client();
        let mut first = acquire(&mut client);
        renew(&mut client, &mut first, "14 s");
        primary.stop(Stop::Immediate);
        standby.start_again();
        standby.promote();
        if !is_defined {
            define_pool(&standby);
        }
        let mut client = standby.client();
        assert_pool_is_apart_from(&[&first], &mut client);
    }
}

/// Renewals under a raised limit are replicated, and the one that uses it is lost with the limit.
#[test]
fn renewal_under_a_raised_limit_is_not_granted_again_after_a_failover() {
    for raises_lead in [true, false] {
        let (primary, mut client) = with_pool();
        let mut first = acquire(&mut client);
        let standby = primary.standby();
        match raises_lead {
            true => {
                primary.reload_with("idgen.worker_max_lead", "40s");
                let is_raised =
                    || value::<bool>(&mut client, "SELECT current_setting('idgen.worker_max_lead') = '40s'");
                primary.wait_for(PATIENCE, "the reload", is_raised);
            }
            false => execute(&mut client, "SELECT worker_pool_alter('p', ttl => '50 s')"),
        }
        renew(&mut client, &mut first, "10 s");
        standby.wait_until_replayed(&primary);
        standby.stop(Stop::Fast);
        renew(&mut client, &mut first, "50 s");
        primary.stop(Stop::Immediate);
        standby.start_again();
        standby.promote();
        let mut client = standby.client();
        execute(&mut client, "SELECT worker_pool_alter('p', ttl => '10 s')");
        release(&mut client, &first);
        assert_pool_is_apart_from(&[&first], &mut client);
    }
}

/// Those whose id times are over come first. The others are not waited for: all begin after the grants that may be lost.
#[test]
fn promoted_coordinator_grants_all_worker_ids_again() {
    let (primary, mut client) = with_pool();
    let granted = acquire_all(&mut client);
    let over = "UPDATE idgen.worker_id SET not_before = now() - interval '2 min', not_after = now() - interval '1 min'
                WHERE worker_id < 2";
    execute(&mut client, over);
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    primary.kill9_postmaster();
    standby.promote();
    let mut client = standby.client();
    let again = acquire_all(&mut client);
    assert_eq!(again.clone().map(|grant| grant.worker_id), [0, 1, 2, 3]);
    assert_apart(&granted.iter().chain(&again).collect::<Vec<_>>());
    granted.iter().for_each(|grant| assert_lost(&mut client, grant.token));
}

/// Until the grants that may be lost are over.
#[test]
fn check_fails_while_an_interruption_holds_back_grants() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT worker_pool_define('p', count => 4, ttl => '1 s')");
    cluster.reload_with("idgen.worker_max_lead", "1s");
    let mut client = cluster.client();
    try_acquire(&mut client, "'p'").expect("a grant");
    assert!(check(&mut client, "history").0);
    let until: String = value(
        &mut client,
        "SELECT to_char(worker_begin_history() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
    );
    let (is_fine, message) = check(&mut client, "history");
    assert!(!is_fine && message.contains(&until), "{message} does not name {until}");
    cluster.wait_for(PATIENCE, "the end of lost grants", || check(&mut client, "history").0);
}

/// It has written the only row of the history, which the next one needs.
#[test]
fn definition_waits_for_an_open_transaction_with_the_first_one() {
    for end in ["COMMIT", "ROLLBACK"] {
        play(
            &builder().start_with_extension(),
            &format!(
                "definer: BEGIN; SELECT worker_pool_define('mine'), worker_pool_define('another')
                 other waits for transactionid: SELECT worker_pool_define('p')
                 definer: {end}
                 other ends
                 other: SELECT token FROM worker_acquire('p') -> $token
                 definer: SELECT worker_renew('p', $token, not_after) IS NOT NULL FROM idgen.worker_id WHERE token = $token -> t
                 definer: SELECT worker_id FROM worker_acquire('p') -> 1
                 definer: SELECT since FROM idgen.worker_history -> -infinity"
            ),
        );
    }
}

/// Later definitions, and grants, need no change of that row.
#[test]
fn open_transaction_with_a_definition_blocks_no_grant() {
    for end in ["COMMIT", "ROLLBACK", "PREPARE TRANSACTION 'another'"] {
        let builder = builder().conf("lock_timeout", "2s").conf("max_prepared_transactions", "1");
        let (cluster, [mut definer]) = builder.start_with_clients();
        execute(&mut definer, "SELECT worker_pool_define('mine')");
        execute(&mut definer, "BEGIN; SELECT worker_pool_define('another'), worker_pool_alter('mine', count => 2)");
        define_pool(&cluster);
        let mut grant = acquire(&mut cluster.client());
        execute(&mut definer, end);
        renew(&mut cluster.client(), &mut grant, "10 s");
        acquire(&mut cluster.client());
        assert!(value::<bool>(&mut cluster.client(), "SELECT since = '-infinity' FROM idgen.worker_history"));
    }
}

#[test]
fn transaction_that_defines_a_pool_writes_the_first_row() {
    let (_cluster, [mut client]) = builder().start_with_clients();
    let rows = "SELECT count(*) FILTER (WHERE since = '-infinity') FROM idgen.worker_history";
    execute(&mut client, "SELECT lease_define('lease'); BEGIN; SELECT worker_pool_define('mine'); ROLLBACK");
    assert_eq!(value::<i64>(&mut client, rows), 0);
    execute(
        &mut client,
        "BEGIN; SELECT worker_pool_define('p'), worker_pool_define('q'); SET TRANSACTION READ ONLY; COMMIT",
    );
    assert_eq!(value::<i64>(&mut client, rows), 1);
    execute(&mut client, "BEGIN; SELECT worker_pool_define('r'); DROP EXTENSION idgen; COMMIT");
}
