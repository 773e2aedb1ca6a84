use std::collections::BTreeMap;

use idgen_testkit::sql::{PATIENCE, column, execute};
use idgen_testkit::{Cluster, Example, Proxy, rounds};
use postgres::Client;

use super::{start, terminate};
use crate::{builder, counter, wait_for_one};

/// Asks a candidate all the time whether it leads, until its input ends. Prints the token with the times before and after
/// each answer.
const ASKING: &str = "
import sys, threading, leader

conninfo, address, ttl = sys.argv[1:]
candidate = leader.Candidate(conninfo, 'scheduler', address, float(ttl))
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
while not stop.wait(0.001):
    before = leader.clock()
    token = candidate.leads()
    if token:
        print(token, int(1e6 * before), int(1e6 * leader.clock()))
candidate.resign()
";

/// Stands for election through `conninfo`.
fn candidate(cluster: &Cluster, conninfo: &str, address: &str, ttl: &str) -> Example {
    // Beside the example, which it imports.
    let asking = Example::copy(cluster, "python/leader.py").with_file_name("asking.py");
    std::fs::write(&asking, ASKING).expect("a writable directory");
    let mut command = cluster.program("/usr/bin/python3");
    command.arg("-u").arg(asking).args([conninfo, address, ttl]).env("PYTHONDONTWRITEBYTECODE", "1");
    Example::start(cluster, &mut command)
}

/// An answer that a candidate leads was given between these times, in microseconds of CLOCK_BOOTTIME.
struct Answer {
    token: i64,
    after_us: i64,
    before_us: i64,
}

fn answers(candidate: &Example) -> Vec<Answer> {
    let numbers = |line: &String| line.split(' ').map(|number| number.parse().expect("a number")).collect::<Vec<i64>>();
    let answer = |line: &String| match numbers(line)[..] {
        [token, after_us, before_us] => Answer { token, after_us, before_us },
        _ => panic!("{line:?}"),
    };
    candidate.lines().iter().map(answer).collect()
}

fn leads(candidate: &Example) -> bool {
    !candidate.lines().is_empty()
}

/// Ends the candidates. No answer under a token was given after one under a later token. Returns the number of tokens.
fn assert_one_leader_at_a_time(cluster: &Cluster, candidates: Vec<Example>) -> usize {
    let mut terms = BTreeMap::<i64, (i64, i64)>::new();
    for mut candidate in candidates {
        candidate.end_input();
        let (status, errors) = candidate.wait(cluster);
        assert!(status.success(), "{errors}");
        for Answer { token, after_us, before_us } in answers(&candidate) {
            let (first_before, last_after) = terms.entry(token).or_insert((before_us, after_us));
            (*first_before, *last_after) = (before_us.min(*first_before), after_us.max(*last_after));
        }
    }
    let terms: Vec<_> = terms.into_iter().collect();
    for pair in terms.windows(2) {
        let [(earlier, (_, last_after)), (later, (first_before, _))] = pair else { unreachable!("pairs") };
        assert!(last_after <= first_before, "token {earlier} leads at {last_after}, {later} at {first_before}");
    }
    terms.len()
}

/// The owner and the token of the lease, if it is held.
fn holder(client: &mut Client) -> Option<(String, i64)> {
    let sql = "SELECT owner, token FROM idgen.leases WHERE name = 'scheduler' AND state = 'held'";
    client.query_opt(sql, &[]).expect("a query of the view").map(|row| (row.get(0), row.get(1)))
}

#[test]
fn candidates_that_are_paused_at_random_never_lead_at_once() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    let candidates: Vec<_> = (0..3).map(|n| candidate(&cluster, &cluster.conninfo(), &n.to_string(), "0.5")).collect();
    let number = |owner: &str| owner.parse::<usize>().expect("the number of a candidate");
    let changes = rounds(8, 300);
    for _ in 0..changes {
        let mut current = None;
        cluster.wait_for(PATIENCE, "a candidate that says that it leads", || {
            current = holder(&mut client).filter(|(owner, token)| {
                answers(&candidates[number(owner)]).last().is_some_and(|answer| answer.token == *token)
            });
            current.is_some()
        });
        let (owner, token) = current.expect("waited for");
        let _paused = candidates[number(&owner)].pause();
        cluster.wait_for(PATIENCE, "another leader", || {
            holder(&mut client).is_some_and(|(other, later)| other != owner && later != token)
        });
    }
    assert!(assert_one_leader_at_a_time(&cluster, candidates) >= changes);
}

#[test]
fn leader_that_is_cut_off_ends_before_the_next_one_begins() {
    let cluster = builder().start_with_extension();
    let proxy = Proxy::on_tcp(&cluster);
    let cut_off = candidate(&cluster, &proxy.conninfo(), "cut off", "0.5");
    cluster.wait_for(PATIENCE, "a leader", || leads(&cut_off));
    proxy.stop_forwarding();
    let next = candidate(&cluster, &cluster.conninfo(), "next", "60");
    cluster.wait_for(PATIENCE, "the next leader", || leads(&next));
    proxy.resume_forwarding();
    // It asks again, in vain.
    wait_for_one(
        &cluster,
        "the former leader to wait",
        "pg_stat_activity WHERE state = 'active' AND query ~ 'lease_try_acquire' AND wait_event_type = 'Extension'",
    );
    assert_one_leader_at_a_time(&cluster, vec![cut_off, next]);
}

/// The server renews while the leader is paused, so the answer arrives when the lease has another holder.
#[test]
fn leader_that_is_paused_during_a_renewal_does_not_count_from_the_answer() {
    let cluster = builder().start_with_extension();
    let (mut client, mut locker) = (cluster.client(), cluster.client());
    let paused = candidate(&cluster, &cluster.conninfo(), "paused", "1");
    cluster.wait_for(PATIENCE, "a leader", || leads(&paused));
    execute(&mut locker, "BEGIN; SELECT FROM idgen.lease FOR UPDATE");
    let waiting = "pg_locks JOIN pg_stat_activity USING (pid)
                   WHERE NOT granted AND locktype = 'transactionid' AND query ~ 'lease_renew'";
    wait_for_one(&cluster, "a renewal to wait", waiting);
    let guard = paused.pause();
    let before = counter(&mut client, "renewals");
    execute(&mut locker, "COMMIT");
    cluster.wait_for(PATIENCE, "the renewal", || counter(&mut client, "renewals") > before);
    let next = candidate(&cluster, &cluster.conninfo(), "next", "60");
    cluster.wait_for(PATIENCE, "the next leader", || leads(&next));
    guard.resume();
    wait_for_one(
        &cluster,
        "the former leader to wait",
        "pg_stat_activity WHERE state = 'active' AND query ~ 'lease_try_acquire' AND wait_event_type = 'Extension'",
    );
    assert_one_leader_at_a_time(&cluster, vec![paused, next]);
}

#[test]
fn observers_see_each_leader_and_a_resigning_one_is_followed_at_once() {
    let cluster = builder().start_with_extension();
    let stand = |address: &str, ttl: &str| start(&cluster, "leader.py", &["stand", "scheduler", address, ttl]);
    let observer = start(&cluster, "leader.py", &["watch", "scheduler"]);
    let mut seen: Vec<String> = Vec::new();
    let mut sees = |line: &str| {
        seen.push(line.to_owned());
        cluster.wait_for(PATIENCE, line, || observer.lines() == seen);
    };
    sees("no leader");
    let mut killed = stand("a:1", "0.5");
    sees("a:1 leads");
    killed.kill();
    sees("no leader");
    let mut resigning = stand("b:2", "300");
    sees("b:2 leads");
    let next = stand("c:3", "300");
    wait_for_one(
        &cluster,
        "a candidate to wait",
        "pg_stat_activity WHERE state = 'active' AND query ~ 'lease_try_acquire' AND wait_event_type = 'Extension'",
    );
    assert!(next.lines().is_empty(), "two leaders");
    terminate(&resigning);
    let (status, errors) = resigning.wait(&cluster);
    assert!(status.success(), "{errors}");
    // The ttl of the one before is not over.
    sees("c:3 leads");
    let tokens: Vec<i64> = column(&mut cluster.client(), "SELECT token FROM idgen.leases");
    assert_eq!(next.lines(), [format!("leads under token {}", tokens[0])]);
}
