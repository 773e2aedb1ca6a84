"""Reads the new rows of a table, each exactly once, also those whose transactions commit late.

Needs psycopg 3 and these tables:

    CREATE TABLE event (
        id   bigint PRIMARY KEY DEFAULT snowflake_next(),
        xact xid8   NOT NULL DEFAULT pg_current_xact_id(),      -- of the transaction that writes the row
        body text   NOT NULL
    );
    CREATE INDEX ON event (xact, id);
    CREATE TABLE event_position (
        consumer text   PRIMARY KEY,
        xact     xid8   NOT NULL DEFAULT '0',
        id       bigint NOT NULL DEFAULT 0
    );
    CREATE TABLE event_copy (consumer text NOT NULL, id bigint NOT NULL, body text NOT NULL);

The consumer runs until it is killed. The next one of its name continues. If two run, they take turns:

    python3 polling_consumer.py 'host=db1 dbname=shop user=app' mailer

In your own program, write your own handle().

The position is not an id alone. Transactions do not commit in the order of their ids: one draws an id, and commits a
second later. A consumer that reads `WHERE id > last` has read greater ids by then, and misses that row. So does a
consumer that reads only ids older than some seconds, as soon as one transaction takes longer. An id is a safe bound
only while writers are excluded: each one holds a lock from before it draws until it has ended.

The position is the transaction id and the row's id. Below pg_snapshot_xmin() all transactions have ended, and none gets
such a transaction id again. So no row can appear at or before the position. An open transaction that writes anything on
this server, in any database, delays the rows of later ones. They are not lost.
"""

import sys
import time

import psycopg


def handle(db, consumer, event_id, body):
    """Runs in the transaction that moves the position. Here it copies the event."""
    db.execute("INSERT INTO event_copy VALUES (%s, %s, %s)", [consumer, event_id, body])


def poll(db, consumer, limit=1000):
    """Handles the next events, at most `limit`, in one transaction. Returns how many."""
    with db.transaction():
        # Held until the transaction ends. A lock on the row of the position would take a transaction id for each poll.
        db.execute("SELECT lock_acquire_xact('consumer ' || %s)", [consumer])
        position = db.execute("SELECT xact::text, id FROM event_position WHERE consumer = %s", [consumer]).fetchone()
        # ORDER BY xact would sort the texts of the result, and 1000 before 999.
        events = db.execute(
            """SELECT xact::text, id, body FROM event
               WHERE (xact, id) > (%s::xid8, %s) AND xact < pg_snapshot_xmin(pg_current_snapshot())
               ORDER BY event.xact, event.id LIMIT %s""",
            [*position, limit]).fetchall()
        for xact, event_id, body in events:
            handle(db, consumer, event_id, body)
        if events:
            db.execute(
                "UPDATE event_position SET xact = %s::xid8, id = %s WHERE consumer = %s", [xact, event_id, consumer])
    return len(events)


def run(conninfo, consumer, pause=0.2):
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.execute("INSERT INTO event_position (consumer) VALUES (%s) ON CONFLICT DO NOTHING", [consumer])
        while True:
            if not poll(db, consumer):
                time.sleep(pause)


if __name__ == "__main__":
    run(*sys.argv[1:])
