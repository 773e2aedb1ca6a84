"""Works on one shard of a table. The slot of a lease is the shard, so each shard has at most one worker.

Needs psycopg 3 and Linux. Define as many slots as there are shards:

    SELECT lease_define('shards', slots => 4, ttl => '30 s');
    CREATE TABLE task (id bigint PRIMARY KEY DEFAULT snowflake_next(), shard int NOT NULL, amount bigint NOT NULL);
    CREATE INDEX ON task (shard, id);
    CREATE TABLE shard_total (shard int PRIMARY KEY, total numeric NOT NULL);

Start one process for each shard, and some spare ones, which wait for a shard. TTL is in seconds, at least 0.3:

    python3 sharded_worker.py 'host=db1 dbname=shop user=app' shards pod-7 30

A worker keeps the state of its shard in memory, here the total of all amounts, and saves it with each batch of tasks. A
worker that has lost its shard in a pause has outdated state. The fence keeps it from saving that. Without a connection
a worker ends: let a supervisor start it again.
"""

import signal
import sys
import threading
import time

import psycopg


def clock():
    """Seconds of CLOCK_BOOTTIME, the clock of leases: it never steps, and counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def run(conninfo, name, owner, ttl, stop):
    """Works on one shard after the other until `stop` is set."""
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, application_name=owner) as db:
        while not stop.is_set():
            # Wait in short turns, to see `stop`.
            row = db.execute(
                "SELECT slot, token FROM lease_try_acquire(%s, '1 s', %s * interval '1 s', %s)",
                [name, ttl, owner]).fetchone()
            if row:
                try:
                    work_on(db, name, *row, ttl, stop)
                except psycopg.errors.ObjectNotInPrerequisiteState as lost:
                    print(f"lost shard {row[0]}: {lost.diag.message_primary}", flush=True)


def work_on(db, name, shard, token, ttl, stop):
    """Raises 55000 when the shard has another worker."""
    print(f"works on shard {shard}", flush=True)
    renewed = clock()
    # The grant waited for the fenced transactions of all workers before, so this is their last state.
    row = db.execute("SELECT total FROM shard_total WHERE shard = %s", [shard]).fetchone()
    total = row[0] if row else 0
    while not stop.is_set():
        # A batch takes less than a third of the ttl. For longer ones, renew in another thread: see fenced_job.py.
        if clock() > renewed + ttl / 3:
            renewed = clock()
            db.execute("SELECT lease_renew(%s, %s)", [name, token])
        with db.transaction():
            # Fails if another worker has the shard. None can take it over until this transaction ends.
            db.execute("SELECT lease_fence(%s, %s)", [name, token])
            tasks = db.execute(
                "SELECT id, amount FROM task WHERE shard = %s ORDER BY id LIMIT 100", [shard]).fetchall()
            if tasks:
                total += sum(amount for _, amount in tasks)
                db.execute(
                    """INSERT INTO shard_total VALUES (%s, %s)
                       ON CONFLICT (shard) DO UPDATE SET total = excluded.total""", [shard, total])
                db.execute("DELETE FROM task WHERE id = ANY(%s)", [[id for id, _ in tasks]])
        if not tasks:
            stop.wait(min(ttl / 6, 1))
    db.execute("SELECT lease_release(%s, %s)", [name, token])


if __name__ == "__main__":
    conninfo, name, owner, ttl = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run(conninfo, name, owner, float(ttl), stop)
