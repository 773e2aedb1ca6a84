"""Makes 64-bit ids under a worker id that is leased from a pool of idgen.

Needs psycopg 3. On the coordinator, define the pool once. The layout has 10 bits for the worker id, so 1024 at most:

    SELECT worker_pool_define('shop-ids', count => 1024, ttl => '30 s');

Any role can lease. This prints ids. TTL is in seconds, and at most the pool's:

    python3 worker_ids.py 'host=ids1 dbname=ids user=app' shop-ids pod-7 30 1000

In your own program, make one WorkerIds for the process, call next() in any number of threads, and close() at the end.
The first call of next() waits for the worker id. docs/worker-ids.md explains the rules that this file keeps.

Guaranteed: no other holder of a worker id of the pool makes the same id, not even after a pause, a step of the clock or
a fork. The ids of one process increase, under another worker id too. Not guaranteed: that there is always an id. If the
coordinator is away, ids end a TTL after the last renewal. If the clock is set back, they wait for it. A handler of a
signal must not fork.
"""

import contextlib
import logging
import os
import random
import socket
import sys
import threading
import time
import weakref

import psycopg

# The layout snowflake: 41 bits of time in ms since the epoch, 10 of worker id, 12 of sequence.
EPOCH_MS = 1288834974657
MAX_WORKER_ID = 1023
MAX_SEQUENCE = 4095

# Unlike print(), it raises nothing if the device is full.
log = logging.getLogger(__name__)


@contextlib.contextmanager
def deadline(db, seconds):
    """Cuts the connection when the time is over. Nothing else ends the wait for a server that is silent."""
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


class WorkerIds:
    """`error` is why the last attempt to get or to renew the lease has failed, None if it has not."""

    def __init__(self, conninfo, pool, owner, ttl):
        self.conninfo, self.pool, self.owner, self.ttl = conninfo, pool, owner, ttl
        # Seconds for one connection attempt or statement, so that several fit into the interval.
        self.patience = max(2, round(ttl / 6))
        # Time and sequence of the last id, in one number. The next one is greater under any worker id.
        self.last, self.closed = 0, False
        self.start_without_lease()
        # A child has neither the thread nor the lease of its parent. Both start again with its first id. The hook
        # stays for ever, so it does not keep this object.
        weak = weakref.WeakMethod(self.start_without_lease)
        os.register_at_fork(after_in_child=lambda: (start := weak()) and start())

    def start_without_lease(self):
        # Used by the thread only. `told` is the last not_after that the server returned, as text to keep it unchanged.
        self.db = self.token = self.acquired = self.since = self.told = None
        # Guarded by `changed`: what is granted and confirmed. The times are in ms since the epoch of the layout.
        self.worker_id, self.not_before, self.not_after = None, 0, 0
        self.error = self.thread = None
        self.changed, self.inside = threading.Condition(), set()

    def next(self, timeout=30):
        """Returns an id that is greater than all before it. Waits for the lease and for the clock.

        Raises RuntimeError if the interval is over and the last attempt to renew it has failed, and TimeoutError after
        `timeout` seconds. A later call may succeed. A handler of a signal that interrupts a call gets RuntimeError.
        """
        end = time.monotonic() + timeout
        with self.not_interrupting(), self.changed:
            while True:
                new_id = self.make_or_wait(end)
                if new_id is not None:
                    return new_id

    def make_or_wait(self, end):
        """Returns an id, or waits and returns None."""
        if self.closed:
            raise RuntimeError("closed")
        if not self.thread:
            self.thread = threading.Thread(target=self.keep_lease, daemon=True)
            self.thread.start()
        now = time.time_ns() // 1_000_000 - EPOCH_MS
        # After the last sequence of a millisecond, adding 1 carries into the time.
        position = max(self.last + 1, now << 12, self.not_before << 12)
        tick = position >> 12
        # The time of the id counts, not the clock: a pause right here does no harm.
        if tick < self.not_after and tick <= now:
            self.last = position
            return tick << 22 | self.worker_id << 12 | position & MAX_SEQUENCE
        if tick < self.not_after:
            state, wait = f"the clock is {(tick - now) / 1000} s behind the next id", (tick - now) / 1000
        else:
            state = "there is no worker lease yet" if self.worker_id is None else "the worker lease is over"
            wait = threading.TIMEOUT_MAX
            if self.error:
                raise RuntimeError(f"{state}: {self.error}") from self.error
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(state)
        # Until the clock reaches the id, or the thread has an answer.
        self.changed.wait(min(wait, left))

    def close(self):
        """Ends all waits and releases the worker id. No id is made after that."""
        with self.not_interrupting():
            with self.changed:
                self.closed = True
                self.changed.notify_all()
            if self.thread:
                self.thread.join()

    @contextlib.contextmanager
    def not_interrupting(self):
        # A handler of a signal runs in the middle of the main thread's call, and the lock lets a thread in twice.
        caller, inside = threading.get_ident(), self.inside
        if caller in inside:
            raise RuntimeError("called in the middle of another call, by a handler of a signal")
        try:
            inside.add(caller)
            yield
        finally:
            inside.discard(caller)

    # All that follows runs in the thread, which never waits for the server while it holds `changed`.

    def keep_lease(self):
        failures = 0
        while True:
            error, pause = None, self.ttl / 3 * random.uniform(0.9, 1.1)
            try:
                self.extend_lease()
            except Exception as failure:
                # This does not mean that the lease is lost: ids go on to the end of the confirmed interval. Try again
                # soon, but without a lease less and less often: a wrong password stays wrong.
                error = failure
                log.warning("%s", error)
                is_held = time.time_ns() // 1_000_000 - EPOCH_MS < self.not_after
                failures = 0 if is_held else min(failures + 1, 10)
                pause = min(min(self.ttl / 6, 5) * 2 ** failures, 10) * random.uniform(0.5, 1)
                self.disconnect()
            with self.changed:
                self.error = error
                self.changed.notify_all()
                if not self.closed:
                    self.changed.wait(pause)
                if self.closed:
                    break
        if self.db and self.token:
            # With the last time used, the next holder begins right after it. If this fails, the lease ends by itself, a
            # ttl after the last renewal.
            with contextlib.suppress(Exception):
                self.call("SELECT worker_release(%s, %s, to_timestamp(%s / 1000.0), %s::timestamptz)",
                          self.pool, self.token, (self.last >> 12) + EPOCH_MS, self.told)
        self.disconnect()

    def disconnect(self):
        if self.db:
            self.db.close()
        self.db = None

    def extend_lease(self):
        self.db = self.db or self.connect()
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
        # autocommit is on. A pooler may not support prepared statements, so they are off. Other styles of dates name
        # time zones by texts that stand for others.
        given = psycopg.conninfo.conninfo_to_dict(self.conninfo).get("options") or os.environ.get("PGOPTIONS", "")
        own = f"-c statement_timeout={self.patience}s -c synchronous_commit=local -c datestyle=ISO"
        db = psycopg.connect(
            self.conninfo, autocommit=True, prepare_threshold=None, connect_timeout=self.patience,
            options=f"{given} {own}")
        # A notice says how long next() will wait, if other holders may have used the next times.
        db.add_notice_handler(lambda notice: log.warning("%s", notice.message_primary))
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
        # statement_timeout is the server's, and comes first.
        with deadline(self.db, self.patience + 1):
            return self.db.execute(sql, arguments).fetchone()


if __name__ == "__main__":
    conninfo, pool, owner, ttl, count = sys.argv[1:]
    ids = WorkerIds(conninfo, pool, owner, float(ttl))
    for _ in range(int(count)):
        print(ids.next())
    ids.close()
