"""Works on shards of a table. The slots of a lease are the shards, and all workers have equal shares of them.

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

Start any number of processes. TTL is in seconds, at least 0.3:

    python3 sharded_worker.py 'host=db1 dbname=shop user=app' shards pod-7 30

Each worker also holds the shared lease `shards:members`, so each of them can count the workers. A worker that holds
more than its share releases the excess between two batches, and one that holds less acquires what is free. A worker
keeps the state of its shards in memory, here the total of all amounts, and saves it with each batch of tasks. SIGTERM
ends it after the batch, and its shards are free at once.

Guaranteed: each task counts once, with the amount that it has when it is deleted. A worker that has lost a shard in a
pause has outdated state, and the fence keeps it from saving that. At most two TTL after a worker has joined, left, or
been paused, none has two shards more than another, if a batch takes less than a third of the TTL. Not guaranteed: that
a shard always has a worker. If one is paused or cut off, its shards wait for a TTL, and one of them for PATIENCE if
that was in the middle of a batch.
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
        return db.execute(sql, arguments).fetchall()


class Shards:
    """The shards of one process, in `tokens`, by their fencing tokens. For one thread.

    Call balance() between two pieces of work, as soon as clock() has passed `next`.
    """

    def __init__(self, name, owner, ttl):
        self.name, self.members, self.owner, self.ttl = name, f"{name}:members", owner, ttl
        self.tokens, self.member, self.next = {}, None, 0

    def balance(self, db):
        """Renews, and then releases what is more than the share, or acquires what is missing and free."""
        self.next = clock() + self.ttl / 3
        self.renew(db)
        share = self.share(db)
        # The newest are released: for the others, this process has worked longer.
        self.release(db, list(self.tokens)[share:])
        while len(self.tokens) < share:
            granted = self.acquire(db, self.name)
            if not granted:
                # Others have not released them yet.
                self.next = clock() + min(self.ttl / 6, 1)
                break
            shard, token = granted
            self.tokens[shard] = token
            print(f"works on shard {shard}", flush=True)

    def renew(self, db):
        # In one commit, so that a member and its shards expire together.
        held = [(self.name, token) for token in self.tokens.values()]
        if self.member:
            held.append((self.members, self.member[1]))
        names, tokens = [name for name, _ in held], [token for _, token in held]
        kept = {token for token, in call(db, "SELECT token FROM lease_renew_many(%s, %s::bigint[])", [names, tokens])}
        for shard, token in list(self.tokens.items()):
            if token not in kept:
                del self.tokens[shard]
                print(f"lost shard {shard}", flush=True)
        if not self.member or self.member[1] not in kept:
            self.member = self.acquire(db, self.members, shared=True)

    def share(self, db):
        """Returns how many shards this process is due. The shares of all members add up to the number of slots."""
        # If the slots cannot be divided evenly, the members that came first have one more. So a member that joins
        # raises the share of no other, and one that leaves lowers none: no shard changes hands needlessly.
        share = call(
            db,
            """SELECT (slots - rank + members - 1) / members
               FROM (SELECT slot, row_number() OVER (ORDER BY acquired_at, slot) - 1 AS rank,
                            count(*) OVER () AS members
                     FROM idgen.leases WHERE name = %s AND state = 'held') AS member,
                    (SELECT coalesce(max(slots), 1) AS slots FROM idgen.lease_definition WHERE name = %s) AS lease
               WHERE slot = %s""",
            [self.members, self.name, self.member and self.member[0]])
        # None, if it has just expired: the next call joins again.
        return share[0][0] if share else len(self.tokens)

    def acquire(self, db, name, shared=False):
        # A few milliseconds, because a call that does not wait finds nothing while another one is served.
        granted = call(
            db,
            """SELECT slot, token FROM lease_try_acquire(%s, '10 ms', ttl => %s * interval '1 s', owner => %s,
                                                         shared => %s)""",
            [name, self.ttl, self.owner, shared])
        return granted[0] if granted else None

    def release(self, db, shards):
        tokens = [self.tokens[shard] for shard in shards]
        if tokens:
            call(db, "SELECT lease_release_many(%s, %s::bigint[])", [[self.name] * len(tokens), tokens])
        for shard in shards:
            del self.tokens[shard]
            print(f"released shard {shard}", flush=True)

    def leave(self, db):
        """Releases all shards, and is no member any more."""
        self.release(db, list(self.tokens))
        if self.member:
            call(db, "SELECT lease_release_many(ARRAY[%s], ARRAY[%s::bigint])", [self.members, self.member[1]])
            self.member = None


def run(conninfo, shards, begin, stop):
    """Works until `stop` is not empty. Connects again if the connection is cut.

    For each connection, begin(db) returns a function, and each call of that is a piece of work.
    """
    while not stop:
        try:
            with psycopg.connect(
                    conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10,
                    application_name=shards.owner) as db:
                # Each piece of work must see what others have committed.
                db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                # The last transaction of the connection before may be about to commit. A grant waits for that.
                shards.release(db, list(shards.tokens))
                shards.next = 0
                work = begin(db)
                while not stop:
                    if clock() >= shards.next:
                        shards.balance(db)
                    try:
                        work()
                    except psycopg.errors.ObjectNotInPrerequisiteState as lost:
                        # A fence has failed. Find out which shards are lost.
                        print(lost, file=sys.stderr)
                        shards.next = 0
                shards.leave(db)
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
            print(error, file=sys.stderr)
            time.sleep(1)


class Totals:
    """Adds up the tasks of each shard. Knows the totals of committed transactions of one connection."""

    def __init__(self, db, shards):
        self.db, self.shards = db, shards
        self.known = {}

    def work(self):
        is_idle = True
        for shard, token in self.shards.tokens.items():
            # A batch takes less than a third of the ttl. For longer ones, renew in another thread: see fenced_job.py.
            if clock() >= self.shards.next:
                return
            if self.add_batch(shard, token):
                is_idle = False
        if is_idle:
            time.sleep(min(self.shards.ttl / 6, 1))

    def add_batch(self, shard, token):
        """Returns how many tasks it has counted. Raises 55000 when the shard has another worker."""
        db = self.db
        with deadline(db, PATIENCE), db.transaction():
            # Fails if another worker has the shard. None can take it over until this transaction ends, so the server
            # ends it if this process is paused, or killed while a statement waits.
            limit = f"{PATIENCE}s"
            db.execute(
                "SELECT lease_fence(%s, %s), set_config('idle_in_transaction_session_timeout', %s, true), "
                "set_config('statement_timeout', %s, true)", [self.shards.name, token, limit, limit])
            known_token, total = self.known.get(shard, (None, 0))
            if known_token != token:
                # The grant waited for the fenced transactions of all workers before, so this is their last state.
                row = db.execute("SELECT total FROM shard_total WHERE shard = %s", [shard]).fetchone()
                total = row[0] if row else 0
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
        self.known[shard] = token, total
        return len(tasks)


if __name__ == "__main__":
    conninfo, name, owner, ttl = sys.argv[1:]
    # A list, because Event.set() in a handler of signals can wait for the code that it interrupts.
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    shards = Shards(name, owner, float(ttl))
    run(conninfo, shards, lambda db: Totals(db, shards).work, stop)
