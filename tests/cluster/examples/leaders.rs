//! Candidates and observers of an election.

use std::collections::BTreeMap;

use idgen_testkit::sql::{PATIENCE, column, execute, value, wait_for_one};
use idgen_testkit::{Cluster, Example, Proxy, rounds};
use postgres::Client;

use crate::{counter, server, start, terminate, wait_until_queued};

/// Asks a candidate all the time whether it leads, until its input ends. Prints the token with the times before and after
/// each answer.
pub const ASKING: &str = "
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

/// No answer under a token was given after one under a later token. Returns the number of tokens.
pub fn assert_one_leader_at_a_time(candidates: &[Example]) -> usize {
    let mut terms = BTreeMap::<i64, (i64, i64)>::new();
    for Answer { token, after_us, before_us } in candidates.iter().flat_map(answers) {
        let (first_before, last_after) = terms.entry(token).or_insert((before_us, after_us));
        (*first_before, *last_after) = (before_us.min(*first_before), after_us.max(*last_after));
    }
    let terms: Vec<_> = terms.into_iter().collect();
    for pair in terms.windows(2) {
        let [(earlier, (_, last_after)), (later, (first_before, _))] = pair else { unreachable!("pairs") };
        assert!(last_after <= first_before, "token {earlier} leads at {last_after}, {later} at {first_before}");
    }
    terms.len()
}

/// As above, once all have resigned.
fn resign_and_assert_one_leader_at_a_time(cluster: &Cluster, mut candidates: Vec<Example>) -> usize {
    for candidate in &mut candidates {
        candidate.end_input();
        let (status, errors) = candidate.wait(cluster);
        assert!(status.success(), "{errors}");
    }
    assert_one_leader_at_a_time(&candidates)
}

/// The owner and the token of the lease, if it is held.
fn holder(client: &mut Client) -> Option<(String, i64)> {
    let sql = "SELECT owner, token FROM idgen.leases WHERE name = 'scheduler' AND state = 'held'";
    client.query_opt(sql, &[]).expect("a query of the view").map(|row| (row.get(0), row.get(1)))
}

#[test]
fn candidates_that_are_paused_at_random_never_lead_at_once() {
    let cluster = server();
    let mut client = cluster.client();
    let candidates: Vec<_> = (0..3).map(|n| candidate(&cluster, &cluster.conninfo(), &n.to_string(), "0.5")).collect();
    let number = |owner: &str| owner.parse::<usize>().expect("the number of a candidate");
    let changes = rounds(3, 300);
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
    assert!(resign_and_assert_one_leader_at_a_time(&cluster, candidates) >= changes);
}

#[test]
fn leader_that_is_cut_off_ends_before_the_next_one_begins() {
    let cluster = server();
    let proxy = Proxy::on_tcp(&cluster);
    let cut_off = candidate(&cluster, &proxy.conninfo(), "cut off", "0.5");
    cluster.wait_for(PATIENCE, "a leader", || leads(&cut_off));
    proxy.stop_forwarding();
    let next = candidate(&cluster, &cluster.conninfo(), "next", "60");
    cluster.wait_for(PATIENCE, "the next leader", || leads(&next));
    proxy.resume_forwarding();
    // It asks again, in vain.
    wait_until_queued(&cluster);
    resign_and_assert_one_leader_at_a_time(&cluster, vec![cut_off, next]);
}

/// The server renews while the leader is paused, so the answer arrives when the lease has another holder.
#[test]
fn leader_that_is_paused_during_a_renewal_does_not_count_from_the_answer() {
    let cluster = server();
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
    wait_until_queued(&cluster);
    resign_and_assert_one_leader_at_a_time(&cluster, vec![paused, next]);
}

const OBSERVER: &str = "pg_stat_activity WHERE query LIKE 'SELECT data->>%'";

fn start_to_stand(cluster: &Cluster, address: &str, ttl: &str) -> Example {
    start(cluster, "leader.py", &["stand", "scheduler", address, ttl])
}

/// An observer of the lease, and what it must have printed.
struct Observed<'a> {
    cluster: &'a Cluster,
    observer: Example,
    seen: Vec<String>,
}

impl<'a> Observed<'a> {
    fn start(cluster: &'a Cluster) -> Self {
        cluster.execute("SELECT lease_define('scheduler', notify => true), lease_define('other', notify => true)");
        let observer = start(cluster, "leader.py", &["watch", "scheduler"]);
        Self { cluster, observer, seen: Vec::new() }
    }

    fn sees(&mut self, line: &str) {
        self.seen.push(line.to_owned());
        self.cluster.wait_for(PATIENCE, line, || self.observer.lines() == self.seen);
    }

    /// The last statement of the observer's session, with its time.
    fn last_query(&self) -> String {
        value(&mut self.cluster.client(), &format!("SELECT query_start || ' ' || pid FROM {OBSERVER}"))
    }

    /// For longer than an observer would wait that polls each second, and not about another lease.
    fn asks_nothing(&self) {
        let mut client = self.cluster.client();
        let last = self.last_query();
        execute(&mut client, "SELECT lease_release('other', token) FROM lease_acquire('other')");
        let idle = format!("SELECT clock_timestamp() > state_change + interval '3 s' FROM {OBSERVER}");
        self.cluster.wait_for(PATIENCE, "three seconds without a query of the observer", || value(&mut client, &idle));
        assert_eq!(self.last_query(), last);
    }
}

#[test]
fn observer_sees_each_leader_and_asks_nothing_in_between() {
    let cluster = server();
    let mut observed = Observed::start(&cluster);
    observed.sees("no leader");
    observed.asks_nothing();
    // It expires, and nothing is notified.
    let mut killed = start_to_stand(&cluster, "a:1", "0.5");
    observed.sees("a:1 leads");
    killed.kill();
    observed.sees("no leader");
    let mut revoked = start_to_stand(&cluster, "b:2", "300");
    observed.sees("b:2 leads");
    observed.asks_nothing();
    revoked.kill();
    cluster.execute("SELECT lease_revoke('scheduler')");
    observed.sees("no leader");

    let resigning = start_to_stand(&cluster, "c:3", "300");
    observed.sees("c:3 leads");
    terminate(resigning, &cluster);
    observed.sees("no leader");
}

#[test]
fn observer_sees_the_leader_that_began_while_it_was_disconnected() {
    let cluster = server();
    let mut observed = Observed::start(&cluster);
    observed.sees("no leader");
    // It begins to listen after the grant.
    execute(
        &mut cluster.client(),
        &format!(
            "BEGIN; SELECT lease_acquire('scheduler', '1 day', data => '{{\"address\": \"x:9\"}}');
             SELECT pg_terminate_backend(pid, 60000) FROM {OBSERVER}; COMMIT"
        ),
    );
    observed.sees("x:9 leads");
}

#[test]
fn resigning_leader_is_followed_at_once() {
    let cluster = server();
    let resigning = start_to_stand(&cluster, "b:2", "300");
    cluster.wait_for(PATIENCE, "a leader", || leads(&resigning));
    let next = start_to_stand(&cluster, "c:3", "300");
    wait_until_queued(&cluster);
    assert!(next.lines().is_empty(), "two leaders");
    terminate(resigning, &cluster);
    // The ttl of the one before is not over.
    cluster.wait_for(PATIENCE, "the next leader", || leads(&next));
    let tokens: Vec<i64> = column(&mut cluster.client(), "SELECT token FROM idgen.leases");
    assert_eq!(next.lines(), [format!("leads under token {}", tokens[0])]);
}
