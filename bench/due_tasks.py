"""Measures how late due_tasks.py starts tasks. Prints a histogram of the delays.

Needs psycopg 3, and a database with the tables of examples/sql/due_tasks.sql and of the header of due_tasks.py. It
deletes all tasks and reminders:

    python3 bench/due_tasks.py 'dbname=bench' RATE SECONDS WORKERS ahead

Inserts RATE tasks for each second. With `ahead` they are inserted two seconds before, each second in one statement.
With `now` each is due at once, and inserted in a transaction of its own.
"""

import pathlib
import resource
import subprocess
import sys
import time

import psycopg

PROGRAM = pathlib.Path(__file__).parent.parent / "examples" / "python" / "due_tasks.py"
BOUNDS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000]


def insert_ahead(db, rate, seconds):
    start, = db.execute("SELECT date_trunc('second', clock_timestamp()) + interval '3 s'").fetchone()
    for second in range(seconds):
        db.execute(
            "INSERT INTO due_task (body, due) SELECT '{}', %s + (%s + n / %s::float8) * interval '1 s' FROM generate_series(1, %s) AS n",
            [start, second, rate, rate])
        wait, = db.execute("SELECT extract(epoch FROM %s + %s * interval '1 s' - clock_timestamp())::float8", [start, second - 1]).fetchone()
        time.sleep(max(0, wait))


def insert_now(db, rate, seconds):
    begin = time.monotonic()
    for n in range(rate * seconds):
        db.execute("INSERT INTO due_task (body) VALUES ('{}')")
        time.sleep(max(0, begin + n / rate - time.monotonic()))


def main(conninfo, rate, seconds, workers, mode):
    rate, seconds, workers = int(rate), int(seconds), int(workers)
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.execute("TRUNCATE due_task, reminder")
        command = [sys.executable, PROGRAM, conninfo, "due_tasks"]
        processes = [subprocess.Popen([*command, f"bench-{n}", "30"], stdout=subprocess.DEVNULL) for n in range(workers)]
        try:
            # Those that came first give up shards at their next look.
            fair = """SELECT count(DISTINCT owner) = %s AND sum(1) = max(slots)
                      FROM idgen.leases WHERE name = 'due_tasks' AND state = 'held'"""
            while not db.execute(fair, [workers]).fetchone()[0]:
                time.sleep(0.1)
            {"ahead": insert_ahead, "now": insert_now}[mode](db, rate, seconds)
            while db.execute("SELECT EXISTS (SELECT FROM due_task WHERE state = 'waiting')").fetchone()[0]:
                time.sleep(0.5)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{rate} tasks a second for {seconds} s, {workers} workers, {mode}: "
              f"CPU of the workers {(cpu.ru_utime + cpu.ru_stime) / seconds:.2f} cores")
        report(db)


def report(db):
    delays = """SELECT 1000 * extract(epoch FROM made_at - due)::float8 AS ms
                FROM reminder JOIN due_task ON due_task.id = task_id"""
    counts = dict(db.execute(f"SELECT width_bucket(ms, %s::float8[]), count(*) FROM ({delays}) AS delay GROUP BY 1", [BOUNDS_MS]).fetchall())
    total = sum(counts.values())
    for n, bound in enumerate(BOUNDS_MS):
        share = counts.get(n, 0) / total
        print(f"below {bound:>6} ms  {counts.get(n, 0):>8}  {100 * share:6.2f} %  {'#' * round(60 * share)}")
    quantiles, = db.execute(
        f"SELECT percentile_disc(ARRAY[0.5, 0.9, 0.99, 0.999, 1]) WITHIN GROUP (ORDER BY ms) FROM ({delays}) AS delay").fetchone()
    print("p50, p90, p99, p99.9, max:", ", ".join(f"{ms:.1f} ms" for ms in quantiles))


if __name__ == "__main__":
    main(*sys.argv[1:])
