"""Does one thing over and over for some seconds, and says how often a second it was done.

measure.py NAME prepare     makes the files, durably
measure.py NAME SECONDS     does it, in the working directory
"""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time

BLOCK = 4096
BLOCKS = 4096
THREADS = 8
NAME, TIME = sys.argv[1:]


def rate(step):
    """How often a second, after some times that do not count: the first write makes the file's name durable."""
    for _ in range(20):
        step()
    count, start = 0, time.perf_counter()
    end = start + float(TIME)
    while (now := time.perf_counter()) < end:
        step()
        count += 1
    return count / (now - start)


def block_file(name):
    """A file of many blocks, and one of them at random."""
    fd = os.open(name, os.O_RDWR)
    draw = random.Random(name)
    return fd, lambda: draw.randrange(BLOCKS) * BLOCK


def without_files():
    """Computes, and makes some calls on what nobody manages: a device, a pipe, now and then a file that is opened, read and closed. By
    the program's own processor time, which other programs disturb less than the clock."""
    null, (source, sink) = os.open("/dev/null", os.O_WRONLY), os.pipe()
    line = bytes(200)

    def step():
        for _ in range(10):
            sum(number * number % 7 for number in range(1000))
            os.write(null, line)
            os.write(sink, line)
            os.read(source, len(line))
        fd = os.open(__file__, os.O_RDONLY)
        os.fstat(fd)
        os.read(fd, BLOCK)
        os.close(fd)

    for _ in range(20):
        step()
    count, start, end = 0, time.process_time(), time.perf_counter() + float(TIME)
    while time.perf_counter() < end:
        step()
        count += 1
    return count / (time.process_time() - start)


def write_and_sync(name):
    fd, place = block_file(name)
    block = bytes(range(256)) * (BLOCK // 256)

    def step():
        os.pwrite(fd, block, place())
        os.fsync(fd)

    return step


def read():
    fd, place = block_file("blocks-0")
    os.pwrite(fd, b"a file that is written to", 0)
    return rate(lambda: os.pread(fd, BLOCK, place()))


def append():
    fd = os.open("appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    line = b"x" * 199 + b"\n"

    def step():
        os.write(fd, line)
        os.fdatasync(fd)

    return rate(step)


def write_in_threads():
    found = []

    def one(number):
        found.append(rate(write_and_sync(f"blocks-{number}")))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == THREADS
    return sum(found)


def sqlite(journal, locking):
    connection = sqlite3.connect("app.db", isolation_level=None)
    for pragma in ("journal_mode=" + journal, "synchronous=full", "locking_mode=" + locking):
        connection.execute("pragma " + pragma)
    row = (b"x" * 200,)
    return rate(lambda: connection.execute("insert into t values(?)", row))


def rocksdb():
    if shutil.which("db_bench") is None:
        sys.exit(69)
    # Each of so many is a thousandth of what is asked for, but for the time.
    options = ["--benchmarks=fillsync", "--num=100000000", "--duration=" + str(max(1, round(float(TIME)))), "--db=rocks"]
    said = subprocess.run(["db_bench", *options], check=True, capture_output=True, text=True).stdout
    line = next(line for line in said.splitlines() if line.startswith("fillsync"))
    words = line.split()
    return float(words[words.index("ops/sec") - 1])


def prepare():
    files = THREADS if NAME == "write-fsync-8-threads" else 1
    for number in range(files):
        with open(f"blocks-{number}", "wb", buffering=0) as file:
            for _ in range(BLOCKS):
                file.write(bytes(BLOCK))
            os.fsync(file)
    connection = sqlite3.connect("app.db", isolation_level=None)
    connection.execute("create table t(x blob)")
    connection.close()
    # Not all that others have written.
    for name in [*os.listdir("."), "."]:
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


MEASURED = {
    "write-fsync": lambda: rate(write_and_sync("blocks-0")),
    "write-fsync-8-threads": write_in_threads,
    "append-fdatasync": append,
    "read": read,
    "no-io": without_files,
    "sqlite-wal": lambda: sqlite("wal", "normal"),
    "sqlite-truncate-exclusive": lambda: sqlite("truncate", "exclusive"),
    "sqlite-truncate": lambda: sqlite("truncate", "normal"),
    "sqlite-delete": lambda: sqlite("delete", "normal"),
    "rocksdb-fillsync": rocksdb,
}

if TIME == "prepare":
    prepare()
else:
    print(MEASURED[NAME]())
