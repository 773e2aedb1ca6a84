"""Runs a job under a lease: each step commits only while the job holds the lease.

Needs psycopg 3. The job imports the lines of its standard input, each in a transaction of its own. Run this SQL as the
owner of the table; `app` is the role of the job:

    CREATE TABLE imported (id bigint PRIMARY KEY DEFAULT snowflake_next(), body text NOT NULL);
    GRANT INSERT ON imported TO app;

The lease `importer` needs no definition. TTL is in seconds, at least 0.3:

    python3 fenced_job.py 'host=db1 dbname=shop user=app' importer 30 < lines.txt

In your own program, call run_job() with your steps. It needs two connections.

Guaranteed: no step commits after another job has got the lease. A second job waits until the first one has ended, or
has been paused or cut off for a TTL, and for PATIENCE if that was in the middle of a step. Not guaranteed: that you
learn the outcome of each step. If the answer to a commit is lost, the job ends with an error, and the step may be done.
"""

import contextlib
import os
import socket
import sys
import threading

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
    # Autocommit: the lease is held when lease_try_acquire() returns. Without prepared statements, PgBouncer will do.
    db = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10)
    # Steps must see what other jobs have committed.
    db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return db


def acquire(db, name, ttl):
    """Waits for the lease, in turns that have a deadline. Returns the token."""
    turn = "SELECT token FROM lease_try_acquire(%s, %s * interval '1 s', %s * interval '1 s')"
    while True:
        with deadline(db, PATIENCE):
            for token, in db.execute(turn, [name, PATIENCE / 2, ttl]):
                return token


def renew(conninfo, name, token, ttl, done, lost):
    """Renews until `done` is set, or sets `lost`. Runs in a thread."""
    db = None
    while not done.wait(ttl / 3 if db else ttl / 6):
        try:
            db = db or connect(conninfo)
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


def run_job(conninfo, name, ttl, steps):
    """Waits for the lease, and calls each step with a connection that is in a fenced transaction."""
    with connect(conninfo) as work:
        token = acquire(work, name, ttl)
        done, lost = threading.Event(), threading.Event()
        renewer = threading.Thread(target=renew, args=[conninfo, name, token, ttl, done, lost], daemon=True)
        renewer.start()
        try:
            for step in steps:
                if lost.is_set():
                    raise RuntimeError(f'the lease "{name}" is lost')
                with deadline(work, PATIENCE), work.transaction():
                    # Fails if another job has the lease. None can take it over until this transaction ends, so the
                    # server ends it if this process is paused, or killed while a statement waits.
                    limit = f"{PATIENCE}s"
                    work.execute(
                        "SELECT lease_fence(%s, %s), set_config('idle_in_transaction_session_timeout', %s, true), "
                        "set_config('statement_timeout', %s, true)", [name, token, limit, limit])
                    step(work)
        finally:
            done.set()
            renewer.join()
            # A lost lease cannot be released. Without a connection, the lease ends by itself.
            with contextlib.suppress(psycopg.Error), deadline(work, PATIENCE):
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
