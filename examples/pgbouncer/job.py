"""Runs a job under a lease, through PgBouncer in transaction mode. Needs psycopg 3.

Each step adds one to a counter, in a transaction of its own:

    CREATE TABLE counter (n bigint NOT NULL);
    INSERT INTO counter VALUES (0);

The first connection string names the pool of the work, the second one a pool for renewals. TTL is in seconds:

    python3 job.py 'host=127.0.0.1 port=6432 dbname=shop' 'host=127.0.0.1 port=6432 dbname=shop_renew' counter 30 100
"""

import contextlib
import random
import sys
import threading
import time

import psycopg


def connect(conninfo):
    # No prepared statements: they belong to a server connection, and each transaction can run on another one.
    return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)


def acquire(work, name, ttl):
    """Waits for the lease without a server connection: a waiting statement would keep one from the other clients."""
    attempt = "SELECT token FROM lease_try_acquire(%s, '10 ms', ttl => %s * interval '1 s')"
    while True:
        for token, in work.execute(attempt, [name, ttl]):
            return token
        time.sleep(random.uniform(0.05, 0.15) * ttl)


def run_job(pool, renewal_pool, name, ttl, steps):
    with connect(pool) as work, connect(renewal_pool) as beat:
        token = acquire(work, name, ttl)
        done, lost = threading.Event(), threading.Event()

        def renew():
            try:
                while not done.wait(ttl / 3):
                    beat.execute("SELECT lease_renew(%s, %s)", [name, token])
            except psycopg.Error:
                lost.set()      # Start no more steps. The running one is fenced.

        renewer = threading.Thread(target=renew, daemon=True)
        renewer.start()
        try:
            for step in steps:
                if lost.is_set():
                    raise RuntimeError(f'the lease "{name}" is lost')
                with work.transaction():
                    work.execute("SELECT lease_fence(%s, %s)", [name, token])
                    step(work)
        finally:
            done.set()
            renewer.join()
            with contextlib.suppress(psycopg.Error):
                beat.execute("SELECT lease_release(%s, %s)", [name, token])


def add_one(db):
    # Loses additions if two jobs do it at the same time.
    n, = db.execute("SELECT n FROM counter").fetchone()
    db.execute("UPDATE counter SET n = %s", [n + 1])


if __name__ == "__main__":
    pool, renewal_pool, name, ttl, count = sys.argv[1:]
    run_job(pool, renewal_pool, name, float(ttl), [add_one] * int(count))
