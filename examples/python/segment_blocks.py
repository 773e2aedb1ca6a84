"""Counts through blocks of a segment in the program (hi/lo): one statement for each thousand values.

Needs psycopg 3 and a segment. `app` is the role of the program:

    SELECT segment_create('ticket');
    SELECT segment_grant('ticket', 'app');

This prints 5000 values:

    python3 segment_blocks.py 'host=db1 dbname=shop user=app' ticket 5000

In your own program, make one Blocks for each segment, and call next() in any thread and after a fork.

Guaranteed: no other client, no thread, no child and no call of segment_next() gets a value of the block. Not
guaranteed: that all values are used. Those that are left when the program ends are a gap. Nor do values of several
programs rise in the order of use. A handler of a signal must not fork.
"""

import contextlib
import os
import socket
import sys
import threading
import time
import weakref

import psycopg

PATIENCE = 10.0     # Seconds for an answer of the server.


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


class Blocks:
    def __init__(self, conninfo, tag, size=1000):
        self.conninfo, self.tag, self.size = conninfo, tag, size
        self.reset()
        # The hook stays for ever, so it does not keep this object.
        weak = weakref.WeakMethod(self.reset)
        os.register_at_fork(after_in_child=lambda: (reset := weak()) and reset())

    def reset(self):
        # After a fork, the rest of the block and the connection belong to the parent.
        self.lock, self.inside, self.block, self.db = threading.Lock(), set(), iter(()), None

    def next(self):
        """Returns the next value. Raises psycopg.Error if there is no block; you may call it again.

        A handler of a signal that interrupts a call gets RuntimeError.
        """
        caller, inside = threading.get_ident(), self.inside
        if caller in inside:
            # It runs in the middle of this thread's call, which has the lock.
            raise RuntimeError("called in the middle of another call, by a handler of a signal")
        try:
            inside.add(caller)
            with self.lock:
                value = next(self.block, None)
                if value is None:
                    self.block = self.reserve()
                    value = next(self.block)
                return value
        finally:
            inside.discard(caller)

    def close(self):
        """Closes the connection. The rest of the block stays usable."""
        with self.lock:
            self.disconnect()

    # All that follows is called under the lock.

    def reserve(self):
        self.db = self.db or psycopg.connect(
            self.conninfo, autocommit=True, prepare_threshold=None, connect_timeout=round(PATIENCE))
        try:
            with deadline(self.db, PATIENCE):
                first, last, stride = self.db.execute(
                    "SELECT first_id, last_id, stride FROM segment_reserve(%s, %s)", [self.tag, self.size]).fetchone()
        except psycopg.Error:
            # A block whose answer was lost is a gap. The next call connects again.
            self.disconnect()
            raise
        return iter(range(first, last + 1, stride))

    def disconnect(self):
        if self.db:
            self.db.close()
        self.db = None


if __name__ == "__main__":
    conninfo, tag, count = sys.argv[1:]
    blocks = Blocks(conninfo, tag)
    printed = 0
    while printed < int(count):
        try:
            print(blocks.next(), flush=True)
            printed += 1
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
            print(error, file=sys.stderr)
            time.sleep(0.1)
