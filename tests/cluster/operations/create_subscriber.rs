//! pg_createsubscriber, of PostgreSQL 17 and later, turns a standby into a subscriber. `make smoke` runs these tests on
//! these versions.

use idgen_testkit::ids::last;
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, value};
use idgen_testkit::{Cluster, Stop, high_water, run};

const INSERT: &str = "INSERT INTO orders SELECT FROM generate_series(1, 1000) RETURNING id";

#[test]
#[ignore = "needs pg_createsubscriber, of PostgreSQL 17 and later: make smoke PG=18"]
fn created_subscriber_begins_after_replicated_ids_once_its_mark_is_removed() {
    let builder = Cluster::builder().conf("wal_level", "logical").conf("idgen.worker_id", "1");
    let (publisher, [mut on_publisher]) = builder.start_with_clients();
    execute(&mut on_publisher, "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    create(&mut on_publisher, "ticket", ", step => 10");
    // Ids that the clock of the subscriber has not reached.
    execute(&mut on_publisher, "SELECT snowflake_observe(snowflake_ceil(now() + interval '1 hour'))");
    let seen = ids(&mut on_publisher, INSERT);
    let ticket = next(&mut on_publisher, "ticket");
    let subscriber = publisher.standby_builder().conf("idgen.worker_id", "2").start();
    subscriber.wait_until_replayed(&publisher);
    subscriber.stop(Stop::Fast);

    let mut command = subscriber.program("pg_createsubscriber");
    command.arg("-D").arg(subscriber.data_dir()).args(["-P", &publisher.conninfo(), "-d", "postgres"]);
    run(command.arg("-s").arg(subscriber.host()).args(["--publication", "app", "--subscription", "app"]));
    subscriber.start_again();

    // pg_createsubscriber has changed the system identifier.
    let error = expect_error(&mut subscriber.client(), "SELECT snowflake_next()", "XX001");
    assert!(error.message().contains("was written by another server"), "{error:?}");
    subscriber.stop(Stop::Fast);
    std::fs::remove_dir_all(high_water::directory(&subscriber)).expect("a directory of the server");
    subscriber.start_again();

    // The replicated label tells how far ids have gone.
    let mut on_subscriber = subscriber.client();
    let first: i64 = value(&mut on_subscriber, "SELECT snowflake_next()");
    assert!(first > last(&seen), "{first} after {}", last(&seen));

    execute(&mut on_publisher, INSERT);
    let rows = "SELECT count(*) = 2000 FROM orders";
    subscriber.wait_for(PATIENCE, "the rows of the publisher", || value(&mut on_subscriber, rows));
    // The primary key rejects a repeated id.
    execute(&mut on_subscriber, INSERT);
    // The segment came along, and both servers draw the values that the publisher had not reserved.
    assert_eq!(next(&mut on_subscriber, "ticket"), ticket + 10);
}
