//! WAL that `pg_resetwal` removes, or that a crash of the machine loses without `fsync`. Only files outside of WAL tell.

use std::fs;

use idgen_testkit::lease::{assert_held, take_if_free};
use idgen_testkit::sql::{PATIENCE, check, execute, expect_error, hint, value};
use idgen_testkit::{Cluster, Stop};

use super::{acquire, acquire_all, assert_apart, assert_lost, builder, define_pool, renew};

/// As a boot of the machine without `fsync` leaves it: another boot id than the last start has recorded.
fn reboot(cluster: &Cluster) {
    let path = cluster.data_dir().join("idgen_place");
    let text = fs::read_to_string(&path).expect("the server has started");
    let (before, _) = text.split_once("boot ").expect("the server does not sync its files");
    fs::write(&path, format!("{before}boot another\n")).expect("the data directory is writable");
}

#[test]
fn loss_of_wal_repeats_no_id_time_and_no_lease_until_the_operator_has_dealt_with_it_smoke() {
    assert_repeats_nothing_after("on", Cluster::reset_wal);
    assert_repeats_nothing_after("off", reboot);
}

fn assert_repeats_nothing_after(fsync: &str, lose: fn(&Cluster)) {
    let cluster = builder().conf("fsync", fsync).start_with_extension();
    define_pool(&cluster);
    let mut client = cluster.client();
    let mut first = acquire(&mut client);
    // Their last renewals are lost: by their rows they are over.
    execute(&mut client, "SELECT lease_acquire('known', ttl => '1 hour')");
    execute(&mut client, "UPDATE idgen.lease SET ends_us = 0 WHERE name = 'known'");
    execute(&mut client, "CREATE TABLE t (id bigint); CHECKPOINT");
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    execute(&mut client, "SELECT lease_acquire('forgotten', ttl => '1 hour')");
    let seen: i64 = value(&mut client, "SELECT snowflake_next()");
    cluster.stop(Stop::Immediate);
    lose(&cluster);
    cluster.start_again();

    let mut client = cluster.client();
    assert_lost(&mut client, first.token);
    let [third, fourth, fifth, sixth] = acquire_all(&mut client);
    assert_apart(&[&first, &second, &third, &fourth, &fifth, &sixth]);
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > seen);
    let state = "SELECT state FROM idgen.leases WHERE name = 'known'";
    assert_eq!(value::<String>(&mut client, state), "held");
    let error = expect_error(&mut client, "SELECT * FROM lease_try_acquire('forgotten')", "55000");
    assert_eq!(error.message(), "cannot acquire a lease: WAL of this server was reset or lost");
    assert!(hint(&error).contains("remove the file \"idgen_wal_lost\""), "{error:?}");
    for restarts in [true, false] {
        let (is_fine, message) = check(&mut cluster.client(), "wal");
        assert!(!is_fine && message.contains("segments may hand out values again"), "{message}");
        if restarts {
            cluster.restart();
        }
    }
    // Nor does a standby forget it.
    let standby = cluster.standby();
    standby.promote();
    expect_error(&mut standby.client(), "SELECT * FROM lease_try_acquire('forgotten')", "55000");
    // The next starts interrupt nothing more.
    let mut client = cluster.client();
    execute(&mut client, &format!("SELECT worker_confirm('p', {})", fourth.token));

    fs::remove_file(cluster.data_dir().join("idgen_wal_lost")).expect("the server wrote it");
    assert!(check(&mut client, "wal").0);
    assert!(take_if_free(&mut client, "next").is_some());
    assert_held(&mut client, "known");
}

/// A full disk, or whatever else keeps a file from being written, must not turn the crash of a backend into an outage.
#[test]
fn crash_of_a_backend_ends_no_server_that_cannot_record_its_checkpoint() {
    let (cluster, [mut client, mut victim]) = builder().start_with_clients();
    execute(&mut client, "CREATE TABLE t (id bigint); CHECKPOINT");
    let path = cluster.data_dir().join("idgen_place");
    let before = fs::read_to_string(&path).expect("the server has started");
    let obstacle = path.with_extension("tmp");
    fs::create_dir(&obstacle).expect("the data directory is writable");
    cluster.kill9(value(&mut victim, "SELECT pg_backend_pid()"));
    cluster.wait_until_ready();
    assert!(cluster.log().contains("could not update \"idgen_place\""), "{}", cluster.log());
    assert_eq!(fs::read_to_string(&path).expect("it is still there"), before);

    // Nor does a later start find a loss in error.
    cluster.restart_by(Stop::Immediate);
    assert!(check(&mut cluster.client(), "wal").0);
    fs::remove_dir(&obstacle).expect("an empty directory");
    cluster.restart();
    assert!(check(&mut cluster.client(), "wal").0);
    assert_ne!(fs::read_to_string(&path).expect("a clean stop has written it"), before);
}

/// Restarts, crashes and switches of WAL are no loss; nor is what a standby or a copy follows.
#[test]
fn ordinary_starts_lose_no_wal() {
    let archiving = builder().conf("archive_mode", "on").conf("archive_command", "true");
    let cluster = archiving.conf("fsync", "off").start_with_extension();
    let assert_complete = |cluster: &Cluster| assert!(check(&mut cluster.client(), "wal").0);
    assert_complete(&cluster);
    for how in [Stop::Fast, Stop::Immediate] {
        cluster.restart_by(how);
        assert_complete(&cluster);
    }
    // An archiving server switches WAL before the checkpoint of its stop, which is then the first record of a segment, as
    // after pg_resetwal. Without preload it is not recorded.
    for preload in ["", "idgen"] {
        cluster.stop(Stop::Fast);
        cluster.set_conf("shared_preload_libraries", preload);
        cluster.start_again();
    }
    assert_complete(&cluster);
    let standby = cluster.standby();
    standby.promote();
    assert_complete(&standby);
    standby.restart_by(Stop::Immediate);
    assert_complete(&standby);
    assert_complete(&cluster.copy());
    reboot(&cluster);
    cluster.restart();
    assert_complete(&cluster);
}

/// The start has recorded no boot, because files were synced then.
#[test]
fn crash_of_the_machine_after_a_reload_that_turned_fsync_off_is_a_loss_of_wal() {
    let cluster = builder().start_with_extension();
    let recorded = || fs::read_to_string(cluster.data_dir().join("idgen_place")).expect("the server has started");
    assert!(!recorded().contains("boot "), "{}", recorded());
    cluster.reload_with("fsync", "off");
    cluster.wait_for(PATIENCE, "the keeper to record the boot", || recorded().contains("boot "));
    cluster.stop(Stop::Immediate);
    reboot(&cluster);
    cluster.start_again();
    assert!(!check(&mut cluster.client(), "wal").0);
}
