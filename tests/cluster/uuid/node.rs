//! The worker id in UUIDs that are drawn with `node => true`.

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{PATIENCE, execute, value};

use crate::{WAYS, draw, random_bits};

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
    cluster.execute("SELECT lease_define('servers', slots => 1, first_slot => 77, ttl => '1 hour')");
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
