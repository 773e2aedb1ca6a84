//! Patroni with three members: a switchover, a killed leader, and a leader whose Patroni is paused, so that two members
//! lead. No id is issued twice.

mod ensemble;
mod load;

use std::collections::{BTreeSet, HashSet};

use ensemble::{Ensemble, MEMBERS, address, name};
use idgen_testkit::ids::assert_distinct;
use idgen_testkit::pause;
use idgen_testkit::sql::{execute, ids, value};
use load::{Load, Progress};

const ENOUGH: usize = 1000;

fn create_database(ensemble: &Ensemble) -> usize {
    let leader = ensemble.wait_until_healthy(&MEMBERS);
    execute(&mut ensemble.client(leader, "postgres"), "CREATE DATABASE shop");
    execute(
        &mut ensemble.client(leader, "shop"),
        "CREATE EXTENSION idgen;
         CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next());
         SELECT segment_create('invoice', step => 100)",
    );
    leader
}

/// Waits until clients have drawn ids on these members from now on.
fn wait_for_ids_of(ensemble: &Ensemble, progress: &Progress, members: &[usize]) {
    let before = MEMBERS.map(|member| progress.drawn(member));
    ensemble.wait_for(&format!("ids of the members {members:?}"), || {
        members.iter().all(|&member| progress.drawn(member) >= before[member] + ENOUGH)
    });
}

/// Called with the old and the new leader while both lead, because Patroni of the old one is paused.
type WhileTwoLead<'a> = &'a mut dyn FnMut(&Ensemble, usize, usize);

/// Draws ids over the three failovers. Returns the leader of the last one and what was seen.
fn fail_over(ensemble: &mut Ensemble, while_two_lead: WhileTwoLead) -> (usize, load::Seen) {
    let load = Load::start(ensemble);
    let progress = std::sync::Arc::clone(&load.progress);
    let mut leader = ensemble.wait_until_healthy(&MEMBERS);
    wait_for_ids_of(ensemble, &progress, &[leader]);

    ensemble.ctl(&["switchover", "shop", "--leader", &name(leader), "--force"]);
    leader = ensemble.wait_for_leader_after(leader);
    wait_for_ids_of(ensemble, &progress, &[leader]);
    assert_eq!(ensemble.wait_until_healthy(&MEMBERS), leader);

    let killed = leader;
    ensemble.kill_member(killed);
    leader = ensemble.wait_for_leader_after(killed);
    wait_for_ids_of(ensemble, &progress, &[leader]);
    ensemble.start_member(killed);
    assert_eq!(ensemble.wait_until_healthy(&MEMBERS), leader);

    let paused = leader;
    let patroni = pause(ensemble.patroni(paused));
    leader = ensemble.wait_for_leader_after(paused);
    wait_for_ids_of(ensemble, &progress, &[paused, leader]);
    // Ids of a new leader begin ahead of its clock. From here on both leaders issue ids of the same times.
    let begun = progress.last(leader);
    ensemble.wait_for("the old leader to reach the times of the new one", || progress.last(paused) > begun);
    wait_for_ids_of(ensemble, &progress, &[paused, leader]);
    while_two_lead(ensemble, paused, leader);
    patroni.resume();
    wait_for_ids_of(ensemble, &progress, &[leader]);
    assert_eq!(ensemble.wait_until_healthy(&MEMBERS), leader);
    assert_ne!(leader, paused);
    (leader, load.end())
}

/// No id was seen twice. An id of a committed row that its client did not see is in the table.
fn assert_nothing_twice(ensemble: &Ensemble, leader: usize, seen: load::Seen) {
    let mut client = ensemble.client(leader, "shop");
    let inserted = assert_distinct(seen.inserted);
    let seen_inserted: HashSet<i64> = inserted.iter().copied().collect();
    let rows = ids(&mut client, "SELECT id FROM orders");
    eprintln!("{} ids drawn, {} inserted, {} values of a segment", seen.drawn.len(), rows.len(), seen.numbers.len());
    assert!(seen.drawn.len() > 10 * ENOUGH && seen.numbers.len() > ENOUGH);
    let unseen = rows.into_iter().filter(|id| !seen_inserted.contains(id));
    let all: Vec<i64> = seen.drawn.iter().chain(&inserted).copied().chain(unseen).collect();
    assert_distinct(all);
    assert_distinct(seen.numbers);
}

fn worker_ids(ensemble: &Ensemble, leader: usize, drawn: &[i64]) -> BTreeSet<i32> {
    let mut client = ensemble.client(leader, "shop");
    let sql = "SELECT DISTINCT part.worker::int FROM unnest($1::bigint[]) AS id, snowflake_parts(id) AS part";
    client.query(sql, &[&drawn]).expect("worker ids").iter().map(|row| row.get(0)).collect()
}

#[test]
fn members_with_their_own_worker_ids_repeat_no_id() {
    let mut ensemble = Ensemble::start(|_, text| text);
    create_database(&ensemble);
    let mut ahead = Vec::new();
    let mut paused = 0;
    let (leader, mut seen) = fail_over(&mut ensemble, &mut |ensemble, old, _| {
        // Ids far ahead of the clock that no other member gets to know.
        let mut client = ensemble.client(old, "shop");
        execute(&mut client, "SELECT snowflake_observe(snowflake_ceil(now() + interval '100 s'))");
        ahead = ids(&mut client, "SELECT snowflake_next_many(1000)");
        paused = old;
    });
    let used = worker_ids(&ensemble, leader, &seen.drawn);
    assert!(used.len() >= 2 && used.iter().all(|id| (1..=3).contains(id)), "{used:?}");

    // The old leader was rewound, and leads again.
    assert!(ensemble.log(paused).contains("running pg_rewind"), "{} was not rewound", name(paused));
    let third = MEMBERS.into_iter().find(|member| ![leader, paused].contains(member)).expect("a third member");
    ensemble.kill_member(third);
    ensemble.wait_until_healthy(&[leader, paused]);
    ensemble.ctl(&["switchover", "shop", "--leader", &name(leader), "--force"]);
    assert_eq!(ensemble.wait_for_leader_after(leader), paused);
    let again = ids(&mut ensemble.client(paused, "shop"), "SELECT snowflake_next_many(1000)");
    assert!(again[0] > ahead[999], "{} after {}: the mark was lost", again[0], ahead[999]);
    seen.drawn.extend(ahead.into_iter().chain(again));
    assert_nothing_twice(&ensemble, paused, seen);
}

#[test]
fn members_with_worker_ids_from_a_pool_in_the_cluster_repeat_no_id() {
    // The new leader's ids begin up to the ttl and this lead ahead of the clock. Both are short here, so that the test sees
    // the old leader reach the same times.
    let by_hand = |member: usize| format!("idgen.worker_id: {}", member + 1);
    let mut ensemble = Ensemble::start(|member, text| text.replace(&by_hand(member), "idgen.worker_max_lead: 10s"));
    let leader = create_database(&ensemble);
    execute(
        &mut ensemble.client(leader, "shop"),
        "CREATE ROLE keeper LOGIN PASSWORD 'change-me';
         SELECT worker_pool_define('servers', first => 1, count => 1023, ttl => '10 s')",
    );
    let passfile = ensemble.file("keeper.pass", "*:*:*:keeper:change-me\n");
    let pool = std::fs::read_to_string(crate::repository("examples/patroni/pool.yml")).expect("pool.yml is readable");
    let pool = pool
        .replace("10.0.0.11,10.0.0.12,10.0.0.13", &MEMBERS.map(address).join(","))
        .replace("port=5432", &format!("port={}", ensemble.port()))
        .replace("/etc/patroni/keeper.pass", &passfile);
    ensemble.ctl(&["edit-config", "shop", "--apply", &ensemble.file("pool.yml", &pool), "--force"]);
    let mut client = ensemble.client(leader, "shop");
    ensemble.wait_for("a worker id from the pool", || {
        value(&mut client, "SELECT count(*) = 1 FROM idgen.stat_worker WHERE state = 'leased'")
    });

    let (leader, seen) = fail_over(&mut ensemble, &mut |ensemble, old, new| {
        let held = [old, new].map(|member| {
            value::<i32>(&mut ensemble.client(member, "shop"), "SELECT worker_id FROM idgen.stat_worker")
        });
        assert_ne!(held[0], held[1], "two leaders have one worker id");
    });
    assert_nothing_twice(&ensemble, leader, seen);
}
