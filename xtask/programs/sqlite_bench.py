"""Measures SQLite with the VFS `untorn` beside the same SQLite with its own journals, in turns, in a directory.

    python3 sqlite_bench.py LIBRARY DIRECTORY [--rounds 5] [--only insert,read,...]

The library is `libuntorn_sqlite`, without its ending. Each figure is the median of the rounds. A reader is blocked while
it neither runs nor waits for a processor. The switches of a transaction are the voluntary ones of all processes, with
those of the readers.
"""

import argparse
import multiprocessing
import os
import random
import resource
import sqlite3
import statistics
import sys
import time

WAYS = {
    "delete": ("", "delete"),
    "wal": ("", "wal"),
    "untorn": ("vfs=untorn", None),
    "untorn reflection": ("vfs=untorn&engine=reflection", None),
    "untorn hybrid-log": ("vfs=untorn&engine=hybrid-log", None),
}
ROWS = 100_000


def load(library):
    connection = sqlite3.connect(":memory:")
    connection.enable_load_extension(True)
    connection.load_extension(library)
    connection.close()


def connect(path, way):
    parameters, mode = WAYS[way]
    connection = sqlite3.connect(f"file:{path}?{parameters}", uri=True, timeout=60, isolation_level=None)
    if mode:
        connection.execute(f"PRAGMA journal_mode = {mode}").fetchall()
    # The guarantee of untorn: a transaction that was acknowledged is durable.
    connection.execute("PRAGMA synchronous = full")
    return connection


def fill(connection, rows):
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO t VALUES (?, ?)", ((number, f"{number:0100}") for number in range(rows))
    )
    connection.execute("COMMIT")


def create(path, way, rows=0):
    connection = connect(path, way)
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
    if rows:
        fill(connection, rows)
    return connection


def written():
    with open("/proc/self/io") as io:
        return next(int(line.split()[1]) for line in io if line.startswith("write_bytes"))


def insert(connection, state, count):
    before, began = written(), time.perf_counter()
    for _ in range(count):
        state["next"] += 1
        connection.execute("INSERT INTO t VALUES (?, ?)", (state["next"], f"{state['next']:0100}"))
    took = time.perf_counter() - began
    return {"transactions/s": count / took, "bytes/transaction": (written() - before) / count}


def read(connection, state, count):
    keys = [state["chance"].randrange(ROWS) for _ in range(count)]
    began = time.perf_counter()
    for key in keys:
        connection.execute("SELECT b FROM t WHERE a = ?", (key,)).fetchone()
    return {"reads/s": count / (time.perf_counter() - began)}


def read_in_transaction(connection, state, count):
    keys = [state["chance"].randrange(ROWS) for _ in range(count)]
    began = time.perf_counter()
    connection.execute("BEGIN")
    for key in keys:
        connection.execute("SELECT b FROM t WHERE a = ?", (key,)).fetchone()
    connection.execute("COMMIT")
    return {"reads/s": count / (time.perf_counter() - began)}


def interleaved(directory, rounds, count, act, **pragmas):
    """Rounds of `act` with a database of each way that stays open."""
    open_now = {}
    for way in WAYS:
        path = os.path.join(directory, f"{way.replace(' ', '-')}.db")
        connection = create(path, way, ROWS)
        for name, value in pragmas.items():
            connection.execute(f"PRAGMA {name} = {value}").fetchall()
        open_now[way] = (connection, {"next": ROWS, "chance": random.Random(7)})
    figures = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way, (connection, state) in open_now.items():
            found = act(connection, state, count)
            if number:
                figures[way].append(found)
    for connection, _ in open_now.values():
        connection.close()
    return figures


def bulk(directory, rounds):
    figures = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS:
            path = os.path.join(directory, f"bulk-{number}-{way.replace(' ', '-')}.db")
            connection = create(path, way)
            before, began = written(), time.perf_counter()
            fill(connection, ROWS)
            took = time.perf_counter() - began
            figures[way].append({"rows/s": ROWS / took, "bytes/row": (written() - before) / ROWS})
            connection.close()
            os.remove(path)
    return figures


def switches():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def work(path, way, library, kind, own, seconds, slow, barriers, found):
    if library:
        load(library)
    connection = connect(path, way)
    chance, count, longest, blocked = random.Random(own), 0, 0.0, 0.0
    # How long this thread has waited for a processor, which is not the database's doing.
    schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    at_work = lambda: time.thread_time() + int(os.pread(schedule, 64, 0).split()[1]) / 1e9
    start, finish = barriers
    start.wait()
    first = time.perf_counter()
    before, switched = written(), switches()
    while time.perf_counter() < first + seconds:
        # Around the clock's two readings: a wait for a processor between these and those is no block.
        key, was_at_work, began = chance.randrange(ROWS), at_work(), time.perf_counter()
        try:
            if kind == "writer":
                connection.execute("UPDATE t SET b = ? WHERE a = ?", (f"{own:0100}", key))
            else:
                connection.execute("SELECT b FROM t WHERE a = ?", (key,)).fetchone()
            count += 1
        except sqlite3.OperationalError as error:
            print(f"{way} {kind}: {error}", file=sys.stderr)
        took = time.perf_counter() - began
        waited = took - (at_work() - was_at_work)
        longest, blocked = max(longest, took), max(blocked, waited)
        if slow and kind == "reader" and 1000 * waited >= slow:
            at = 1000 * (began - first)
            print(f"{way} reader {own} was blocked {1000 * waited:.1f} of {1000 * took:.1f} ms, {at:.1f} ms after the start")
    # The first to close would have the others wait for the next one to serve.
    finish.wait()
    found.put((kind, count / seconds, longest, written() - before, blocked, switches() - switched))
    connection.close()


def processes(directory, rounds, library, writers, readers, seconds, slow):
    figures = {way: [] for way in WAYS}
    for way in WAYS:
        path = os.path.join(directory, f"processes-{way.replace(' ', '-')}.db")
        create(path, way, ROWS).close()
    context = multiprocessing.get_context("spawn")
    for _ in range(rounds):
        for way in WAYS:
            path = os.path.join(directory, f"processes-{way.replace(' ', '-')}.db")
            barriers, found = [context.Barrier(writers + readers) for _ in range(2)], context.Queue()
            kinds = ["writer"] * writers + ["reader"] * readers
            all_of_them = [
                context.Process(target=work, args=(path, way, library, kind, own, seconds, slow, barriers, found))
                for own, kind in enumerate(kinds)
            ]
            for process in all_of_them:
                process.start()
            told = [found.get() for _ in all_of_them]
            for process in all_of_them:
                process.join()
            of = lambda kind, at: [each[at] for each in told if each[0] == kind] or [0]
            wrote = sum(of("writer", 1)) * seconds
            figures[way].append(
                {
                    "reads/s": sum(of("reader", 1)),
                    "transactions/s": sum(of("writer", 1)),
                    "longest read, ms": 1000 * max(of("reader", 2)),
                    "longest blocked, ms": 1000 * max(of("reader", 4)),
                    "longest write, ms": 1000 * max(of("writer", 2)),
                    "bytes/transaction": sum(each[3] for each in told) / max(wrote, 1),
                    "switches/transaction": sum(each[5] for each in told) / max(wrote, 1),
                }
            )
    return figures


def show(name, figures):
    print(f"\n{name}")
    names = list(next(iter(figures.values()))[0])
    print("  {:20}".format("") + "".join(f"{name:>20}" for name in names), flush=True)
    wal = {name: statistics.median(found[name] for found in figures["wal"]) for name in names}
    for way, found in figures.items():
        medians = {name: statistics.median(each[name] for each in found) for name in names}
        cells = (f"{medians[name]:,.1f}" + (f" ({medians[name] / wal[name]:.2f})" if wal[name] else "") for name in names)
        print(f"  {way:20}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("directory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="insert,read,read-uncached,transaction,bulk,processes")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--inserts", type=int, default=500)
    parser.add_argument("--reads", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--slow", type=float, metavar="MS", help="name each read that was blocked for so long")
    arguments = parser.parse_args()
    for way in [way for way in WAYS if way not in arguments.ways.split(",")]:
        del WAYS[way]
    load(arguments.library)
    print(f"SQLite {sqlite3.sqlite_version}; medians of {arguments.rounds} rounds in turns; in brackets: beside wal")
    only = arguments.only.split(",")
    made = os.path.join(arguments.directory, f"sqlite-bench-{os.getpid()}")
    os.mkdir(made)
    measured = lambda name, measure: name in only and show(name, measure())
    inside = lambda name: os.path.join(made, name) if os.makedirs(os.path.join(made, name), exist_ok=True) is None else ""
    rounds = arguments.rounds
    measured("insert", lambda: interleaved(inside("insert"), rounds, arguments.inserts, insert))
    measured("read", lambda: interleaved(inside("read"), rounds, arguments.reads, read, cache_size=20_000))
    measured("read-uncached", lambda: interleaved(inside("uncached"), rounds, arguments.reads, read, cache_size=10))
    measured(
        "transaction",
        lambda: interleaved(inside("transaction"), rounds, arguments.reads, read_in_transaction, cache_size=10),
    )
    measured("bulk", lambda: bulk(inside("bulk"), rounds))
    measured(
        "processes",
        lambda: processes(
            inside("processes"),
            rounds,
            arguments.library,
            arguments.writers,
            arguments.readers,
            arguments.seconds,
            arguments.slow,
        ),
    )
    for root, directories, files in os.walk(made, topdown=False):
        for name in files:
            os.remove(os.path.join(root, name))
        for name in directories:
            os.rmdir(os.path.join(root, name))
    os.rmdir(made)


if __name__ == "__main__":
    main()
