"""Makes 64-bit ids under a worker id that is leased from a pool of idgen.

Needs psycopg 3. On the coordinator, define the pool once. The layout has 10 bits for the worker id, so 1024 at most:

    SELECT lease_define('shop-ids', slots => 1024, ttl => '30 s');

Then print ids. TTL is in seconds, and at most the pool's:

    python3 worker_ids.py 'host=ids1 dbname=ids user=app' shop-ids pod-7 30 1000

In your own program, make one WorkerIds for the process, call next() in any number of threads, and close() at the end.
The first call of next() waits for the worker id. If the lease is lost, ids go on under another one, and still increase.
docs/worker-ids.md explains the rules that this file keeps.
"""

import os
import random
import socket
import sys
import threading
import time

import psycopg

# The layout snowflake: 41 bits of time in ms since the epoch, 10 of worker id, 12 of sequence.
EPOCH_MS = 1288834974657
MAX_WORKER_ID = 1023
MAX_SEQUENCE = 4095


class WorkerIds:
    def __init__(self, conninfo, pool, owner, ttl):
        self.conninfo, self.pool, self.owner, self.ttl = conninfo, pool, owner, ttl
        # Seconds for one connection attempt or statement, so that several fit into the interval.
        self.patience = max(2, round(ttl / 6))
        # Time and sequence of the last id, in one number. The next one is greater under any worker id.
        self.last = 0
        self.start_without_lease()
        # A child has neither the thread nor the lease of its parent. Both start again with its first id.
        os.register_at_fork(after_in_child=self.start_without_lease)

    def start_without_lease(self):
        # Used by the thread only. `told` is the last not_after that the server returned, as text to keep it unchanged.
        self.db = self.token = self.acquired = self.since = self.told = None
        # Guarded by `changed`: what is granted and confirmed. The times are in ms since the epoch of the layout.
        self.worker_id, self.not_before, self.not_after = None, 0, 0
        self.error = None
        self.changed, self.closed = threading.Condition(), threading.Event()
        self.thread = None

    def next(self):
        """Returns an id that is greater than all before it. Waits for the lease and for the clock.

        Raises RuntimeError if the interval is over and the last attempt to renew it has failed. A later call may
        succeed.
        """
        with self.changed:
            if not self.thread:
                self.thread = threading.Thread(target=self.keep_lease, daemon=True)
                self.thread.start()
            while not self.closed.is_set():
                now = time.time_ns() // 1_000_000 - EPOCH_MS
                # After the last sequence of a millisecond, adding 1 carries into the time.
                position = max(self.last + 1, now << 12, self.not_before << 12)
                tick = position >> 12
                # The time of the id counts, not the clock: a pause right here does no harm.
                if tick < self.not_after and tick <= now:
                    self.last = position
                    return tick << 22 | self.worker_id << 12 | position & MAX_SEQUENCE
                if tick >= self.not_after and self.error:
                    state = "there is no worker lease yet" if self.worker_id is None else "the worker lease is over"
                    raise RuntimeError(f"{state}: {self.error}") from self.error
                # Wait until the clock reaches the id, or until the thread has an answer.
                self.changed.wait((tick - now) / 1000 if tick < self.not_after else None)
            raise RuntimeError("closed")

    def close(self):
        """Ends all waits and releases the worker id. No id is made after that."""
        with self.changed:
            self.closed.set()
            self.changed.notify_all()
        if self.thread:
            self.thread.join()

    # All that follows runs in the thread, which never waits for the server while it holds `changed`.

    def keep_lease(self):
        while True:
            error, pause = None, self.ttl / 3 * random.uniform(0.9, 1.1)
            try:
                self.extend_lease()
            except Exception as failure:
                # This does not mean that the lease is lost: ids go on to the end of the confirmed interval.
                error, pause = failure, min(self.ttl / 6, 5) * random.uniform(0.5, 1)
                if self.db:
                    self.db.close()
            with self.changed:
                self.error = error
                self.changed.notify_all()
            if self.closed.wait(pause):
                break
        if self.token and not error:
            try:
                # With the last time used, the next holder begins right after it.
                self.call("SELECT worker_release(%s, %s, to_timestamp(%s / 1000.0), %s::timestamptz)",
                          self.pool, self.token, (self.last >> 12) + EPOCH_MS, self.told)
            except psycopg.Error:
                pass    # The lease ends by itself, a ttl after the last renewal.

    def extend_lease(self):
        if not self.db or self.db.closed:
            self.db = self.connect()
        # The interval lasts a ttl from here, even if this clock differs from the coordinator's.
        reached = max(time.time_ns() // 1_000_000, (self.last >> 12) + EPOCH_MS)
        if self.token:
            self.renew(reached)
        if not self.token:
            self.acquire(reached)
        if self.acquired > MAX_WORKER_ID:
            self.call("SELECT worker_release(%s, %s)", self.pool, self.token)
            self.token = None
            raise ValueError(f"worker id {self.acquired} does not fit into 10 bits")
        self.confirm(reached)

    def connect(self):
        # statement_timeout ends the wait for a lock or a standby. worker_confirm() waits for the standbys, not the
        # commit: a commit succeeds even if its wait is canceled. In a transaction block the calls are refused, so
        # autocommit is on. A pooler may not support prepared statements, so they are off.
        db = psycopg.connect(
            self.conninfo, autocommit=True, prepare_threshold=None, connect_timeout=self.patience,
            options=f"-c statement_timeout={self.patience}s -c synchronous_commit=local")
        # A notice says how long next() will wait, if other holders may have used the next times.
        db.add_notice_handler(lambda notice: print(notice.message_primary, file=sys.stderr, flush=True))
        return db

    def renew(self, reached):
        try:
            self.told, = self.call(
                """SELECT not_after::text
                   FROM worker_renew(%s, %s, %s::timestamptz, to_timestamp(%s / 1000.0))""",
                self.pool, self.token, self.told, reached)
        except psycopg.errors.ObjectNotInPrerequisiteState:
            # 55000: the lease is lost, another process renews with this token, or the answer to a renewal was lost.
            self.token = None
            with self.changed:
                self.not_after = 0

    def acquire(self, reached):
        # Round inwards: not_before up, and in confirm() not_after down.
        self.acquired, self.since, self.told, self.token = self.call(
            """SELECT worker_id, ceil(extract(epoch FROM not_before) * 1000)::bigint, not_after::text, token
               FROM worker_acquire(%s, %s, %s * interval '1 s', to_timestamp(%s / 1000.0))""",
            self.pool, self.owner, self.ttl, reached)

    def confirm(self, reached):
        # worker_confirm() waits until the synchronous standbys have the interval, and returns its end. If that is later
        # than `told`, another process has renewed with this token.
        until, = self.call(
            "SELECT floor(extract(epoch FROM least(worker_confirm(%s, %s), %s::timestamptz)) * 1000)::bigint",
            self.pool, self.token, self.told)
        with self.changed:
            self.worker_id = self.acquired
            self.not_before, self.not_after = self.since - EPOCH_MS, until - EPOCH_MS
        if reached >= until:
            raise RuntimeError("this clock is too far ahead of the database's")

    def call(self, sql, *arguments):
        fd = self.db.fileno()

        def cut():
            # statement_timeout is the server's. Only this ends the wait for a server that is silent.
            socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)

        watchdog = threading.Timer(self.patience + 1, cut)
        watchdog.start()
        try:
            return self.db.execute(sql, arguments).fetchone()
        finally:
            watchdog.cancel()


if __name__ == "__main__":
    conninfo, pool, owner, ttl, count = sys.argv[1:]
    ids = WorkerIds(conninfo, pool, owner, float(ttl))
    for _ in range(int(count)):
        print(ids.next())
    ids.close()
