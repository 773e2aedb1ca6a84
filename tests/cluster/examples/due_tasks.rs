//! Tasks with a due time, and their workers.

use idgen_testkit::sql::{PATIENCE, execute, expect_error, row, value, wait_for_one};
use idgen_testkit::{Cluster, Stop, rounds, seed};
use postgres::Client;

use crate::crew::Crew;
use crate::programs::DUE_TASKS;
use crate::{counter, run_python, server, shuffled, wait_for_a_wait_for_the_table, wait_until_expired};

/// Attempts of a task that says so raise an error, or cut the connection of the worker, up to a number of attempts.
const MISBEHAVIOR: &str = "
    CREATE FUNCTION misbehave() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        tried int := (SELECT attempts FROM due_task WHERE id = new.task_id);
    BEGIN
        IF tried <= (new.body->>'fails')::int THEN
            RAISE EXCEPTION 'attempt % fails', tried;
        ELSIF tried <= (new.body->>'cuts')::int THEN
            PERFORM pg_terminate_backend(pg_backend_pid());
        END IF;
        RETURN new;
    END $$;
    CREATE TRIGGER misbehave BEFORE INSERT ON reminder FOR EACH ROW EXECUTE FUNCTION misbehave();
    CREATE OR REPLACE FUNCTION due_task_backoff(attempts int) RETURNS interval LANGUAGE sql AS
        $$ SELECT interval '10 ms' * attempts $$";

fn cluster(shards: usize) -> Cluster {
    let cluster = server();
    let mut client = cluster.client();
    execute(&mut client, "CREATE ROLE app LOGIN");
    execute(&mut client, &DUE_TASKS.header_sql());
    execute(&mut client, MISBEHAVIOR);
    execute(
        &mut client,
        &format!(
            "SELECT lease_alter('due_tasks', slots => {shards});
             ALTER TABLE due_task DROP CONSTRAINT due_task_shard_check,
                                  ALTER shard SET DEFAULT floor({shards} * random())"
        ),
    );
    cluster
}

fn crew<'cluster>(cluster: &'cluster Cluster, ttl: &'static str) -> Crew<'cluster> {
    Crew::new(cluster, "python/due_tasks.py", "due_tasks", ttl)
}

/// Tasks that are due within half a second. Of a hundred, ten fail at first, five cut their connections, and two are poison.
fn add_tasks(client: &mut Client, count: usize) {
    execute(
        client,
        &format!(
            "INSERT INTO due_task (due, max_attempts, body)
             SELECT clock_timestamp() + random() * interval '500 ms', CASE WHEN n % 50 = 0 THEN 3 ELSE 100 END,
                    CASE WHEN n % 50 = 0 THEN '{{\"fails\": 1000}}' WHEN n % 10 = 1 THEN '{{\"fails\": 2}}'
                         WHEN n % 20 = 2 THEN '{{\"cuts\": 1}}' ELSE '{{}}' END::jsonb
             FROM generate_series(1, {count}) AS n"
        ),
    );
}

fn wait_until_none_waits(cluster: &Cluster, client: &mut Client) {
    let sql = "SELECT NOT EXISTS (SELECT FROM due_task WHERE state = 'waiting')";
    cluster.wait_for(PATIENCE, "all tasks to end", || value(client, sql));
}

/// Each task is done, with one reminder, or is poison, has failed, and has none.
fn assert_each_done_once(client: &mut Client, tasks: usize, poison: usize) {
    let wrong = "SELECT count(*) FROM due_task
                 LEFT JOIN (SELECT task_id AS id, count(*) AS reminders FROM reminder GROUP BY 1) AS made USING (id)
                 WHERE (state, coalesce(reminders, 0)) NOT IN (('done', 1), ('failed', 0)) OR started IS NOT NULL";
    assert_eq!(value::<i64>(client, wrong), 0, "a task was lost, or done twice");
    let counts = row(
        client,
        "SELECT count(*), (SELECT count(*) FROM due_task_failed WHERE attempts = 3 AND error ~ 'attempt 3 fails|cut off')
         FROM due_task",
    );
    assert_eq!([counts.get::<_, i64>(0), counts.get(1)], [tasks, poison].map(|count| count as i64));
}

#[test]
fn each_task_is_done_once_whatever_happens_to_workers() {
    let tasks = rounds(100, 1000).min(1000);
    let (shards, most) = (rounds(8, 160).min(160), rounds(4, 20).min(20));
    let cluster = cluster(shards);
    let mut client = cluster.client();
    let mut crew = crew(&cluster, if most > 4 { "3" } else { "1" }).with_at_most(most);
    crew.start(most / 2);
    let steps = rounds(10, 1000);
    for (step, random) in shuffled(steps as u64, seed()).into_iter().enumerate() {
        add_tasks(&mut client, tasks);
        match step % 5 {
            4 => {
                cluster.restart_by(Stop::Immediate);
                client = cluster.client();
            }
            _ => crew.disturb(random),
        }
        let are_few = format!("SELECT count(*) < {tasks} / 2 FROM due_task WHERE state = 'waiting'");
        cluster.wait_for(PATIENCE, "tasks to be done", || value(&mut client, &are_few));
    }
    crew.wait_until_fair(&mut client);
    wait_until_none_waits(&cluster, &mut client);
    assert_each_done_once(&mut client, steps * tasks, steps * tasks / 50);
    crew.end();
}

#[test]
fn next_worker_waits_for_the_task_of_a_paused_one() {
    let cluster = cluster(1);
    let (mut client, mut locker) = (cluster.client(), cluster.client());
    let mut crew = crew(&cluster, "0.5").patient();
    crew.start(1);
    crew.wait_until_fair(&mut client);
    execute(&mut locker, "BEGIN; LOCK TABLE reminder");
    execute(&mut client, "INSERT INTO due_task (body) VALUES ('{}'), ('{}')");
    wait_for_a_wait_for_the_table(&cluster);
    let guard = crew.pause("worker-0");
    let token = "SELECT token FROM idgen.leases WHERE name = 'due_tasks'";
    let before: i64 = value(&mut client, token);
    crew.start(1);
    wait_until_expired(&cluster, "due_tasks");
    let probes = counter(&mut client, "probes");
    cluster.wait_for(PATIENCE, "attempts to take over", || counter(&mut client, "probes") > probes + 3);
    assert_eq!(value::<i64>(&mut client, token), before, "two workers on one shard");
    execute(&mut locker, "COMMIT");
    guard.resume();
    wait_until_none_waits(&cluster, &mut client);
    assert_each_done_once(&mut client, 2, 0);
    crew.end();
}

/// Lines of Python before which a worker holds the only shard, and has taken the only task.
const TAKEN: &str = "
import sys, psycopg, due_tasks
from sharded_worker import Shards

db = psycopg.connect(sys.argv[1], autocommit=True)
shards = Shards('due_tasks', 'paused', 30)
shards.balance(db)
worker = due_tasks.Worker(db, shards, due_tasks.remind, [], most=1)
with db.transaction():
    worker.tasks = worker.take()
task = worker.tasks[0]
other = psycopg.connect(sys.argv[1], autocommit=True)
";

#[test]
fn worker_that_has_lost_its_shard_neither_runs_nor_takes_a_task() {
    let cluster = cluster(1);
    let mut client = cluster.client();
    execute(&mut client, "INSERT INTO due_task (body) VALUES ('{}'), ('{}')");
    let printed = run_python(
        &cluster,
        "due_tasks.py",
        &format!(
            "{TAKEN}
other.execute(\"SELECT lease_revoke('due_tasks'), lease_acquire('due_tasks')\")
# The first two take no other task after that.
for lost, stop in (worker.run, [1]), ((lambda: worker.fail(task, 'late')), [1]), (worker.take, []):
    worker.stop = stop
    try:
        with db.transaction():
            lost()
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        print(error.diag.message_primary)
"
        ),
    );
    assert_eq!(printed.matches("is not held").count(), 3, "{printed}");
    let counts = row(&mut client, "SELECT count(*), sum(attempts), (SELECT count(*) FROM reminder) FROM due_task");
    assert_eq!([0, 1, 2].map(|n| counts.get::<_, i64>(n)), [2, 1, 0]);
}

#[test]
fn task_that_was_deleted_or_taken_again_does_not_run() {
    for change in [
        "DELETE FROM due_task",
        "UPDATE due_task SET attempts = 2",
        "UPDATE due_task SET state = 'failed', started = NULL",
    ] {
        let cluster = cluster(1);
        let mut client = cluster.client();
        execute(&mut client, "INSERT INTO due_task (body) VALUES ('{}')");
        let lines = format!("{TAKEN}\nother.execute(\"{change}\")\nworker.run()\nprint(worker.tasks)");
        assert!(run_python(&cluster, "due_tasks.py", &lines).trim().ends_with("[]"), "{change}");
        assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM reminder"), 0, "{change}");
    }
}

#[test]
fn worker_that_ends_gives_back_what_it_has_not_run() {
    let cluster = cluster(1);
    let mut client = cluster.client();
    execute(&mut client, "INSERT INTO due_task (body) VALUES ('{}')");
    run_python(&cluster, "due_tasks.py", &format!("{TAKEN}\nworker.stop = [1]\nworker.work()"));
    let is_new = "SELECT attempts = 0 AND started IS NULL AND state = 'waiting' FROM due_task";
    assert!(value::<bool>(&mut client, is_new));
}

/// Such as the cursor of the last statement.
#[test]
fn task_whose_work_returns_no_timedelta_is_done() {
    let cluster = cluster(1);
    let mut client = cluster.client();
    execute(&mut client, "INSERT INTO due_task (body) VALUES ('{}')");
    let handle = "worker.handle = lambda db, task: db.execute('SELECT 1')";
    run_python(&cluster, "due_tasks.py", &format!("{TAKEN}\n{handle}\nworker.run()"));
    assert_eq!(value::<String>(&mut client, "SELECT concat(state, error) FROM due_task"), "done");
}

/// Also where the text of a time has the name of a zone, and the server does not know it.
#[test]
fn tasks_are_done_in_any_style_of_dates() {
    let cluster = cluster(1);
    cluster.execute("ALTER DATABASE postgres SET datestyle = 'SQL, DMY'");
    cluster.execute("ALTER DATABASE postgres SET timezone = 'Asia/Jakarta'");
    let mut client = cluster.client();
    execute(&mut client, "INSERT INTO due_task (body) SELECT '{}' FROM generate_series(1, 200)");
    let mut crew = crew(&cluster, "30");
    crew.start(1);
    wait_until_none_waits(&cluster, &mut client);
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM due_task WHERE state = 'done'"), 200);
}

#[test]
fn task_that_fails_is_overtaken_and_poison_is_shown() {
    let cluster = cluster(1);
    let mut client = cluster.client();
    execute(
        &mut client,
        "CREATE OR REPLACE FUNCTION due_task_backoff(attempts int) RETURNS interval LANGUAGE sql AS $$ SELECT interval '1 day' $$;
         INSERT INTO due_task (body, max_attempts) VALUES ('{\"fails\": 9}', 3), ('{\"cuts\": 9}', 3), ('{\"fails\": 2}', 3);
         INSERT INTO due_task (body) SELECT '{}' FROM generate_series(1, 10)",
    );
    let mut crew = crew(&cluster, "1");
    crew.start(1);
    // All are in one batch, whose second task cuts the connection. So the third one is tried once more in the first turn.
    for (waiting, done, failed) in [(3, 10, 0), (1, 11, 1), (0, 11, 2)] {
        let counts = format!(
            "(SELECT FROM due_task HAVING (count(*) FILTER (WHERE state = 'waiting' AND due > now()),
                                           count(*) FILTER (WHERE state = 'done'),
                                           count(*) FILTER (WHERE state = 'failed')) = ({waiting}, {done}, {failed})) AS counts"
        );
        wait_for_one(&cluster, "all others to be done", &counts);
        execute(&mut client, "UPDATE due_task SET due = now() WHERE state = 'waiting'");
    }
    assert_each_done_once(&mut client, 13, 2);
    crew.end();
}

/// Tasks for later, and the entries of those that are done, are not read. The planner has seen an empty table.
#[test]
fn a_task_reads_few_rows_of_a_large_table() {
    let cluster = cluster(1);
    let mut client = cluster.client();
    let token: i64 = value(&mut client, "SELECT token FROM lease_acquire('due_tasks')");
    execute(&mut client, "ALTER TABLE due_task SET (autovacuum_enabled = false)");
    let run = |client: &mut Client| {
        execute(client, "INSERT INTO due_task (body) VALUES ('{}')");
        let since = "now() - interval '1 min'";
        let take = format!("SELECT id FROM due_task_take('due_tasks', ARRAY[0], ARRAY[{token}], 50, {since})");
        let id: i64 = value(client, &take);
        let hold = format!("SELECT due_task_hold('due_tasks', ARRAY[{token}], ARRAY[{id}], ARRAY[1])");
        assert_eq!(value::<i64>(client, &hold), id);
        execute(client, &format!("SELECT due_task_end(ARRAY[{id}], ARRAY[NULL::interval])"));
        execute(client, &format!("SELECT due_task_wait(ARRAY[0], {since})"));
    };
    // The plans are kept from then on.
    (0..10).for_each(|_| run(&mut client));
    execute(
        &mut client,
        "INSERT INTO due_task (body, due) SELECT '{}', now() + n * interval '1 s'
         FROM generate_series(-20000, 20000) AS n WHERE n NOT BETWEEN -3600 AND 3600;
         UPDATE due_task SET state = 'done' WHERE due < now()",
    );
    let read = |client: &mut Client| {
        execute(client, "SELECT pg_stat_force_next_flush()");
        let rows = "SELECT sum(read)::bigint FROM (
                        SELECT seq_tup_read AS read FROM pg_stat_user_tables WHERE relname = 'due_task'
                        UNION ALL SELECT idx_tup_read FROM pg_stat_user_indexes WHERE relname = 'due_task') AS counter";
        value::<i64>(client, rows)
    };
    let before = read(&mut client);
    run(&mut client);
    let rows = read(&mut client) - before;
    // With the ten that were done before.
    assert!(rows < 50, "{rows} rows");
    expect_error(&mut client, "INSERT INTO due_task (body, due) VALUES ('{}', 'infinity')", "23514");
}
