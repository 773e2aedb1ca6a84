"""Handles each message once, although its queue may deliver it several times.

Needs psycopg 3, and these tables. Run the SQL as their owner; `app` is the role of the consumer:

    CREATE TABLE message_handled (consumer text, message_id bigint, PRIMARY KEY (consumer, message_id));
    CREATE TABLE message_forgotten (consumer text PRIMARY KEY, below bigint NOT NULL);
    CREATE TABLE account (id bigint PRIMARY KEY, balance numeric NOT NULL CHECK (abs(balance) < 'Infinity'));
    GRANT SELECT, INSERT, DELETE ON message_handled TO app;
    GRANT SELECT, INSERT, UPDATE ON message_forgotten TO app;
    GRANT SELECT, UPDATE ON account TO app;

The producer draws the id of a message once, with snowflake_next('snowflake'), and sends it each time. The messages are
lines of the standard input, as a stand-in for your queue: {"id": "2124489393384195693", "account": 7, "amount": 5}

    python3 idempotent_consumer.py 'host=db1 dbname=shop user=app' billing < messages

In your own program, call process() for each delivery. Tell the queue that the message is done when it has returned. If
it raises, the message was not handled: let the queue deliver it again.

Guaranteed: the effect of an id commits at most once, whatever is killed and whatever a clock does. A second delivery
waits until the first one has committed or rolled back. The effect must be in the same database, in the same
transaction. Not guaranteed: an effect for each message. A message whose id may have been forgotten is refused.
"""

import contextlib
import decimal
import json
import os
import socket
import sys
import threading

import psycopg

KEEP = "30 days"    # Longer than the queue delivers again.
PATIENCE = 30.0     # Seconds for a message, with the wait for another delivery of it.


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
    db = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10)
    # Each statement must see what other transactions have committed.
    db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    # A consumer that is paused while it handles a message must not keep the others from its rows.
    with deadline(db, PATIENCE):
        db.execute(f"SET idle_in_transaction_session_timeout = '{PATIENCE}s'")
    return db


def handle(db, message):
    """The effect of a message. Commits at most once for each id."""
    updated = db.execute(
        "UPDATE account SET balance = balance + %s WHERE id = %s", [message["amount"], message["account"]])
    if not updated.rowcount:
        raise LookupError(f"there is no account {message['account']}")


def process(db, consumer, message):
    """Returns "handled", "repeated", or "too old": then a person has to look at the message."""
    with deadline(db, PATIENCE), db.transaction():
        first = db.execute(
            "INSERT INTO message_handled VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING true",
            [consumer, message["id"]]).fetchone()
        if not first:
            return "repeated"
        # Only now: forget() may have deleted the id just before, and has committed this bound with that.
        forgotten = db.execute(
            "SELECT FROM message_forgotten WHERE consumer = %s AND below > %s", [consumer, message["id"]])
        if forgotten.rowcount:
            raise psycopg.Rollback
        handle(db, message)
        return "handled"
    return "too old"


def forget(db, consumer):
    """Deletes old ids. Their messages are too old from then on, even if the clock was wrong or KEEP is longer later."""
    with deadline(db, 3600), db.transaction():
        below, = db.execute(
            """INSERT INTO message_forgotten AS known VALUES (%s, snowflake_floor(now() - %s::interval, 'snowflake'))
               ON CONFLICT (consumer) DO UPDATE SET below = greatest(known.below, excluded.below) RETURNING below""",
            [consumer, KEEP]).fetchone()
        db.execute("DELETE FROM message_handled WHERE consumer = %s AND message_id < %s", [consumer, below])


if __name__ == "__main__":
    conninfo, consumer = sys.argv[1:]
    with connect(conninfo) as db:
        forget(db, consumer)
        for line in sys.stdin:
            # Amounts are exact. As floats they would be others.
            message = json.loads(line, parse_float=decimal.Decimal)
            try:
                outcome = process(db, consumer, message)
            except (psycopg.Error, LookupError) as error:
                if db.closed:
                    raise
                outcome = "failed"
                print(error, file=sys.stderr)
            print(outcome, message["id"], flush=True)
