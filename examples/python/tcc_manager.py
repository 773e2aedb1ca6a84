"""Drives transactions over several services to their end, by try, confirm and cancel (TCC).

Needs psycopg 3, Linux, due_tasks.py and sharded_worker.py beside it, and the tables of due_tasks.sql and
tcc_manager.sql. Participants are databases with the functions of tcc.sql. `app` is the role of the manager, also there:

    GRANT SELECT, INSERT, UPDATE ON due_task, tcc_transaction TO app;

Start any number of processes, with the name and the connection string of each participant. TTL is in seconds, at least
0.3:

    python3 tcc_manager.py 'host=db1 dbname=shop user=app' due_tasks pod-7 30 'bank=host=db2 dbname=bank user=app'

Each transaction is a task of due_tasks.py. The first attempt calls try on each participant, and decides: confirm if
all have succeeded, cancel if one has refused, or if the deadline has passed. The next attempt calls confirm or cancel
on each. An attempt without an answer is repeated, without a limit: a transaction that has been decided must end.

Guaranteed: all steps of a transaction are confirmed, or all are cancelled, however often managers are killed or
paused. A decision is committed before a participant hears of it, and only one is. Not guaranteed: an end, while a
participant does not answer, or refuses what it must not. The view tcc_unfinished shows the reason.
"""

import datetime
import decimal
import functools
import json
import signal
import sys

import psycopg
import psycopg.types.json

from due_tasks import Worker
from sharded_worker import PATIENCE, Shards, deadline, run

# A participant refuses by 55000, or by an error of class 22 or 23. Any other error is no answer.
REFUSED = psycopg.errors.ObjectNotInPrerequisiteState, psycopg.IntegrityError, psycopg.DataError

CALLS = {
    "trying": "SELECT tcc_try(%(tx)s, %(step)s, %(account)s::bigint, %(amount)s::numeric)",
    "confirming": "SELECT tcc_confirm(%(tx)s, %(step)s)",
    "cancelling": "SELECT tcc_cancel(%(tx)s, %(step)s)",
}
ENDED = {"confirming": "confirmed", "cancelling": "cancelled"}

# Amounts are exact. As floats they would be others.
psycopg.types.json.set_json_loads(functools.partial(json.loads, parse_float=decimal.Decimal))


class Manager:
    """Calls participants. `participants` has their connection strings by name."""

    def __init__(self, participants):
        self.participants, self.connections = participants, {}

    def drive(self, db, task):
        """One attempt of the task of a transaction."""
        state, is_late, steps = db.execute(
            "SELECT state, deadline <= clock_timestamp(), steps FROM tcc_transaction WHERE id = %s",
            [task.id]).fetchone()
        if state == "trying":
            reason = "the deadline has passed" if is_late else self.try_all(task.id, steps)
            # The application may have decided before.
            db.execute("SELECT tcc_decide(%s, %s, %s)", [task.id, "cancelling" if reason else "confirming", reason])
            # No participant may hear of a decision that has not committed.
            return datetime.timedelta(0)
        if state in ENDED:
            for step in steps:
                self.call(state, task.id, step)
            db.execute("UPDATE tcc_transaction SET state = %s WHERE id = %s", [ENDED[state], task.id])
        return None

    def try_all(self, tx, steps):
        """Returns why a participant has refused, or None. Raises an error if one does not answer."""
        for step in steps:
            try:
                self.call("trying", tx, step)
            except REFUSED as refused:
                return f'{step["participant"]}: {refused.diag.message_primary}'
        return None

    def call(self, state, tx, step):
        name = step["participant"]
        db = self.connections.get(name)
        if db is None or db.closed:
            db = self.connections[name] = psycopg.connect(
                self.participants[name], autocommit=True, prepare_threshold=None, connect_timeout=round(PATIENCE))
            # The functions of tcc.sql need it.
            db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        # An attempt has PATIENCE in all. If it is cut off, the next one finds what its calls have done.
        with deadline(db, PATIENCE / 4), db.transaction():
            db.execute(CALLS[state], {"account": None, "amount": None, **step, "tx": tx})


if __name__ == "__main__":
    conninfo, name, owner, ttl, *participants = sys.argv[1:]
    # A list, because Event.set() in a handler of signals can wait for the code that it interrupts.
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    shards = Shards(name, owner, float(ttl))
    manager = Manager(dict(participant.split("=", 1) for participant in participants))
    run(conninfo, shards, lambda db: Worker(db, shards, manager.drive, stop, most=1).work, stop)
