"""Runs the tasks of a table when they are due. The table has shards, and all workers have equal shares of them.

Needs psycopg 3, Linux, sharded_worker.py beside it, and the table of due_tasks.sql. A task makes a reminder here, and
`app` is the role of the workers:

    CREATE TABLE reminder (
        task_id bigint NOT NULL,
        body jsonb NOT NULL,
        made_at timestamptz NOT NULL DEFAULT clock_timestamp());
    GRANT SELECT, UPDATE ON due_task TO app;
    GRANT INSERT ON reminder TO app;

Start any number of processes. The lease is that of due_tasks.sql. TTL is in seconds, at least 0.3:

    python3 due_tasks.py 'host=db1 dbname=shop user=app' due_tasks pod-7 30

In your own program, give a Worker your own function in place of remind(). It gets the connection, in a transaction, and
the task. If it raises an error, its transaction is rolled back, and the task is tried again later, or has failed. If it
returns a timedelta, the task is due again after that. Otherwise the task is done. A worker needs a connection of its
own: PgBouncer in transaction mode has no LISTEN. SIGTERM ends a worker after the task that it runs.

Guaranteed: what a task does in this database commits exactly once. The tasks of a shard run one at a time, and start in
the order in which they are due. One that fails is overtaken by later ones. Not guaranteed: that an attempt starts only
once. So send the id of the task with what it does elsewhere, and let the receiver do it once.

Tasks that are due at the same time run in one transaction, after each other. If one of them raises an error, each runs
in a transaction of its own. Give the Worker `most=1` if that must always be so, as for tasks that take long.
"""

import collections
import contextlib
import datetime
import select
import signal
import sys

import psycopg
from psycopg.types.json import Jsonb

from sharded_worker import PATIENCE, Shards, call, clock, deadline, run

PAUSE = 1.0     # Seconds between looks for tasks. Sooner, if one is due or a notification arrives.

Task = collections.namedtuple("Task", "id shard token body attempt due")


class Worker:
    """Runs the tasks of its shards through one connection, at most `most` in a transaction."""

    def __init__(self, db, shards, handle, stop, most=50):
        self.db, self.shards, self.handle, self.stop, self.most = db, shards, handle, stop, most
        # Tasks whose attempts have begun and not ended. After an error, they run in transactions of their own.
        self.tasks, self.runs_alone = [], False
        # No task before `since` waits, as far as this worker knows. At times it looks for others too.
        self.since, self.next_full_look = "-infinity", 0
        self.channels = set()
        # poll() does not see notifications that arrive with an answer.
        self.notes = []
        db.add_notify_handler(self.notes.append)
        self.socket = select.poll()
        self.socket.register(db, select.POLLIN)
        # A worker that is paused must not keep its shard from others. The server may be waiting for it to go on, or to
        # read what was sent, or for a row that another transaction has locked.
        for limit in ["idle_in_transaction_session_timeout", "tcp_user_timeout", "statement_timeout"]:
            call(db, "SELECT set_config(%s, %s, false)", [limit, f"{PATIENCE}s"])
        # Times are passed as text. Other styles have names of zones, which the server may not know, or take for others.
        call(db, "SELECT set_config('datestyle', 'ISO', false)", [])

    def work(self):
        """Runs tasks until none is due, or until the shards must be renewed. Then waits for the next one."""
        self.listen()
        if self.notes or clock() >= self.next_full_look:
            self.since, self.next_full_look = "-infinity", clock() + PAUSE
        self.notes.clear()
        # The next workers of other shards find that their attempts have not ended.
        self.tasks = [task for task in self.tasks if self.shards.tokens.get(task.shard) == task.token]
        if not self.tasks:
            with self.transaction():
                following = self.take()
            self.go_on_with(following)
        while self.tasks and self.goes_on():
            self.run()
        if self.tasks:
            # The shards may be given to others now.
            with self.transaction():
                self.hold(self.tasks)
                self.db.execute("SELECT due_task_put_back(%s)", [[task.id for task in self.tasks]])
            self.tasks, self.since = [], "-infinity"
        self.wait()

    def go_on_with(self, tasks):
        """Call it when the attempts of these tasks have committed."""
        self.tasks = tasks
        if tasks:
            self.since = tasks[-1].due

    def goes_on(self):
        return not self.stop and clock() < self.shards.next

    @contextlib.contextmanager
    def transaction(self):
        with deadline(self.db, PATIENCE), self.db.transaction():
            yield

    def take(self):
        """Begins the attempts of the next tasks, in the transaction that runs. Those run in transactions after it."""
        self.runs_alone = False
        tokens = self.shards.tokens
        if not self.goes_on() or not tokens:
            return []
        rows = self.db.execute(
            """SELECT id, shard, body, attempts, due::text
               FROM due_task_take(%s, %s::int[], %s::bigint[], %s, %s::timestamptz)""",
            [self.shards.name, list(tokens), list(tokens.values()), self.most, self.since]).fetchall()
        return [Task(task_id, shard, tokens[shard], body, attempt, due) for task_id, shard, body, attempt, due in rows]

    def hold(self, tasks):
        """Returns the ids of the tasks that may still run. Raises 55000 if another worker has one of their shards."""
        # None can take them over until this transaction ends.
        rows = self.db.execute(
            "SELECT due_task_hold(%s, %s::bigint[], %s::bigint[], %s::int[])",
            [self.shards.name, list({task.token for task in tasks}),
             [task.id for task in tasks], [task.attempt for task in tasks]])
        return {task_id for task_id, in rows}

    def run(self):
        """Runs tasks, and takes the next ones in the same transaction. Raises 55000 if another worker has a shard."""
        batch = self.tasks[:1] if self.runs_alone else self.tasks
        rest = self.tasks[len(batch):]
        doing = "fence"
        try:
            with self.transaction():
                held = self.hold(batch)
                doing = "handle"
                until = min(self.shards.next, clock() + PATIENCE / 4)
                ended = {}
                for n, task in enumerate(batch):
                    if task.id in held:
                        again = self.handle(self.db, task)
                        ended[task.id] = again if isinstance(again, datetime.timedelta) else None
                    if clock() >= until:
                        # Commit what is done.
                        rest = batch[n + 1:] + rest
                        break
                self.db.execute(
                    "SELECT due_task_end(%s::bigint[], %s::interval[])", [list(ended), list(ended.values())])
                doing = "take"
                following = rest or self.take()
                doing = "commit"
            self.go_on_with(following)
        except Exception as error:
            if self.db.closed:
                # It may have committed. If not, the next attempts are made by the workers that get the shards.
                raise psycopg.OperationalError(str(error)) from error
            if doing in ("fence", "take"):
                raise
            if len(batch) == 1:
                self.fail(batch[0], error)
                self.tasks = rest
            else:
                # Any of them may have raised it.
                self.runs_alone = True

    def fail(self, task, error):
        with self.transaction():
            self.hold([task])
            self.db.execute("SELECT due_task_fail(%s, %s)", [task.id, repr(error)[:1000]])

    def listen(self):
        """Listens to the channels of its shards only. Call it before looking for tasks."""
        channels = {f"due_task_{shard}" for shard in self.shards.tokens}
        if channels - self.channels:
            self.next_full_look = 0
        for command, names in ("LISTEN", channels - self.channels), ("UNLISTEN", self.channels - channels):
            for name in names:
                with deadline(self.db, PATIENCE):
                    self.db.execute(f"{command} {name}")
        self.channels = channels

    def wait(self):
        seconds = 0
        if self.goes_on():
            (due,), = call(
                self.db, "SELECT due_task_wait(%s::int[], %s::timestamptz)", [list(self.shards.tokens), self.since])
            seconds = min(PAUSE, self.shards.next - clock(), PAUSE if due is None else due)
        if seconds > 0 and not self.notes:
            self.socket.poll(1000 * seconds)


def remind(db, task):
    """What a task does."""
    db.execute("INSERT INTO reminder (task_id, body) VALUES (%s, %s)", [task.id, Jsonb(task.body)])


if __name__ == "__main__":
    conninfo, name, owner, ttl = sys.argv[1:]
    # A list, because Event.set() in a handler of signals can wait for the code that it interrupts.
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    shards = Shards(name, owner, float(ttl))
    run(conninfo, shards, lambda db: Worker(db, shards, remind, stop).work, stop)
