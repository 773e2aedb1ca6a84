//! A copy of the coordinator runs beside it, as after restoring a base backup or cloning a disk.

use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{execute, expect_error, hint, value};
use idgen_testkit::{Cluster, Stop};

use super::{acquire, acquire_all, assert_apart, renew, renewal, with_pool};
use crate::Grant;

#[test]
fn copied_coordinator_grants_nothing_before_worker_begin_history() {
    let (origin, mut client) = with_pool();
    let mut first = acquire(&mut client);
    let copy = origin.copy();
    // The origin grants more before it is stopped.
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    origin.stop(Stop::Immediate);
    assert_grants_once_the_operator_has_decided(&copy, &first, &second);
}

/// The copy is older than the first grant.
#[test]
fn copy_of_a_coordinator_that_has_only_defined_its_pool_grants_nothing() {
    let (origin, mut client) = with_pool();
    let copy = origin.copy();
    acquire(&mut client);
    assert_eq!(
        expect_error(&mut copy.client(), "SELECT worker_acquire('p', NULL, '10 s')", "55000").message(),
        "this database is a copy of the coordinator"
    );
}

/// It begins to write on the timeline of its primary, without the last grants of that.
#[test]
fn standby_without_its_signal_file_grants_nothing_before_worker_begin_history() {
    let (primary, mut client) = with_pool();
    let mut first = acquire(&mut client);
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    standby.stop(Stop::Fast);
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    primary.stop(Stop::Immediate);
    std::fs::remove_file(standby.data_dir().join("standby.signal")).expect("it is a standby");
    standby.start_again();
    assert_grants_once_the_operator_has_decided(&standby, &first, &second);
}

/// Neither has granted since the promotion, so the row names the primary of both.
#[test]
fn copy_of_a_promoted_coordinator_that_has_not_granted_yet_grants_nothing() {
    let (primary, mut client) = with_pool();
    acquire(&mut client);
    let promoted = primary.standby();
    promoted.wait_until_replayed(&primary);
    primary.stop(Stop::Immediate);
    promoted.promote();
    let copies = [promoted.copy(), promoted.snapshot()];
    copies[1].start_again();
    acquire(&mut promoted.client());
    for copy in copies {
        assert_eq!(
            expect_error(&mut copy.client(), "SELECT worker_acquire('p', NULL, '10 s')", "55000").message(),
            "this database is a copy of the coordinator"
        );
        execute(&mut copy.client(), "SELECT worker_begin_history()");
        copy.restart();
        acquire(&mut copy.client());
    }
}

fn assert_grants_once_the_operator_has_decided(copy: &Cluster, first: &Grant, second: &Grant) {
    let mut client = copy.client();
    assert_eq!(value::<i32>(&mut client, "SELECT timeline_id FROM pg_control_checkpoint()"), 1);
    for statement in [
        "SELECT worker_acquire('p', NULL, '10 s')".to_owned(),
        renewal(first.token, "10 s"),
        format!("SELECT worker_confirm('p', {})", first.token),
    ] {
        let error = expect_error(&mut client, &statement, "55000");
        assert_eq!(error.message(), "this database is a copy of the coordinator");
        assert!(hint(&error).contains("run SELECT worker_begin_history();"));
    }
    execute(&mut client, "CREATE ROLE clerk; SET ROLE clerk");
    expect_error(&mut client, "SELECT worker_begin_history()", "42501");
    execute(&mut client, "RESET ROLE");

    let begins_us: i64 = value(&mut client, &format!("SELECT {}", epoch_us("worker_begin_history()")));
    expect_error(&mut client, &renewal(first.token, "10 s"), "55000");
    let [mut third, fourth, fifth, sixth] = acquire_all(&mut client);
    assert_eq!(third.from_us, begins_us);
    assert_apart(&[first, second, &third, &fourth, &fifth, &sixth]);
    renew(&mut client, &mut third, "10 s");
}
