//! A base backup that is restored into the directory of its origin. Server, timeline, database and directory stay the same.

use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{check, execute, expect_error, value};
use idgen_testkit::{Cluster, Stop};

use tempfile::TempDir;

use super::{acquire, acquire_all, assert_apart, assert_lost, builder, define_pool, release, renew, with_pool};
use crate::{Grant, try_acquire};

const TIMELINE: &str = "SELECT timeline_id FROM pg_control_checkpoint()";

#[test]
fn backup_restored_in_place_grants_no_id_time_again_however_its_recovery_ends() {
    for shuts_down in [false, true] {
        let (cluster, mut client) = with_pool();
        let mut first = acquire(&mut client);
        let backup = cluster.base_backup();
        // The backup lacks everything from here on.
        renew(&mut client, &mut first, "14 s");
        let second = acquire(&mut client);
        cluster.stop(Stop::Immediate);
        cluster.restore_in_place(&backup);
        if shuts_down {
            cluster.recover_and_shut_down();
        }
        cluster.start_again();

        let mut client = cluster.client();
        assert_eq!(value::<i32>(&mut client, TIMELINE), 1);
        release(&mut client, &first);
        let granted = acquire_all(&mut client);
        let before: Vec<_> = [&first, &second].into_iter().chain(&granted).collect();
        assert_apart(&before);
        assert_lost(&mut client, first.token);
        // The next start of the restored server interrupts nothing.
        cluster.restart();
        let mut client = cluster.client();
        let since = "SELECT since::text FROM idgen.worker_history";
        let since_before: String = value(&mut client, since);
        release(&mut client, &granted[0]);
        let mut next = acquire(&mut client);
        renew(&mut client, &mut next, "10 s");
        assert_apart(&[&before[..], &[&next]].concat());
        assert_eq!(value::<String>(&mut client, since), since_before);
    }
}

/// Nothing in the data tells that they are older: only the files do.
#[test]
fn cold_backup_copied_back_grants_no_id_time_again() {
    assert_grants_apart_after(|cluster, backup| cluster.restore_in_place(backup));
}

/// The files are the same, with the content of the backup. Only the standby's start tells.
#[test]
fn standby_switched_back_without_a_promotion_grants_no_id_time_again() {
    assert_grants_apart_after(|cluster, backup| {
        cluster.overwrite_in_place(backup);
        let signal = cluster.write_signal("standby.signal");
        cluster.start_again();
        cluster.stop(Stop::Fast);
        std::fs::remove_file(signal).expect("it was a standby");
    });
}

/// Even the files are the same. The first holder that renews tells.
#[test]
fn backup_written_over_the_same_files_is_found_out_by_a_holder() {
    let (cluster, mut first, backup) = with_cold_backup();
    let mut client = cluster.client();
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    cluster.stop(Stop::Immediate);
    cluster.overwrite_in_place(&backup);
    cluster.start_again();

    let mut client = cluster.client();
    let last = format!("'epoch'::timestamptz + {} * interval '1 microsecond'", first.until_us);
    let renewal = format!("SELECT {} FROM worker_renew('p', {}, {last})", epoch_us("not_after"), first.token);
    assert_eq!(value::<i64>(&mut client, &renewal), first.until_us, "the holder keeps what it was told, and no more");
    let error = expect_error(&mut client, &renewal, "55000");
    assert!(error.message().starts_with("no worker id of pool \"p\" is held under token"), "{}", error.message());
    let [third, fourth, fifth, sixth] = acquire_all(&mut client);
    assert_apart(&[&first, &second, &third, &fourth, &fifth, &sixth]);
    // Once a start: no holder ends the history again and again.
    let since = "SELECT since::text FROM idgen.worker_history";
    let since_before: String = value(&mut client, since);
    let later = format!("SELECT worker_renew('p', {}, now() + interval '1 day')", third.token);
    let error = expect_error(&mut client, &later, "55000");
    assert!(error.message().contains("was renewed by another holder of its token"), "{}", error.message());
    assert_eq!(value::<String>(&mut client, since), since_before);
}

/// No backup can have replaced the grants of this start. So a role without privileges ends nobody's lease by its own.
#[test]
fn later_end_of_a_term_of_this_start_proves_no_loss() {
    let cluster = builder().start_with_extension();
    define_pool(&cluster);
    cluster.execute("CREATE ROLE nobody LOGIN; SELECT worker_pool_define('other', count => 4, ttl => '1 hour')");
    let mut keeper = cluster.client();
    let mut kept = acquire(&mut keeper);
    let mut nobody = cluster.client_as("postgres", "nobody");
    let grant = try_acquire(&mut nobody, "'other', NULL, '1 hour'").expect("a grant");
    let until = format!("'epoch'::timestamptz + {} * interval '1 microsecond'", grant.until_us + 1);
    for claim in [until.as_str(), "timestamptz '9999-01-01'"] {
        let renewal = format!("SELECT worker_renew('other', {}, {claim})", grant.token);
        let error = expect_error(&mut nobody, &renewal, "55000");
        assert!(error.message().contains("was renewed by another holder of its token"), "{}", error.message());
    }
    renew(&mut keeper, &mut kept, "10 s");
    assert!(value::<bool>(&mut keeper, "SELECT since = '-infinity' FROM idgen.worker_history"));
    assert!(check(&mut keeper, "history").0);
}

/// A running coordinator, its first grant, and a cold backup with that.
fn with_cold_backup() -> (Cluster, Grant, TempDir) {
    let (cluster, mut client) = with_pool();
    let first = acquire(&mut client);
    drop(client);
    cluster.stop(Stop::Fast);
    let backup = cluster.cold_backup();
    cluster.start_again();
    (cluster, first, backup)
}

/// Restores a cold backup, which lacks a renewal and a grant.
fn assert_grants_apart_after(restore: impl Fn(&Cluster, &TempDir)) {
    let (cluster, mut first, backup) = with_cold_backup();
    let mut client = cluster.client();
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    cluster.stop(Stop::Immediate);
    restore(&cluster, &backup);
    cluster.start_again();

    let mut client = cluster.client();
    assert_eq!(value::<i32>(&mut client, TIMELINE), 1);
    assert_lost(&mut client, first.token);
    let granted = acquire_all(&mut client);
    assert_apart(&[&first, &second].into_iter().chain(&granted).collect::<Vec<_>>());
}

/// Their rows name the directory, and a digest of the label of a base backup.
#[test]
fn rows_of_an_earlier_release_end_the_history_only_if_the_server_has_followed_other_wal() {
    for is_restored in [false, true] {
        let (cluster, mut client) = with_pool();
        let mut first = acquire(&mut client);
        execute(&mut client, "UPDATE idgen.worker_history SET identity = split_part(identity, ' ', 1) || ' -'");
        let backup = cluster.base_backup();
        cluster.stop(Stop::Fast);
        if is_restored {
            cluster.restore_in_place(&backup);
        }
        cluster.start_again();
        let mut client = cluster.client();
        match is_restored {
            true => assert_lost(&mut client, first.token),
            false => renew(&mut client, &mut first, "10 s"),
        }
        acquire(&mut client);
        let is_updated = "SELECT (since > '-infinity') = $1 AND identity LIKE '% %/%' FROM idgen.worker_history";
        assert!(client.query_one(is_updated, &[&is_restored]).expect("a row").get::<_, bool>(0));
    }
}
