"""Reads the new rows of a table in the order of their ids, each exactly once, also those that commit late.

Needs psycopg 3 and these tables:

    CREATE TABLE event (
        id   bigint PRIMARY KEY DEFAULT snowflake_next(),
        body text NOT NULL
    );
    CREATE TABLE event_position (
        consumer text   PRIMARY KEY,
        id       bigint NOT NULL DEFAULT 0
    );
    CREATE TABLE event_copy (consumer text NOT NULL, id bigint NOT NULL, body text NOT NULL);

    CREATE FUNCTION announce_event() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NOTIFY event;
        RETURN NULL;
    END $$;
    CREATE TRIGGER announce AFTER INSERT ON event FOR EACH STATEMENT EXECUTE FUNCTION announce_event();

The consumer runs until it is killed. The next one of its name continues. If two run, they take turns:

    python3 polling_consumer.py 'host=db1 dbname=shop user=app' mailer

In your own program, write your own handle().

Transactions do not commit in the order of their ids: one draws an id, and commits a second later. A consumer that reads
`WHERE id > last` has read greater ids by then, and misses that row. snowflake_settled() is the greatest id up to which
no transaction can commit a row any more. So the consumer reads up to it, and continues after it.
"""

import select
import sys

import psycopg

# Seconds. A rollback may free events without a notification, and poll() swallows those that arrive while it runs.
PAUSE = 1.0


def handle(db, consumer, event_id, body):
    """Runs in the transaction that moves the position. Here it copies the event."""
    db.execute("INSERT INTO event_copy VALUES (%s, %s, %s)", [consumer, event_id, body])


def poll(db, consumer, limit=1000):
    """Handles the next events, at most `limit`, in one transaction. Returns how many."""
    with db.transaction():
        position, = db.execute("SELECT id FROM event_position WHERE consumer = %s FOR UPDATE", [consumer]).fetchone()
        # In a statement of its own: the next one then sees all rows up to this id.
        settled, = db.execute("SELECT snowflake_settled()").fetchone()
        events = db.execute(
            "SELECT id, body FROM event WHERE id > %s AND id <= %s ORDER BY id LIMIT %s",
            [position, settled, limit]).fetchall()
        for event_id, body in events:
            handle(db, consumer, event_id, body)
        if events:
            db.execute("UPDATE event_position SET id = %s WHERE consumer = %s", [events[-1][0], consumer])
    return len(events)


def run(conninfo, consumer):
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        db.execute("INSERT INTO event_position (consumer) VALUES (%s) ON CONFLICT DO NOTHING", [consumer])
        db.add_notify_handler(lambda notify: None)    # Without one, psycopg 3.2 keeps all notifications.
        db.execute("LISTEN event")
        while True:
            if not poll(db, consumer):
                # Until a notification arrives. The next statement reads it.
                select.select([db], [], [], PAUSE)


if __name__ == "__main__":
    run(*sys.argv[1:])
