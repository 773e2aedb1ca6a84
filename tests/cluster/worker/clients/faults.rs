//! Faults of the clients: their server restarts, does not replicate, is silent or refuses them, or they fork.

use std::path::PathBuf;
use std::time::Duration;

use idgen_testkit::grants::{Seen, assert_ids_granted, rectangles, time_us_of, worker_id_of};
use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{PATIENCE, execute, row, value};
use idgen_testkit::{Example, Stop};

use super::{ENDLESS, Instance, Java, Language, Python, Site, builder};

/// Kills a client and returns its ids, which increase and lie inside its rectangle.
fn ids_of(site: &Site, owner: &str, instance: &mut Instance) -> Vec<i64> {
    instance.0.kill();
    let ids = instance.ids();
    assert_increasing(&ids);
    assert_all_granted(site, owner, &ids);
    ids
}

fn assert_all_granted(site: &Site, owner: &str, ids: &[i64]) {
    let granted = rectangles(&mut site.cluster.client());
    assert_ids_granted(&granted, &[Seen { data_dir: PathBuf::from(owner), ids: ids.to_vec() }]);
}

fn wait_for_ids(site: &Site, instance: &Instance) {
    site.cluster.wait_for(PATIENCE, "ids", || instance.last().is_some());
}

fn continues_after_a_restart_of_its_server(language: Language) {
    // One restart only for Java, whose client makes many more ids to check.
    let ways: &[Stop] = match language {
        Python => &[Stop::Fast, Stop::Immediate],
        Java => &[Stop::Immediate],
    };
    let site = Site::new(builder(), 4);
    let mut instance = site.start(language, "a", "6", ENDLESS);
    for how in ways {
        wait_for_ids(&site, &instance);
        site.cluster.restart_by(*how);
        // This needs a renewal after the restart.
        instance.wait_for_time(&site.cluster, site.granted("a").2);
    }
    ids_of(&site, "a", &mut instance);
}

fn makes_no_ids_before_its_grant_is_replicated(language: Language) {
    let site = Site::new(builder(), 4);
    let standby = site.cluster.standby_builder().synchronous().start();
    standby.stop(Stop::Fast);
    let mut instance = site.start(language, "a", "6", ENDLESS);
    let mut client = site.cluster.client();
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
                  WHERE state = 'active' AND query ~ 'worker_' AND wait_event IS NOT NULL";
    site.cluster.wait_for(PATIENCE, "ids or the end", || {
        execute(&mut client, cancel);
        instance.last().is_some() || instance.0.has_exited()
    });
    assert_eq!(instance.last(), None, "an id of a grant that no standby has");
    let (status, errors) = instance.0.wait(&site.cluster);
    assert!(!status.success() && errors.contains("there is no worker lease yet: "), "{status}: {errors}");

    standby.start_again();
    let mut instance = site.start(language, "b", "6", ENDLESS);
    wait_for_ids(&site, &instance);
    ids_of(&site, "b", &mut instance);
}

fn says_how_long_it_waits_for_its_id_times(language: Language) {
    let site = Site::new(builder(), 1);
    let before = "SELECT worker_release('p', token) FROM worker_acquire('p', ttl => '30 s')";
    execute(&mut site.cluster.client(), before);
    let instance = site.start(language, "a", "6", ENDLESS);
    let is_told = || instance.0.errors().contains("worker id 0 of pool \"p\" can be used in ");
    site.cluster.wait_for(PATIENCE, "the notice", is_told);
}

fn refuses_a_worker_id_that_does_not_fit(language: Language) {
    let site = Site::with_pool(builder(), "first => 1023, count => 2");
    let mut fits = site.start(language, "fits", "6", ENDLESS);
    wait_for_ids(&site, &fits);
    let mut instance = site.start(language, "a", "6", ENDLESS);
    let (status, errors) = instance.0.wait(&site.cluster);
    assert!(!status.success() && errors.contains("worker id 1024 does not fit into 10 bits"), "{status}: {errors}");
    assert_eq!(instance.ids(), [0; 0]);
    let held: i64 = value(&mut site.cluster.client(), "SELECT count(*) FROM idgen.workers WHERE state = 'held'");
    assert_eq!(held, 1, "worker id 1024 was released");
    assert!(ids_of(&site, "fits", &mut fits).iter().all(|id| worker_id_of(*id) == 1023));
}

/// Renewals are due every 2 s, so ids of 3 s later were made during one.
const DURING_A_RENEWAL: Duration = Duration::from_secs(3);

fn wait_for_ids_during_a_renewal(site: &Site, instance: &Instance) {
    wait_for_ids(site, instance);
    site.proxy.stop_forwarding();
    let last = instance.last().expect("the client has made ids");
    instance.wait_for_time(&site.cluster, time_us_of(last) + DURING_A_RENEWAL.as_micros() as i64);
}

fn stops_inside_its_rectangle_when_a_renewal_is_not_answered(language: Language) {
    let site = Site::new(builder(), 1);
    let mut instance = site.start(language, "a", "6", ENDLESS);
    wait_for_ids_during_a_renewal(&site, &instance);
    let (status, errors) = instance.0.wait(&site.cluster);
    assert!(!status.success() && errors.contains("the worker lease is over: "), "{status}: {errors}");
    ids_of(&site, "a", &mut instance);
}

fn continues_when_a_silent_server_answers_again(language: Language) {
    // If its renewal arrives late, the client takes another worker id.
    let site = Site::new(builder(), 4);
    let mut instance = site.start(language, "a", "6", ENDLESS);
    wait_for_ids_during_a_renewal(&site, &instance);
    let until_us = site.granted("a").2;
    site.proxy.resume_forwarding();
    instance.wait_for_time(&site.cluster, until_us);
    ids_of(&site, "a", &mut instance);
}

fn takes_another_worker_id_when_its_token_is_used_elsewhere(language: Language) {
    let site = Site::new(builder(), 4);
    let mut instance = site.start(language, "a", "6", ENDLESS);
    wait_for_ids(&site, &instance);
    let mut client = site.cluster.client();
    let token = row(&mut client, "SELECT token, worker_id FROM idgen.worker_id WHERE token IS NOT NULL");
    let (token, first): (i64, i32) = (token.get(0), token.get(1));
    let renew = format!("SELECT worker_renew('p', {token}, not_after) FROM idgen.worker_id WHERE token = {token}");
    execute(&mut client, &renew);
    site.cluster
        .wait_for(PATIENCE, "another worker id", || instance.last().is_some_and(|id| worker_id_of(id) != first));
    ids_of(&site, "a", &mut instance);
}

/// Forks, and both processes print their ids since then. The parent continues beyond its rectangle from before the fork.
const FORKING: &str = "
import os, sys, time, worker_ids

conninfo, pool, owner, ttl = sys.argv[1:]
ids = worker_ids.WorkerIds(conninfo, pool, owner, float(ttl))
made = [ids.next() for _ in range(1000)]
child = os.fork()
end = time.monotonic() + (2 * float(ttl) if child else 0)
while len(made) < 2000 or time.monotonic() < end:
    made.append(ids.next())
    time.sleep(0.001)
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    made = made[1000:]
print(*made, sep='\\n', flush=True)
ids.close()
";

#[test]
fn forked_child_of_a_python_client_acquires_its_own_worker_id() {
    let site = Site::new(builder(), 4);
    // Beside the example, which it imports.
    let forking = Example::copy(&site.cluster, Python.path()).with_file_name("forking.py");
    std::fs::write(&forking, FORKING).expect("a writable directory");
    let mut command = site.cluster.program("/usr/bin/python3");
    command.arg(forking).args([&site.address(Python), "p", "forking", "3"]);
    let output = command.env("PYTHONDONTWRITEBYTECODE", "1").output().expect("make dev-deps installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("ASCII");
    let ids: Vec<i64> = printed.lines().map(|line| line.parse().expect("an id")).collect();
    // The child prints before the parent.
    let (of_child, of_parent) = ids.split_at(1000);
    assert_increasing(of_child);
    assert_increasing(of_parent);
    assert_ne!(worker_id_of(of_child[0]), worker_id_of(of_parent[0]));
    assert_all_granted(&site, "forking", &ids);
    assert_distinct(ids);
}

in_both_languages! {
    continues_after_a_restart_of_its_server,
    makes_no_ids_before_its_grant_is_replicated,
    says_how_long_it_waits_for_its_id_times,
    refuses_a_worker_id_that_does_not_fit,
    stops_inside_its_rectangle_when_a_renewal_is_not_answered,
    continues_when_a_silent_server_answers_again,
    takes_another_worker_id_when_its_token_is_used_elsewhere,
}
