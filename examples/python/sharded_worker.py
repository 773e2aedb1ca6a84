"""Works on one shard of a table. The slot of a lease is the shard, so each shard has at most one worker.

Needs psycopg 3 and Linux. Define as many slots as there are shards. `app` is the role of the workers:

    SELECT lease_define('shards', slots => 4, ttl => '30 s');
    CREATE TABLE task (
        id bigint PRIMARY KEY DEFAULT snowflake_next(),
        shard int NOT NULL CHECK (shard BETWEEN 0 AND 3),
        amount bigint NOT NULL);
    CREATE INDEX ON task (shard, id);
    CREATE TABLE shard_total (shard int PRIMARY KEY, total numeric NOT NULL);
    GRANT SELECT, UPDATE, DELETE ON task TO app;
    GRANT SELECT, INSERT, UPDATE ON shard_total TO app;

Start one process for each shard, and some spare ones, which wait for a shard. TTL is in seconds, at least 0.3:

    python3 sharded_worker.py 'host=db1 dbname=shop user=app' shards pod-7 30

A worker keeps the state of its shard in memory, here the total of all amounts, and saves it with each batch of tasks.
SIGTERM ends it after the batch, and its shard is free at once.

Guaranteed: each task counts once, with the amount that it has when it is deleted. A worker that has lost its shard in a
pause has outdated state, and the fence keeps it from saving that. Not guaranteed: that a shard always has a worker. If
one is paused or cut off, its shard waits for a TTL, and for PATIENCE if that was in the middle of a batch.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time

import psycopg

PATIENCE = 10.0     # Seconds for a batch, and for any other answer of the server.


def clock():
    """Seconds of CLOCK_BOOTTIME, the clock of leases: it never steps, and counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextlib.contextmanager
def deadline(db, seconds):
    """Cuts the connection when the time is over. Nothing else ends the wait for a server process that is frozen."""
    # A duplicate: the number of a closed descriptor may be used again.
    end = socket.socket(fileno=os.dup(db.fileno()))
    timer = threading.Timer(seconds, end.shutdown, [socket.SHUT_RDWR])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        end.close()


def call(db, sql, arguments):
    with deadline(db, PATIENCE):
        return db.execute(sql, arguments).fetchone()


def run(conninfo, name, owner, ttl, stop):
    """Works on one shard after the other until `stop` is not empty. Connects again if the connection is cut."""
    while not stop:
        try:
            with psycopg.connect(
                    conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10, application_name=owner) as db:
                # Each batch must see what others have committed.
                db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                while not stop:
                    work_on_a_shard(db, name, owner, ttl, stop)
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
            print(error, file=sys.stderr)
            time.sleep(1)


def work_on_a_shard(db, name, owner, ttl, stop):
    # Wait in short turns, to see `stop`.
    granted = call(
        db, "SELECT slot, token FROM lease_try_acquire(%s, '1 s', %s * interval '1 s', %s)", [name, ttl, owner])
    if not granted:
        return
    shard, token = granted
    print(f"works on shard {shard}", flush=True)
    try:
        work_on(db, name, shard, token, ttl, stop)
        call(db, "SELECT lease_release(%s, %s)", [name, token])
    except psycopg.errors.ObjectNotInPrerequisiteState as lost:
        print(f"lost shard {shard}: {lost.diag.message_primary}", flush=True)


def work_on(db, name, shard, token, ttl, stop):
    """Raises 55000 when the shard has another worker."""
    renewed = clock()
    # The grant waited for the fenced transactions of all workers before, so this is their last state.
    row = call(db, "SELECT total FROM shard_total WHERE shard = %s", [shard])
    total = row[0] if row else 0
    while not stop:
        # A batch takes less than a third of the ttl. For longer ones, renew in another thread: see fenced_job.py.
        if clock() > renewed + ttl / 3:
            renewed = clock()
            call(db, "SELECT lease_renew(%s, %s)", [name, token])
        with deadline(db, PATIENCE), db.transaction():
            # Fails if another worker has the shard. None can take it over until this transaction ends, so the server
            # ends it if this process is paused.
            db.execute(
                "SELECT lease_fence(%s, %s), set_config('idle_in_transaction_session_timeout', %s, true)",
                [name, token, f"{PATIENCE}s"])
            # What is deleted, counts: a task may change until then.
            tasks = db.execute(
                """DELETE FROM task WHERE id = ANY(ARRAY(
                       SELECT id FROM task WHERE shard = %s ORDER BY id LIMIT 100 FOR UPDATE))
                   RETURNING amount""", [shard]).fetchall()
            if tasks:
                total += sum(amount for amount, in tasks)
                db.execute(
                    """INSERT INTO shard_total VALUES (%s, %s)
                       ON CONFLICT (shard) DO UPDATE SET total = excluded.total""", [shard, total])
        if not tasks:
            time.sleep(min(ttl / 6, 1))


if __name__ == "__main__":
    conninfo, name, owner, ttl = sys.argv[1:]
    # A list, because Event.set() in a handler of signals can wait for the code that it interrupts.
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    run(conninfo, name, owner, float(ttl), stop)
