//! A job whose steps commit only while it holds a lease.

use idgen_testkit::sql::{PATIENCE, column, execute, value, wait_for_one};
use idgen_testkit::{Cluster, Example};

use crate::{
    counter, create_tables, finish, run_python, server, start, wait_for_a_wait_for_the_fence,
    wait_for_a_wait_for_the_table, wait_until_expired, wait_until_queued,
};

fn cluster() -> Cluster {
    let cluster = server();
    create_tables(&mut cluster.client(), "fenced_job.py");
    cluster
}

fn job(cluster: &Cluster, ttl: &str) -> Example {
    start(cluster, "fenced_job.py", &["importer", ttl])
}

/// Lets the job import a line, and waits until it has committed.
fn import(cluster: &Cluster, job: &mut Example, line: &str) {
    job.send(line);
    job.wait_for_line(cluster, &format!("imported {line}"));
}

fn imported(cluster: &Cluster) -> Vec<String> {
    column(&mut cluster.client(), "SELECT body FROM imported ORDER BY id")
}

#[test]
fn fenced_job_renews_its_lease_and_releases_it_at_the_end() {
    let cluster = cluster();
    let mut client = cluster.client();
    let mut job = job(&cluster, "0.6");
    import(&cluster, &mut job, "first");
    // Renewed three times in a ttl, the lease is several ttls old.
    cluster.wait_for(PATIENCE, "renewals", || counter(&mut client, "renewals") > 6);
    import(&cluster, &mut job, "second");
    finish(job, &cluster);
    assert_eq!(imported(&cluster), ["first", "second"]);
    assert_eq!((counter(&mut client, "take_overs"), counter(&mut client, "releases")), (0, 1));
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.leases"), 0);
}

#[test]
fn second_fenced_job_waits_until_the_first_has_ended() {
    let cluster = cluster();
    let mut first = job(&cluster, "300");
    import(&cluster, &mut first, "of the first");
    let mut second = job(&cluster, "300");
    second.send("of the second");
    wait_until_queued(&cluster);
    import(&cluster, &mut first, "of the first again");
    assert!(second.lines().is_empty(), "two jobs run at once");
    finish(first, &cluster);
    second.wait_for_line(&cluster, "imported of the second");
    finish(second, &cluster);
    assert_eq!(imported(&cluster), ["of the first", "of the first again", "of the second"]);
}

#[test]
fn fenced_job_that_lost_its_lease_in_a_pause_commits_nothing() {
    let cluster = cluster();
    let mut paused = job(&cluster, "0.5");
    import(&cluster, &mut paused, "before the pause");
    let guard = paused.pause();
    // It reads this line as soon as it resumes.
    paused.send("after the pause");
    let mut next = job(&cluster, "60");
    import(&cluster, &mut next, "of the next job");
    guard.resume();
    let (status, errors) = paused.wait(&cluster);
    assert!(!status.success() && (errors.contains("is lost") || errors.contains("is not held")), "{status}: {errors}");
    import(&cluster, &mut next, "of the next job again");
    finish(next, &cluster);
    assert_eq!(imported(&cluster), ["before the pause", "of the next job", "of the next job again"]);
}

#[test]
fn next_fenced_job_waits_for_the_transaction_of_a_paused_one() {
    let cluster = cluster();
    let mut locker = cluster.client();
    execute(&mut locker, "BEGIN; LOCK TABLE imported");
    let mut paused = job(&cluster, "0.5");
    paused.send("of the paused job");
    wait_for_a_wait_for_the_table(&cluster);
    let guard = paused.pause();
    let mut next = job(&cluster, "60");
    next.send("of the next job");
    wait_until_expired(&cluster, "importer");
    wait_for_a_wait_for_the_fence(&cluster);
    execute(&mut locker, "COMMIT");
    // Its statement has ended, its transaction has not.
    wait_for_one(&cluster, "the job to be idle", "pg_stat_activity WHERE state = 'idle in transaction'");
    wait_for_a_wait_for_the_fence(&cluster);
    guard.resume();
    paused.wait_for_line(&cluster, "imported of the paused job");
    paused.end_input();
    paused.wait(&cluster);
    next.wait_for_line(&cluster, "imported of the next job");
    finish(next, &cluster);
    assert_eq!(imported(&cluster), ["of the paused job", "of the next job"]);
}

/// Its process waits for a row, and nothing tells it that nobody waits for the answer.
#[test]
fn next_fenced_job_does_not_wait_for_what_a_killed_one_waits_for() {
    let cluster = cluster();
    let lines = "
import fenced_job, os, psycopg, sys, threading
fenced_job.PATIENCE = 1
def wait_and_be_killed(db):
    threading.Timer(0.5, os._exit, [0]).start()
    db.execute('LOCK TABLE imported')
start, is_locked = os.pipe()
child = os.fork()
if child == 0:
    os.read(start, 1)
    fenced_job.run_job(sys.argv[1], 'importer', 1, [wait_and_be_killed])
with psycopg.connect(sys.argv[1]) as other, psycopg.connect(sys.argv[1], autocommit=True) as following:
    other.execute('LOCK TABLE imported')
    os.write(is_locked, b'.')
    os.waitpid(child, 0)
    following.execute(\"SET lock_timeout = '30 s'\")
    following.execute(\"SELECT lease_acquire('importer')\")
print('acquired')";
    assert_eq!(run_python(&cluster, "fenced_job.py", lines), "acquired\n");
}
