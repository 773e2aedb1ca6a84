//! Workers on the shards of a table.

use std::collections::BTreeSet;

use idgen_testkit::sql::{PATIENCE, column, execute, row, value};
use idgen_testkit::{Cluster, Example, Stop, rounds};
use postgres::Client;

use crate::crew::Crew;
use crate::{
    counter, create_tables, run_python, server, shuffled, start, terminate, wait_for_a_wait_for_the_table,
    wait_until_expired,
};

fn cluster(shards: usize) -> Cluster {
    let cluster = server();
    create_tables(&mut cluster.client(), "sharded_worker.py");
    cluster.execute(&format!("SELECT lease_alter('shards', slots => {shards})"));
    cluster.execute("ALTER TABLE task DROP CONSTRAINT task_shard_check");
    cluster
}

fn worker(cluster: &Cluster, owner: &str, ttl: &str) -> Example {
    start(cluster, "sharded_worker.py", &["shards", owner, ttl])
}

fn crew<'cluster>(cluster: &'cluster Cluster, ttl: &'static str) -> Crew<'cluster> {
    Crew::new(cluster, "python/sharded_worker.py", "shards", ttl)
}

/// Adds tasks to each shard, with a total of 1 + 2 + ... + `count`.
fn add_tasks(client: &mut Client, shards: usize, count: usize) {
    let sql =
        "INSERT INTO task (shard, amount) SELECT s, n FROM generate_series(0, $s - 1) s, generate_series(1, $n) n";
    execute(client, &sql.replace("$s", &shards.to_string()).replace("$n", &count.to_string()));
}

fn wait_until_done(cluster: &Cluster, client: &mut Client) {
    cluster.wait_for(PATIENCE, "all tasks to be done", || value(client, "SELECT NOT EXISTS (SELECT FROM task)"));
}

/// The totals of all shards.
fn totals(client: &mut Client) -> Vec<i64> {
    column(client, "SELECT total::bigint FROM shard_total ORDER BY shard")
}

fn held(client: &mut Client) -> i64 {
    value(client, "SELECT count(*) FROM idgen.leases WHERE state = 'held'")
}

/// The worker and the token of a shard.
fn holder(client: &mut Client, shard: usize) -> (String, i64) {
    let row = row(client, &format!("SELECT owner, token FROM idgen.lease WHERE name = 'shards' AND slot = {shard}"));
    (row.get(0), row.get(1))
}

#[test]
fn shards_lose_nothing_when_their_workers_are_paused() {
    const SHARDS: usize = 2;
    const COUNT: usize = 100;
    let cluster = cluster(SHARDS);
    let mut client = cluster.client();
    let mut crew = crew(&cluster, "0.4");
    crew.start(SHARDS + 2);
    crew.wait_until_fair(&mut client);
    let pauses = rounds(10, 300);
    for round in 0..pauses {
        let shard = round % SHARDS;
        add_tasks(&mut client, SHARDS, COUNT);
        let (owner, token) = holder(&mut client, shard);
        let _paused = crew.pause(&owner);
        // A worker that is paused in a fenced transaction keeps its shard.
        let is_fenced = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '{owner}' AND state = 'idle in transaction')
                AND EXISTS (SELECT FROM idgen.leases WHERE name = 'shards' AND slot = {shard} AND state = 'expired')"
        );
        cluster.wait_for(PATIENCE, "a take-over, or a fence that prevents it", || {
            holder(&mut client, shard).1 != token || value(&mut client, &is_fenced)
        });
    }
    wait_until_done(&cluster, &mut client);
    let printed = crew.end();
    assert_eq!(totals(&mut client), [(pauses * COUNT * (COUNT + 1) / 2) as i64; SHARDS]);
    assert!(printed.iter().any(|line| line.starts_with("lost shard")));
    assert_eq!(held(&mut client), 0, "workers that end release their shards, and are no members");
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
    let spare = worker(&cluster, "spare", "1");
    wait_until_expired(&cluster, "shards");
    let probes = counter(&mut client, "probes");
    cluster.wait_for(PATIENCE, "attempts to take over", || counter(&mut client, "probes") > probes + 3);
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
    assert_eq!(totals(&mut client), [3 * 55]);
}

#[test]
fn worker_that_has_lost_its_shard_saves_nothing() {
    let cluster = cluster(1);
    let mut client = cluster.client();
    add_tasks(&mut client, 1, 10);
    let printed = run_python(
        &cluster,
        "sharded_worker.py",
        "
import sys, psycopg, sharded_worker

db, other = [psycopg.connect(sys.argv[1], autocommit=True) for _ in range(2)]
shards = sharded_worker.Shards('shards', 'paused', 30)
shards.balance(db)
totals = sharded_worker.Totals(db, shards)
totals.work()
other.execute(\"SELECT lease_revoke('shards'), lease_acquire('shards', '1 h')\")
other.execute(\"INSERT INTO task VALUES (DEFAULT, 0, 100)\")
try:
    totals.work()
except psycopg.errors.ObjectNotInPrerequisiteState as error:
    print(error.diag.message_primary)
shards.balance(db)
print(shards.tokens)
",
    );
    assert!(printed.contains("is not held") && printed.trim().ends_with("lost shard 0\n{}"), "{printed}");
    assert_eq!(totals(&mut client), [55]);
}

/// After each start, end, kill, pause and continuation of a worker, and each crash of the server.
#[test]
fn shares_become_equal_after_whatever_happens_to_workers() {
    const COUNT: usize = 10;
    // Ten cannot be divided evenly among three or four.
    let (shards, most) = (rounds(10, 160).min(160), rounds(4, 20).min(20));
    let cluster = cluster(shards);
    let mut client = cluster.client();
    let mut crew = crew(&cluster, if most > 4 { "3" } else { "1" }).with_at_most(most);
    crew.start(most / 2);
    let steps = rounds(12, 200);
    for (step, random) in shuffled(steps as u64, idgen_testkit::seed()).into_iter().enumerate() {
        crew.wait_until_fair(&mut client);
        add_tasks(&mut client, shards, COUNT);
        match step % 10 {
            9 => {
                cluster.restart_by(Stop::Immediate);
                client = cluster.client();
            }
            _ => crew.disturb(random),
        }
    }
    crew.wait_until_fair(&mut client);
    wait_until_done(&cluster, &mut client);
    crew.end();
    assert_eq!(totals(&mut client), vec![(steps * COUNT * (COUNT + 1) / 2) as i64; shards]);
    assert_eq!(held(&mut client), 0);
}

/// The shards that a worker keeps when another one joins or leaves are those that it had.
#[test]
fn no_shard_changes_hands_needlessly() {
    let cluster = cluster(10);
    let mut client = cluster.client();
    let mut crew = crew(&cluster, "6");
    let mut tokens = |crew: &Crew| {
        crew.wait_until_fair(&mut client);
        column::<i64>(&mut client, "SELECT token FROM idgen.leases WHERE name = 'shards' AND state = 'held'")
            .into_iter()
            .collect::<BTreeSet<_>>()
    };
    crew.start(2);
    let before = tokens(&crew);
    // From 5 and 5 to 4, 3 and 3.
    crew.start(1);
    let joined = tokens(&crew);
    assert_eq!(before.intersection(&joined).count(), 7);
    // Back to 5 and 5: only those of the one that leaves.
    crew.terminate_last();
    let left = tokens(&crew);
    assert_eq!(joined.intersection(&left).count(), 7);
    crew.end();
}
