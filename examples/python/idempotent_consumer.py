"""Handles each message once, although its queue may deliver it several times.

Needs psycopg 3 and these tables:

    CREATE TABLE message_handled (consumer text, message_id bigint, PRIMARY KEY (consumer, message_id));
    CREATE TABLE account (id bigint PRIMARY KEY, balance numeric NOT NULL);

The producer draws the id of a message once, with snowflake_next(), and sends it each time. The messages are lines of
the standard input, as a stand-in for your queue: {"id": "2124489393384195693", "account": 7, "amount": 5}

    python3 idempotent_consumer.py 'host=db1 dbname=shop user=app' billing < messages

In your own program, call process() for each delivery, and tell the queue afterwards that the message is done.

The unique key makes the second delivery of a message do nothing, also while the first one is still being handled: it
waits until that has committed or rolled back. The effect must be in the same database, in the same transaction.

The id says how old a message is. So the table need not keep its rows for ever: a message older than KEEP is refused,
because it may have been handled.
"""

import json
import sys

import psycopg

KEEP = "30 days"    # The same in all consumers. Longer than the queue delivers again.


def handle(db, message):
    """The effect of a message. Runs at most once for each id."""
    db.execute("UPDATE account SET balance = balance + %s WHERE id = %s", [message["amount"], message["account"]])


def process(db, consumer, message):
    """Returns "handled", "repeated", or "too old": then a person has to look at the message."""
    with db.transaction():
        too_old, = db.execute(
            "SELECT %s::bigint < snowflake_floor(now() - %s::interval, 'snowflake')", [message["id"], KEEP]).fetchone()
        if too_old:
            return "too old"
        first = db.execute(
            "INSERT INTO message_handled VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING true",
            [consumer, message["id"]]).fetchone()
        if not first:
            return "repeated"
        handle(db, message)
    return "handled"


def forget(db, consumer):
    """Deletes the ids of messages that process() refuses. The day is for transactions that are still running."""
    db.execute(
        """DELETE FROM message_handled WHERE consumer = %s
           AND message_id < snowflake_floor(now() - %s::interval - interval '1 day', 'snowflake')""",
        [consumer, KEEP])


if __name__ == "__main__":
    conninfo, consumer = sys.argv[1:]
    with psycopg.connect(conninfo, autocommit=True) as db:
        forget(db, consumer)
        for line in sys.stdin:
            message = json.loads(line)
            print(process(db, consumer, message), message["id"], flush=True)
