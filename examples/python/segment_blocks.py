"""Counts through blocks of a segment in the program (hi/lo): one statement for each thousand values.

Needs psycopg 3 and a segment:

    SELECT segment_create('ticket');

This prints 5000 values:

    python3 segment_blocks.py 'host=db1 dbname=shop user=app' ticket 5000

In your own program, make one Blocks for each segment, and call next() in any thread and after a fork. No other client
and no call of segment_next() gets a value of the block. Values that are left when the program ends are a gap. Values of
several programs do not rise in the order of use.
"""

import os
import sys
import threading
import time

import psycopg


class Blocks:
    def __init__(self, conninfo, tag, size=1000):
        self.conninfo, self.tag, self.size = conninfo, tag, size
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self):
        # After a fork, the rest of the block and the connection belong to the parent.
        self.lock, self.block, self.db = threading.Lock(), iter(()), None

    def next(self):
        """Returns the next value. Raises psycopg.Error if there is no block; you may call it again."""
        with self.lock:
            value = next(self.block, None)
            if value is None:
                self.block = self.reserve()
                value = next(self.block)
            return value

    def reserve(self):
        if not self.db:
            self.db = psycopg.connect(
                self.conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10,
                options="-c statement_timeout=10s", tcp_user_timeout=15000)
        try:
            first, last, stride = self.db.execute(
                "SELECT first_id, last_id, stride FROM segment_reserve(%s, %s)", [self.tag, self.size]).fetchone()
        except psycopg.Error:
            # A block whose answer was lost is a gap. The next call connects again.
            self.db.close()
            self.db = None
            raise
        return iter(range(first, last + 1, stride))


if __name__ == "__main__":
    conninfo, tag, count = sys.argv[1:]
    blocks = Blocks(conninfo, tag)
    printed = 0
    while printed < int(count):
        try:
            print(blocks.next(), flush=True)
            printed += 1
        except psycopg.OperationalError as error:
            print(error, file=sys.stderr)
            time.sleep(0.1)
