//! Workers on the shards of a table.

use idgen_testkit::sql::{PATIENCE, execute, row, value, wait_for_one};
use idgen_testkit::{Cluster, Example, rounds};
use postgres::Client;

use crate::{
    create_tables, server, start, terminate, wait_for_a_wait_for_the_fence, wait_for_a_wait_for_the_table,
    wait_until_expired,
};

fn cluster(shards: i32) -> Cluster {
    let cluster = server();
    create_tables(&mut cluster.client(), "sharded_worker.py");
    cluster.execute(&format!("SELECT lease_alter('shards', slots => {shards})"));
    cluster
}

fn worker(cluster: &Cluster, owner: &str, ttl: &str) -> Example {
    start(cluster, "sharded_worker.py", &["shards", owner, ttl])
}

/// Adds tasks to each shard, with a total of 1 + 2 + ... + `count`.
fn add_tasks(client: &mut Client, shards: i32, count: i64) {
    let sql =
        "INSERT INTO task (shard, amount) SELECT s, n FROM generate_series(0, $s - 1) s, generate_series(1, $n) n";
    execute(client, &sql.replace("$s", &shards.to_string()).replace("$n", &count.to_string()));
}

fn wait_until_done(cluster: &Cluster, client: &mut Client) {
    cluster.wait_for(PATIENCE, "all tasks to be done", || value(client, "SELECT NOT EXISTS (SELECT FROM task)"));
}

fn total(client: &mut Client, shard: i32) -> i64 {
    value(client, &format!("SELECT total::bigint FROM shard_total WHERE shard = {shard}"))
}

/// The worker and the token of a shard.
fn holder(client: &mut Client, shard: i32) -> (String, i64) {
    let row = row(client, &format!("SELECT owner, token FROM idgen.lease WHERE slot = {shard}"));
    (row.get(0), row.get(1))
}

#[test]
fn shards_lose_nothing_when_their_workers_are_paused() {
    const SHARDS: i32 = 2;
    const COUNT: i64 = 100;
    let cluster = cluster(SHARDS);
    let mut client = cluster.client();
    let workers: Vec<_> = (0..SHARDS + 2).map(|n| worker(&cluster, &n.to_string(), "0.4")).collect();
    wait_for_one(
        &cluster,
        "all shards to have a worker",
        &format!("(SELECT FROM idgen.leases WHERE state = 'held' HAVING count(*) = {SHARDS}) AS held"),
    );
    let pauses = rounds(10, 300);
    for round in 0..pauses {
        let shard = round as i32 % SHARDS;
        add_tasks(&mut client, SHARDS, COUNT);
        let (owner, token) = holder(&mut client, shard);
        let _paused = workers[owner.parse::<usize>().expect("the number of a worker")].pause();
        // A worker that is paused in a fenced transaction keeps its shard.
        let is_fenced = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '{owner}' AND state = 'idle in transaction')
                AND EXISTS (SELECT FROM idgen.leases WHERE slot = {shard} AND state = 'expired')"
        );
        cluster.wait_for(PATIENCE, "a take-over, or a fence that prevents it", || {
            holder(&mut client, shard).1 != token || value(&mut client, &is_fenced)
        });
    }
    wait_until_done(&cluster, &mut client);
    let printed: Vec<_> = workers.into_iter().flat_map(|worker| terminate(worker, &cluster)).collect();
    let expected = pauses as i64 * COUNT * (COUNT + 1) / 2;
    assert_eq!([total(&mut client, 0), total(&mut client, 1)], [expected; 2]);
    assert!(printed.iter().any(|line| line.starts_with("lost shard")));
    let held: i64 = value(&mut client, "SELECT count(*) FROM idgen.leases WHERE state = 'held'");
    assert_eq!(held, 0, "workers that end release their shards");
}

#[test]
fn spare_worker_waits_for_the_batch_of_a_paused_one() {
    let cluster = cluster(1);
    let (mut client, mut locker) = (cluster.client(), cluster.client());
    let paused = worker(&cluster, "paused", "0.5");
    paused.wait_for_line(&cluster, "works on shard 0");
    add_tasks(&mut client, 1, 10);
    wait_until_done(&cluster, &mut client);
    execute(&mut locker, "BEGIN; LOCK TABLE shard_total");
    add_tasks(&mut client, 1, 10);
    wait_for_a_wait_for_the_table(&cluster);
    let guard = paused.pause();
    let spare = worker(&cluster, "spare", "30");
    wait_until_expired(&cluster, "shards");
    wait_for_a_wait_for_the_fence(&cluster);
    assert!(spare.lines().is_empty(), "two workers on one shard");
    execute(&mut locker, "COMMIT");
    guard.resume();
    wait_until_done(&cluster, &mut client);
    // The next worker begins with the state that the one before has saved.
    terminate(paused, &cluster);
    spare.wait_for_line(&cluster, "works on shard 0");
    add_tasks(&mut client, 1, 10);
    wait_until_done(&cluster, &mut client);
    terminate(spare, &cluster);
    assert_eq!(total(&mut client, 0), 3 * 55);
}
