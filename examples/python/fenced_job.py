"""Runs a job under a lease: each step commits only while the job holds the lease.

Needs psycopg 3. The job imports the lines of its standard input, each in a transaction of its own:

    CREATE TABLE imported (id bigint PRIMARY KEY DEFAULT snowflake_next(), body text NOT NULL);

The lease `importer` needs no definition. TTL is in seconds, at least 0.3:

    python3 fenced_job.py 'host=db1 dbname=shop user=app' importer 30 < lines.txt

A second job waits until the first one has ended, or has been paused or cut off for a TTL. A job that wakes up after it
has lost the lease ends with an error, and its step is rolled back. In your own program, call run_job() with your steps.
"""

import contextlib
import sys
import threading

import psycopg


def run_job(conninfo, name, ttl, steps):
    """Waits for the lease, and calls each step with a connection that is in a fenced transaction."""
    # Autocommit: the lease is held when lease_acquire() returns. Without prepared statements, PgBouncer will do.
    options = dict(autocommit=True, prepare_threshold=None)
    with psycopg.connect(conninfo, **options) as work, psycopg.connect(conninfo, **options) as beat:
        acquired = work.execute("SELECT token FROM lease_acquire(%s, %s * interval '1 s')", [name, ttl])
        token, = acquired.fetchone()
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
                    # Fails if another job has the lease. None can take it over until this transaction ends.
                    work.execute("SELECT lease_fence(%s, %s)", [name, token])
                    step(work)
        finally:
            done.set()
            renewer.join()
            # A lost lease cannot be released. Without a connection, the lease ends by itself.
            with contextlib.suppress(psycopg.Error):
                work.execute("SELECT lease_release(%s, %s)", [name, token])


def import_lines(lines):
    """Yields a step for each line, and reports it after its transaction has committed."""
    for line in lines:
        body = line.rstrip("\n")
        yield lambda db: db.execute("INSERT INTO imported (body) VALUES (%s)", [body])
        print(f"imported {body}", flush=True)


if __name__ == "__main__":
    conninfo, name, ttl = sys.argv[1:]
    run_job(conninfo, name, float(ttl), import_lines(sys.stdin))
