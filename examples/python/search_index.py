"""Keeps a full-text index in step with a table: insertions, updates and deletions, each at least once and none missed.

Needs psycopg 3, SQLite with FTS5, and these tables. Run the SQL as their owner; `app` is the role of the program:

    CREATE TABLE product (
        id     bigint PRIMARY KEY DEFAULT snowflake_next(),
        title  text   NOT NULL,
        change bigint NOT NULL
    );
    CREATE INDEX ON product (change);
    CREATE TABLE product_deleted (id bigint NOT NULL, change bigint PRIMARY KEY);
    CREATE TABLE product_forgotten (up_to bigint NOT NULL);
    INSERT INTO product_forgotten VALUES (0);

    CREATE TRIGGER change BEFORE INSERT OR UPDATE ON product
        FOR EACH ROW EXECUTE FUNCTION snowflake_change('change');
    CREATE TRIGGER keep_key AFTER UPDATE OR DELETE ON product
        FOR EACH ROW EXECUTE FUNCTION snowflake_change('change', 'product_deleted');
    CREATE TRIGGER no_truncate BEFORE TRUNCATE ON product
        FOR EACH STATEMENT EXECUTE FUNCTION snowflake_change();
    GRANT SELECT ON product, product_deleted, product_forgotten TO app;

The index is a file of SQLite. The program runs until it is killed, or cannot reach the server: let a supervisor start
it again. It continues where the index ends. Without a file it builds the index first, and shows it when it is whole:

    python3 search_index.py 'host=db1 dbname=shop user=app' products.db

To rebuild an index, start the program with another file. When it prints that the index is whole, search in that file,
and end the first program.

Guaranteed: after a read of fewer than LIMIT changes, the index has every row as it was at the index's position or
later, and no row that was deleted before.
Not guaranteed: that it has each version of a row, and rows whose trigger was disabled; and that it loses what a crash
or a failover of the server has lost. Rebuild it then.
"""

import contextlib
import os
import socket
import sqlite3
import sys
import threading
import time

import psycopg

PAUSE = 0.5         # Seconds between two reads, when nothing has changed.
PATIENCE = 60.0     # Seconds for one read.
LIMIT = 1000        # Changes in one read.

# What has changed, in the order of the changes. A deleted key stands for the row, if there is such a row again: in one
# statement, so that both are of one moment. Also what has changed after the settled id: the last change of a row that
# changes all the time is there whenever it is read.
CHANGES = """
    SELECT change, id, title FROM product WHERE change > %(after)s
    UNION ALL
    SELECT deleted.change, id, title FROM product_deleted AS deleted LEFT JOIN product USING (id)
        WHERE deleted.change > %(after)s
    ORDER BY change LIMIT %(limit)s"""


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


def open_index(file):
    """The index. Its position is in the same file, so both change together."""
    index = sqlite3.connect(file, isolation_level=None, timeout=PATIENCE)
    index.execute("CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), change INTEGER)")
    index.execute("CREATE VIRTUAL TABLE IF NOT EXISTS product USING fts5 (title)")
    return index


def position(index):
    row = index.execute("SELECT change FROM position").fetchone()
    return row and row[0]


def is_whole(file):
    if not os.path.exists(file):
        return False
    with contextlib.closing(open_index(file)) as index:
        return position(index) is not None


def write(index, rows, change):
    """Applies rows, and moves the position, in one transaction of the index. A row without a title is deleted."""
    index.execute("BEGIN IMMEDIATE")
    try:
        index.executemany("DELETE FROM product WHERE rowid = ?", [(key,) for _, key, _ in rows])
        titles = {key: title for _, key, title in rows if title is not None}
        index.executemany("INSERT INTO product (rowid, title) VALUES (?, ?)", titles.items())
        index.execute("INSERT INTO position VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET change = excluded.change",
                      [change])
        index.execute("COMMIT")
    except BaseException:
        index.execute("ROLLBACK")
        raise


def build(db, file):
    """Copies the table into a file of another name, and that into the index.

    In one transaction of SQLite. A file that took the place of another one by a rename would also take over what a write
    to that one has left beside it.
    """
    new = f"{file}.new"
    with contextlib.suppress(FileNotFoundError):
        os.remove(new)
    with contextlib.closing(open_index(new)) as index:
        # Before the rows are read: what changes meanwhile is read again.
        with deadline(db, PATIENCE):
            begin, = db.execute("SELECT snowflake_settled()").fetchone()
        last = None
        while True:
            with deadline(db, PATIENCE):
                rows = db.execute("SELECT NULL, id, title FROM product WHERE %(last)s::bigint IS NULL OR id > %(last)s "
                                  "ORDER BY id LIMIT %(limit)s", {"last": last, "limit": LIMIT}).fetchall()
            if not rows:
                break
            write(index, rows, begin)
            last = rows[-1][1]
        write(index, [], begin)
        with contextlib.closing(sqlite3.connect(file)) as target:
            index.backup(target)
    os.remove(new)


def follow(db, index):
    """Applies the next changes. Returns how many, or 0 if it will read them again; None if some were forgotten before
    the index has read them.
    """
    after = position(index)
    with deadline(db, PATIENCE):
        # In a statement of its own: the next one then sees all rows up to this id.
        settled, = db.execute("SELECT snowflake_settled()").fetchone()
        changes = db.execute(CHANGES, {"after": after, "limit": LIMIT}).fetchall()
        # Last: forget() raises the bound before it deletes.
        forgotten, = db.execute("SELECT up_to FROM product_forgotten").fetchone()
    if forgotten > after:
        return None
    # An open transaction can still commit changes after the settled id.
    last = max(after, min(settled, changes[-1][0]) if len(changes) == LIMIT else settled)
    if changes or last > after:
        write(index, changes, last)
    return len(changes) if last > after else 0


def run(conninfo, file):
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10) as db:
        with deadline(db, PATIENCE):
            # Also where another one is the default: each statement must see what other transactions have committed.
            db.execute("SET default_transaction_isolation = 'read committed'")
            db.execute(f"SET statement_timeout = '{PATIENCE}s'")
        serves = is_whole(file)
        while True:
            if not serves:
                build(db, file)
                print("whole", flush=True)
            with contextlib.closing(open_index(file)) as index:
                while (applied := follow(db, index)) is not None:
                    if applied:
                        print(f"{applied} changes", flush=True)
                    else:
                        time.sleep(PAUSE)
            # It goes on to serve until another one takes its place.
            serves = False


if __name__ == "__main__":
    run(*sys.argv[1:])
