"""Reads the new rows of a table in the order of their ids, each exactly once, also those that commit late.

Needs psycopg 3, and these tables. Run the SQL as their owner; `app` is the role of the consumer:

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
    GRANT SELECT ON event TO app;
    GRANT SELECT, INSERT, UPDATE ON event_position TO app;
    GRANT INSERT ON event_copy TO app;

The consumer runs until it is killed, or cannot reach the server: let a supervisor start it again. The next one of its
name continues. If two run, they take turns:

    python3 polling_consumer.py 'host=db1 dbname=shop user=app' mailer

In your own program, write your own handle().

Transactions do not commit in the order of their ids: one draws an id, and commits a second later. A consumer that reads
`WHERE id > last` has read greater ids by then, and misses that row. snowflake_settled() is the greatest id up to which
no transaction can commit a row any more. So the consumer reads up to it, and continues after it.

Guaranteed: what handle() writes into this database commits exactly once for each row, in the order of ids. Not
guaranteed: that it does elsewhere, such as by mail, and rows whose ids were not drawn in their transaction. Over a Unix
socket, a consumer that is paused while it reads many rows keeps its turn.
"""

import contextlib
import os
import select
import socket
import sys
import threading

import psycopg

# Seconds. A rollback may free events without a notification, and poll() swallows those that arrive while it runs.
PAUSE = 1.0
PATIENCE = 60.0     # Seconds for one turn, with the wait for the turn of another consumer.


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


def handle(db, consumer, event_id, body):
    """Runs in the transaction that moves the position. Here it copies the event."""
    db.execute("INSERT INTO event_copy VALUES (%s, %s, %s)", [consumer, event_id, body])


def poll(db, consumer, limit=1000):
    """Handles the next events, at most `limit`, in one transaction. Returns how many."""
    with deadline(db, PATIENCE), db.transaction():
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
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10) as db:
        # Also where another one is the default: each statement must see what other transactions have committed.
        db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        db.add_notify_handler(lambda notify: None)    # Without one, psycopg 3.2 keeps all notifications.
        with deadline(db, PATIENCE), db.transaction():
            # A consumer that is paused in its turn must not keep the others from theirs. The server may be waiting for
            # it to go on, or to read what was sent, or for its turn.
            for limit in ["idle_in_transaction_session_timeout", "tcp_user_timeout", "statement_timeout"]:
                db.execute(f"SET {limit} = '{PATIENCE}s'")
            db.execute("INSERT INTO event_position (consumer) VALUES (%s) ON CONFLICT DO NOTHING", [consumer])
            db.execute("LISTEN event")
        notified = select.poll()
        notified.register(db, select.POLLIN)
        while True:
            if not poll(db, consumer):
                # Until a notification arrives. The next statement reads it.
                notified.poll(1000 * PAUSE)


if __name__ == "__main__":
    run(*sys.argv[1:])
