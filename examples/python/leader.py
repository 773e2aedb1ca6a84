"""Elects one leader among any number of processes, by a lease. Observers see which one leads.

Needs psycopg 3 and Linux. Define the lease once, so that PostgreSQL notifies observers:

    SELECT lease_define('scheduler', notify => true);

Any role can stand and watch. TTL is in seconds, at least 0.3:

    python3 leader.py 'host=db1 dbname=shop user=app' stand scheduler 10.0.0.7:8080 30
    python3 leader.py 'host=db1 dbname=shop user=app' watch scheduler

A leader that gets SIGTERM resigns, and the next candidate leads at once. In your own program, make a Candidate, and ask
leads() before each thing that only the leader may do.

Guaranteed: leads() is true in one process at a time, even without a connection, because it compares times. A child of
the leader does not lead. Not guaranteed: that there is a leader. If it is killed, paused or cut off, the next one leads
after a TTL. Nor what happens after you have asked: a process can be paused right then. So call lease_fence(name, token)
in each transaction that writes: see fenced_job.py. Send the token with requests to other stores, and let them refuse a
token lower than one that they have seen. The fence also helps where times do not: after a lease_revoke(), and after a
failover to a standby that has not received the last grant.
"""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time

import psycopg
from psycopg.types.json import Jsonb

PATIENCE = 10.0     # Seconds for an answer of the server.

# Unlike print(), it raises nothing if the device is full.
log = logging.getLogger(__name__)


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


def connect(conninfo):
    # Without prepared statements, PgBouncer will do for candidates.
    return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, connect_timeout=round(PATIENCE))


class Candidate:
    """Stands for election in a thread. `error` is why its last attempt has failed, None if it has not."""

    def __init__(self, conninfo, name, address, ttl):
        self.conninfo, self.name, self.address, self.ttl = conninfo, name, address, ttl
        # The token, the time up to which this process leads under it, and the process: a child has no claim.
        self.claim = None, 0, 0
        self.process, self.error = os.getpid(), None
        self.resigned = threading.Event()
        self.thread = threading.Thread(target=self.stand, daemon=True)
        self.thread.start()

    def leads(self):
        """Returns the token while this process leads, otherwise None."""
        token, until, process = self.claim
        return token if clock() < until and process == os.getpid() else None

    def resign(self):
        """Gives the lease back. Call it when nothing is running that only the leader may do."""
        if self.process == os.getpid():
            self.resigned.set()
            self.thread.join()

    # All that follows runs in the thread.

    def stand(self):
        db = token = None
        while not self.resigned.is_set():
            pause = self.ttl / 3
            try:
                db = db or connect(self.conninfo)
                # The lease lasts a ttl from some time after this one, so it is held for a ttl from here. The server's
                # clock can run a little faster: end a hundredth earlier.
                asked = clock()
                token = self.renew(db, token) if token else self.acquire(db)
                if token:
                    self.claim = token, asked + 0.99 * self.ttl, self.process
                else:
                    # Another one leads: wait for the lease again.
                    pause = 0
                self.error = None
            except Exception as error:
                # The claim stays, and ends by itself.
                self.error, pause = error, min(self.ttl / 6, 1)
                log.warning("%s", error)
                if db:
                    db.close()
                db = None
            self.resigned.wait(pause)
        # From here on leads() is None: only then may another one lead.
        self.claim = None, 0, 0
        if db:
            if token:
                # A lost lease cannot be released. Without a connection, the lease ends by itself.
                with contextlib.suppress(Exception):
                    self.call(db, "SELECT lease_release(%s, %s)", self.name, token)
            db.close()

    def acquire(self, db):
        """Waits for a while until the lease is free. Returns its token, or None."""
        row = self.call(
            db,
            """SELECT token FROM lease_try_acquire(%s, %s * interval '1 s', ttl => %s * interval '1 s',
                                                   owner => %s, data => %s)""",
            self.name, min(self.ttl / 3, 1), self.ttl, self.address, Jsonb({"address": self.address}))
        return row and row[0]

    def renew(self, db, token):
        """Returns the token, or None if the lease has another holder."""
        try:
            self.call(db, "SELECT lease_renew(%s, %s)", self.name, token)
            return token
        except psycopg.errors.ObjectNotInPrerequisiteState:
            self.claim = None, 0, 0
            return None

    def call(self, db, sql, *arguments):
        # So that a second attempt fits into the ttl.
        with deadline(db, min(PATIENCE, 1 + self.ttl / 3)):
            return db.execute(sql, arguments).fetchone()


class Observer:
    """Follows the leader. Sends a query when the leader may have changed, and otherwise once in PATIENCE.

    Needs a connection of its own: PgBouncer in transaction mode has no LISTEN, and a standby has none either.
    """

    def __init__(self, conninfo, name):
        self.conninfo, self.name = conninfo, name
        self.payloads = []

    def leaders(self):
        """Yields the address of each new leader, and None when there is none.

        It can be outdated when you read it. So the leader that you ask must ask leads() before it acts.
        """
        last = ""
        while True:
            try:
                with connect(self.conninfo) as db:
                    # Notifications that arrive with the answer to a query.
                    db.add_notify_handler(lambda note: self.payloads.append(note.payload))
                    # First listen, then read: otherwise a change between the two is missed. After a reconnection, too.
                    with deadline(db, PATIENCE):
                        db.execute("LISTEN idgen_lease")
                    while True:
                        self.payloads.clear()
                        address, left = self.read(db)
                        if address != last:
                            yield address
                        last = address
                        self.wait(db, left)
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
                log.warning("%s", error)
                time.sleep(0.5)

    def read(self, db):
        """Returns the address of the leader and the seconds until its time is over, or None for each."""
        with deadline(db, PATIENCE):
            row = db.execute(
                """SELECT data->>'address', extract(epoch FROM expires_at - clock_timestamp())::float8
                   FROM idgen.leases WHERE name = %s AND state = 'held'""", [self.name]).fetchone()
        return row or (None, None)

    def wait(self, db, left):
        """Waits for a notification about the lease, or until the time of its leader is over.

        A renewal sends no notification, and a leader that vanishes sends none until another one leads. A connection
        that is cut may send nothing either, so the wait ends after PATIENCE.
        """
        end = clock() + (PATIENCE if left is None else min(left, PATIENCE))
        poll = select.poll()
        poll.register(db.fileno(), select.POLLIN)
        while not any(map(self.is_about_the_lease, self.payloads)):
            self.payloads.clear()
            if not poll.poll(1000 * max(0, end - clock())):
                return
            db.pgconn.consume_input()
            while note := db.pgconn.notifies():
                self.payloads.append(note.extra.decode(errors="replace"))

    def is_about_the_lease(self, payload):
        try:
            return json.loads(payload)["name"] == self.name
        except Exception:
            return True     # Any role can send anything. It is a hint to read again, and not more.


def stand(conninfo, name, address, ttl):
    candidate = Candidate(conninfo, name, address, float(ttl))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    led = None
    try:
        while True:
            token = candidate.leads()
            if token != led:
                print(f"leads under token {token}" if token else "follows", flush=True)
            led = token
            time.sleep(0.05)
    finally:
        candidate.resign()


if __name__ == "__main__":
    conninfo, action, *arguments = sys.argv[1:]
    if action == "stand":
        stand(conninfo, *arguments)
    else:
        for address in Observer(conninfo, *arguments).leaders():
            print(f"{address} leads" if address else "no leader", flush=True)
