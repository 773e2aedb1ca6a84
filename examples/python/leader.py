"""Elects one leader among any number of processes, by a lease. Observers see which one leads.

Needs psycopg 3 and Linux. Define the lease once, so that PostgreSQL notifies observers. TTL is in seconds, at least 0.3:

    psql -c "SELECT lease_define('scheduler', notify => true)"
    python3 leader.py 'host=db1 dbname=shop user=app' stand scheduler 10.0.0.7:8080 30
    python3 leader.py 'host=db1 dbname=shop user=app' watch scheduler

A leader that gets SIGTERM resigns, and the next candidate leads at once. If the leader is killed, paused or cut off,
the next one leads after a TTL. In your own program, make a Candidate, and ask leads() before each thing that only the
leader may do.

leads() compares times, so it is right even without a connection. But a process can be paused after it has asked. So
call lease_fence(name, token) in each transaction that writes: see fenced_job.py. Send the token with requests to other
stores, and let them refuse a token lower than one that they have seen. The fence also helps where times do not: after a
lease_revoke(), and after a failover to a standby that has not received the last grant.
"""

import contextlib
import json
import select
import signal
import sys
import threading
import time

import psycopg
from psycopg.types.json import Jsonb


def clock():
    """Seconds of CLOCK_BOOTTIME, the clock of leases: it never steps, and counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def connect(conninfo, timeout):
    # These end the wait for a server that is silent. Without prepared statements, PgBouncer will do.
    seconds = max(2, round(timeout))
    return psycopg.connect(
        conninfo, autocommit=True, prepare_threshold=None, connect_timeout=seconds, keepalives_idle=seconds,
        keepalives_interval=seconds, keepalives_count=1, tcp_user_timeout=1000 * seconds)


class Candidate:
    def __init__(self, conninfo, name, address, ttl):
        self.conninfo, self.name, self.address, self.ttl = conninfo, name, address, ttl
        self.claim = None, 0    # The token, and the time up to which this process leads under it.
        self.resigned = threading.Event()
        self.thread = threading.Thread(target=self.stand, daemon=True)
        self.thread.start()

    def leads(self):
        """Returns the token while this process leads, otherwise None."""
        token, until = self.claim
        return token if clock() < until else None

    def resign(self):
        """Gives the lease back. Call it when nothing is running that only the leader may do."""
        self.resigned.set()
        self.thread.join()

    # All that follows runs in the thread.

    def stand(self):
        db = token = None
        while not self.resigned.is_set():
            pause = self.ttl / 3
            try:
                if not db:
                    db = connect(self.conninfo, self.ttl / 3)
                # The lease lasts a ttl from some time after this one, so it is held for a ttl from here. The server's
                # clock can run a little faster: end a hundredth earlier.
                asked = clock()
                token = self.renew(db, token) if token else self.acquire(db)
                if token:
                    self.claim = token, asked + 0.99 * self.ttl
                else:
                    # Another one leads: wait for the lease again.
                    pause = 0
            except psycopg.Error as error:
                # The claim stays, and ends by itself.
                print(error, file=sys.stderr)
                pause = min(self.ttl / 6, 1)
                if db:
                    db.close()
                db = None
            self.resigned.wait(pause)
        # From here on leads() is None: only then may another one lead.
        self.claim = None, 0
        if db:
            if token:
                # A lost lease cannot be released. Without a connection, the lease ends by itself.
                with contextlib.suppress(psycopg.Error):
                    db.execute("SELECT lease_release(%s, %s)", [self.name, token])
            db.close()

    def acquire(self, db):
        """Waits for a while until the lease is free. Returns its token, or None."""
        row = db.execute(
            """SELECT token FROM lease_try_acquire(%s, %s * interval '1 s', ttl => %s * interval '1 s',
                                                   owner => %s, data => %s)""",
            [self.name, self.ttl / 3, self.ttl, self.address, Jsonb({"address": self.address})]).fetchone()
        return row and row[0]

    def renew(self, db, token):
        """Returns the token, or None if the lease has another holder."""
        try:
            db.execute("SELECT lease_renew(%s, %s)", [self.name, token])
            return token
        except psycopg.errors.ObjectNotInPrerequisiteState:
            self.claim = None, 0
            return None


class Observer:
    """Follows the leader. Sends a query only when the leader may have changed, and once in about a TTL.

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
                with connect(self.conninfo, 10) as db:
                    # Notifications that arrive with the answer to a query.
                    db.add_notify_handler(lambda note: self.payloads.append(note.payload))
                    # First listen, then read: otherwise a change between the two is missed. After a reconnection, too.
                    db.execute("LISTEN idgen_lease")
                    while True:
                        self.payloads.clear()
                        address, left = self.read(db)
                        if address != last:
                            yield address
                        last = address
                        self.wait(db, left)
            except psycopg.Error as error:
                print(error, file=sys.stderr)
                time.sleep(0.5)

    def read(self, db):
        """Returns the address of the leader and the seconds until its time is over, or None for each."""
        row = db.execute(
            """SELECT data->>'address', extract(epoch FROM expires_at - clock_timestamp())::float8
               FROM idgen.leases WHERE name = %s AND state = 'held'""", [self.name]).fetchone()
        return row or (None, None)

    def wait(self, db, left):
        """Waits for a notification about the lease, or until the time of its leader is over.

        A renewal sends no notification, and a leader that vanishes sends none until another one leads.
        """
        end = None if left is None else clock() + left
        while not any(json.loads(payload)["name"] == self.name for payload in self.payloads):
            self.payloads.clear()
            if not select.select([db.fileno()], [], [], end and max(0, end - clock()))[0]:
                return
            db.pgconn.consume_input()
            while note := db.pgconn.notifies():
                self.payloads.append(note.extra.decode())


def stand(conninfo, name, address, ttl):
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    candidate = Candidate(conninfo, name, address, float(ttl))
    led = None
    while not stop.wait(0.05):
        token = candidate.leads()
        if token != led:
            print(f"leads under token {token}" if token else "follows", flush=True)
        led = token
    candidate.resign()


if __name__ == "__main__":
    conninfo, action, *arguments = sys.argv[1:]
    if action == "stand":
        stand(conninfo, *arguments)
    else:
        for address in Observer(conninfo, *arguments).leaders():
            print(f"{address} leads" if address else "no leader", flush=True)
