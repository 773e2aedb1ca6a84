//! A server's clock that leaps a year ahead and comes back, without an id in between.

use idgen_testkit::Stop;
use idgen_testkit::sql::{expect_error, value};

use super::{Worker, coordinator, draw};
use crate::{POOL, builder, pooled};

const YEAR_MS: i64 = 365 * 86_400_000;

/// The session's request reaches no coordinator. Later the server needs another lease, which is not refused for the sake of
/// that request.
#[test]
fn request_of_a_session_under_a_wrong_clock_does_not_outlive_the_wrong_clock() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let server = pooled(&coordinator.conninfo()).fake_clock().start_with_extension();
    let mut client = server.client();
    let before = draw(&mut client);
    // The keeper, which renews once in a while, does not notice.
    coordinator.execute(&format!("SELECT lease_revoke('{POOL}', 0)"));
    coordinator.stop(Stop::Fast);
    server.clock().set_offset_ms(YEAR_MS);
    expect_error(&mut client, "SELECT snowflake_next()", "55000");
    server.clock().set_offset_ms(0);
    Worker::wait_until(&server, "another failure", |worker| worker.failures > 1);
    coordinator.start_again();
    Worker::wait_until(&server, "another lease", |worker| worker.changes > 1 || worker.worker_id != Some(0));
    let after = draw(&mut client);
    assert!(after > before, "{after} after {before}");
    let is_near = format!("SELECT snowflake_time({after}) < clock_timestamp() + interval '1 day'");
    assert!(value::<bool>(&mut client, &is_near), "{after} is far ahead");
}
