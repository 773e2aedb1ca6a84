//! A copy of the coordinator runs beside it, as after restoring a base backup or cloning a disk.

use idgen_testkit::Stop;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{execute, expect_error, hint, value};

use super::{acquire, assert_apart, builder, define_pool, release, renew, renewal};

#[test]
fn copied_coordinator_grants_nothing_before_worker_begin_history() {
    let origin = builder().start_with_extension();
    define_pool(&origin);
    let mut client = origin.client();
    let mut first = acquire(&mut client);
    let copy = origin.copy();
    // The origin grants more before it is stopped.
    renew(&mut client, &mut first, "14 s");
    let second = acquire(&mut client);
    origin.stop(Stop::Immediate);

    let mut client = copy.client();
    for statement in [
        "SELECT worker_acquire('p', NULL, '10 s')".to_owned(),
        renewal(first.token, "10 s"),
        format!("SELECT worker_renew('p', {}, now())", first.token),
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
    release(&mut client, &first);
    let (third, fourth) = (acquire(&mut client), acquire(&mut client));
    assert_eq!(third.from_us, begins_us);
    assert_apart(&[&first, &second, &third, &fourth]);
    let mut third = third;
    renew(&mut client, &mut third, "10 s");
}
