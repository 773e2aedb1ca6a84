"""Runs a job under a lease, through PgBouncer in transaction mode. Needs psycopg 3.

Each step adds one to a counter, in a transaction of its own. `app` is the role of the job:

    CREATE TABLE counter (n bigint NOT NULL);
    INSERT INTO counter VALUES (0);
    GRANT SELECT, UPDATE ON counter TO app;

The first connection string names the pool of the work, the second one a pool for renewals. TTL is in seconds:

    python3 job.py 'host=127.0.0.1 port=6432 dbname=shop' 'host=127.0.0.1 port=6432 dbname=shop_renew' counter 30 100

Guaranteed: no step commits after another job has got the lease. Not guaranteed: the order of jobs that wait, and that
you learn the outcome of each step. If the answer to a commit is lost, the job ends with an error, and the step may be
done.
"""

import contextlib
import os
import random
import socket
import sys
import threading
import time

import psycopg

PATIENCE = 30.0     # Seconds for a step, and for any other answer of the server.


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


def connect(conninfo):
    # No prepared statements: they belong to a server connection, and each transaction can run on another one.
    db = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10)
    db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return db


def acquire(work, name, ttl):
    """Waits for the lease without a server connection: a waiting statement would keep one from the other clients."""
    attempt = "SELECT token FROM lease_try_acquire(%s, '10 ms', ttl => %s * interval '1 s')"
    while True:
        with deadline(work, PATIENCE):
            for token, in work.execute(attempt, [name, ttl]):
                return token
        time.sleep(random.uniform(0.05, 0.15) * ttl)


def renew(pool, name, token, ttl, done, lost):
    """Renews until `done` is set, or sets `lost`. Runs in a thread."""
    db = None
    while not done.wait(ttl / 3 if db else ttl / 6):
        try:
            db = db or connect(pool)
            with deadline(db, max(1, ttl / 3)):
                db.execute("SELECT lease_renew(%s, %s)", [name, token])
        except psycopg.errors.ObjectNotInPrerequisiteState:
            lost.set()      # Start no more steps. The running one is fenced.
            break
        except Exception:
            # That is no loss yet: connect again.
            if db:
                db.close()
            db = None
    if db:
        db.close()


def run_job(pool, renewal_pool, name, ttl, steps):
    with connect(pool) as work:
        token = acquire(work, name, ttl)
        done, lost = threading.Event(), threading.Event()
        renewer = threading.Thread(target=renew, args=[renewal_pool, name, token, ttl, done, lost], daemon=True)
        renewer.start()
        try:
            for step in steps:
                if lost.is_set():
                    raise RuntimeError(f'the lease "{name}" is lost')
                with deadline(work, PATIENCE), work.transaction():
                    # For this transaction only, because the next client uses the session too.
                    limit = f"{PATIENCE}s"
                    work.execute(
                        "SELECT lease_fence(%s, %s), set_config('idle_in_transaction_session_timeout', %s, true), "
                        "set_config('statement_timeout', %s, true)", [name, token, limit, limit])
                    step(work)
        finally:
            done.set()
            renewer.join()
            with contextlib.suppress(psycopg.Error), deadline(work, PATIENCE):
                work.execute("SELECT lease_release(%s, %s)", [name, token])


def add_one(db):
    # Loses additions if two jobs do it at the same time.
    n, = db.execute("SELECT n FROM counter").fetchone()
    db.execute("UPDATE counter SET n = %s", [n + 1])


if __name__ == "__main__":
    pool, renewal_pool, name, ttl, count = sys.argv[1:]
    run_job(pool, renewal_pool, name, float(ttl), [add_one] * int(count))
