//! The random bits of UUIDs: each process has its own, and a source that fails is an error. With `node => true`, the worker
//! id comes first in them.

use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::parallel::{run_in_workers, with_workers};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, row, value};
use idgen_testkit::{Cluster, Stop, compile_shim};

use crate::{WAYS, draw, random_bits, uuids};

#[test]
fn no_session_or_parallel_worker_repeats_random_bits() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    with_workers(&mut client, "source", 20_000);
    let own = draw(&mut client, WAYS[0], 1000);
    run_in_workers(&mut client, "CREATE TABLE drawn AS SELECT uuidv7_next() AS id FROM source");
    let of_workers = uuids(&row(&mut client, "SELECT array_agg(uuid_send(id)) FROM drawn"));
    let others: Vec<u128> = (0..8).flat_map(|_| draw(&mut cluster.client(), WAYS[1], 1000)).collect();
    let all = assert_distinct([own, of_workers, others].concat());
    assert_eq!(all.len(), 29_000);
    // 54 random bits: one of 40 million such tests would see two equal ones.
    assert_distinct(all.into_iter().map(random_bits).collect());
}

#[test]
fn failure_of_the_random_source_is_an_error_that_ends_with_it() {
    let cluster = Cluster::builder().start_with_extension();
    let dir = cluster.data_dir().parent().expect("the data directory is in the cluster's").to_owned();
    let (library, control) = (dir.join("shim.so"), dir.join("shim.control"));
    compile_shim("uuid/shim.c", &library);
    cluster.stop(Stop::Fast);
    cluster.set_env("LD_PRELOAD", &library);
    cluster.set_env("IDGEN_SHIM_CONTROL", &control);
    cluster.start_again();

    let mut client = cluster.client();
    let before = draw(&mut client, WAYS[0], 100);
    std::fs::write(&control, "").expect("the cluster's directory is writable");
    for sql in ["SELECT uuidv7_next()", "SELECT uuidv7_next_many(10)"] {
        // A session without random bits.
        let error = expect_error(&mut cluster.client(), sql, "58030");
        assert_eq!(error.message(), "could not generate random numbers");
    }
    // One that uses up its random bits.
    let sql = WAYS[0].replace("$n", "10000");
    expect_error(&mut client, &sql, "58030");
    expect_error(&mut client, "SELECT uuidv7_next()", "58030");
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > 0, "ids need no random bits");
    std::fs::remove_file(&control).expect("the cluster's directory is writable");
    let after = draw(&mut client, WAYS[0], 10_000);
    let all = [before, after].concat();
    assert_increasing(&all);
    assert_distinct(all.into_iter().map(random_bits).collect());
}

/// The first 31 of the 54 bits.
fn worker_id(uuid: u128) -> u64 {
    random_bits(uuid) >> 23
}

#[test]
fn any_worker_id_is_in_the_uuids_that_ask_for_it_smoke() {
    for worker in [1, 1023, i32::MAX] {
        // No other layout fits the greatest worker id, and UUIDs fit all.
        let builder = Cluster::builder().conf("idgen.worker_id", &worker.to_string());
        let cluster = builder.conf("idgen.datacenter_id", "3").start_with_extension();
        let mut client = cluster.client();
        let [singles, batch, node_singles, node_batch] = WAYS.map(|way| draw(&mut client, way, 1000));
        for with_node in [&node_singles, &node_batch] {
            assert!(with_node.iter().all(|uuid| worker_id(*uuid) == worker as u64));
            // The 23 bits that are left are random: 1,000 of them have more than 900 values.
            let mut rest: Vec<u64> = with_node.iter().map(|uuid| random_bits(*uuid) & 0x7f_ffff).collect();
            rest.sort_unstable();
            rest.dedup();
            assert!(rest.len() > 900, "{} values", rest.len());
        }
        for without in [&singles, &batch] {
            assert_distinct(without.iter().map(|uuid| worker_id(*uuid)).take(10).collect());
        }
        assert_increasing(&[singles, batch, node_singles, node_batch].concat());
    }
}

#[test]
fn session_uses_the_worker_id_that_its_server_has_leased_since() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("SELECT worker_pool_define('servers', 77, 1, '1 hour')");
    let mut client = cluster.client();
    execute(&mut client, "SET plan_cache_mode = force_generic_plan");
    let statement = client.prepare("SELECT uuidv7_next(node => true)::text").expect("idgen is installed");
    let mut draw = || {
        let text: String = client.query_one(&statement, &[]).expect("a UUID").get(0);
        u128::from_str_radix(&text.replace('-', ""), 16).expect("hexadecimal digits")
    };
    let before: Vec<u128> = (0..100).map(|_| draw()).collect();
    cluster.set_conf("idgen.worker_pool", "servers");
    cluster.set_conf("idgen.coordinator", &cluster.conninfo());
    cluster.reload();
    let mut observer = cluster.client();
    let state = "SELECT state FROM idgen.stat_worker";
    cluster.wait_for(PATIENCE, "a worker id", || value::<String>(&mut observer, state) == "leased");
    let after: Vec<u128> = (0..100).map(|_| draw()).collect();
    assert!(before.iter().all(|uuid| worker_id(*uuid) == 0));
    assert!(after.iter().all(|uuid| worker_id(*uuid) == 77));
    assert_increasing(&[before, after].concat());
}
