//! Servers without preload, without a worker id and standbys draw no UUIDs. The functions of times work everywhere. UUIDs
//! rise over crashes and steps of the clock.

use idgen_testkit::Cluster;
use idgen_testkit::script::play_each;
use idgen_testkit::sql::{expect_error, hint, value};
use postgres::Client;

const CALLS: [&str; 4] =
    ["uuidv7_next()", "uuidv7_next(node => true)", "uuidv7_next_many(2)", "uuidv7_next_many(2, node => true)"];

fn assert_refused(cluster: &Cluster, code: &str, message: &str) {
    for call in CALLS {
        let error = expect_error(&mut cluster.client(), &format!("SELECT {call}"), code);
        assert_eq!(error.message(), message, "{call}");
    }
}

fn assert_times_work(client: &mut Client) {
    let sql = "SELECT ts = uuidv7_time(uuidv7_floor(ts)) AND ts = uuidv7_time(uuidv7_ceil(ts)) FROM date_trunc('ms', now()) AS ts";
    assert!(value::<bool>(client, sql));
}

#[test]
fn uuids_are_read_but_not_drawn_without_preload_smoke() {
    let cluster = Cluster::builder().preload(false).start_with_extension();
    assert_refused(&cluster, "55000", "idgen must be preloaded");
    let error = expect_error(&mut cluster.client(), "SELECT uuidv7_next()", "55000");
    assert!(hint(&error).contains("shared_preload_libraries = 'idgen'"), "{error:?}");
    assert_times_work(&mut cluster.client());
}

#[test]
fn standby_draws_no_uuid_and_continues_after_those_of_its_primary() {
    let primary = Cluster::builder().start_with_extension();
    let standby = primary.standby();
    let drawn: String = value(&mut primary.client(), "SELECT max(id::text) FROM uuidv7_next_many(1000) AS id");
    primary.execute("CREATE TABLE received AS SELECT 1");
    standby.wait_until_replayed(&primary);
    assert_refused(&standby, "25006", "cannot generate ids during recovery");
    assert_times_work(&mut standby.client());
    primary.kill9_postmaster();
    standby.promote();
    assert!(value::<bool>(&mut standby.client(), &format!("SELECT uuidv7_next() > '{drawn}'")));
}

#[test]
fn server_without_a_worker_id_draws_no_uuid() {
    let coordinator = "host=/nowhere dbname=postgres";
    let builder = Cluster::builder().conf("idgen.worker_pool", "servers").conf("idgen.coordinator", coordinator);
    let cluster = builder.start_with_extension();
    assert_refused(&cluster, "55000", "this server has no worker id yet from pool \"servers\"");
    assert_times_work(&mut cluster.client());
}

#[test]
fn uuids_rise_over_crashes_and_steps_of_the_clock_smoke() {
    play_each(
        &Cluster::builder().fake_clock().start_with_extension(),
        "clock: 7200 s
         a: SELECT max(id::text) FROM uuidv7_next_many(1000, NODE) AS id -> $before
         clock: OFFSET s
         END
         a: SELECT min(id::text) > '$before' FROM uuidv7_next_many(1000, NODE) AS id -> t
         b: SELECT uuidv7_next()::text > '$before' -> t",
        ["OFFSET", "END", "NODE"],
        &[
            ["3600", "a: SELECT", "false"],
            ["10800", "server: crashes", "true"],
            ["3600", "server: crashes", "false"],
            ["0", "a is killed", "true"],
            ["-60", "server: restarts", "false"],
        ],
    );
}
