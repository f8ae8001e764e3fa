"""Does one thing over and over for some seconds, and says how often a second it was done.

measure.py NAME prepare     makes the files, durably
measure.py NAME SECONDS     does it, in the working directory
"""

import mmap
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


def status():
    fd = os.open("blocks-0", os.O_RDWR)
    return rate(lambda: os.fstat(fd))


def write_only():
    fd, place = block_file("blocks-0")
    block = bytes(range(256)) * (BLOCK // 256)
    return rate(lambda: os.pwrite(fd, block, place()))


def store_and_sync():
    fd, place = block_file("blocks-0")
    memory = mmap.mmap(fd, BLOCK * BLOCKS)

    def step():
        at = place()
        memory[at] = memory[at] ^ 1
        memory.flush(at, BLOCK)

    return rate(step)


def open_and_close():
    return rate(lambda: os.close(os.open("blocks-0", os.O_RDWR)))


def make_file(name, sync=False):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, b"x" * BLOCK)
    if sync:
        os.fsync(fd)
    os.close(fd)


def make_files():
    names = iter(range(1 << 40))
    return rate(lambda: make_file(f"made-{next(names)}"))


def remove_files():
    """By the time of the removals alone."""
    taken, count = 0.0, 0
    while taken < float(TIME) / 2:
        for number in range(200):
            make_file(f"made-{number}")
        start = time.perf_counter()
        for number in range(200):
            os.unlink(f"made-{number}")
        taken += time.perf_counter() - start
        count += 200
    return count / taken


def replace_and_sync():
    def step():
        make_file("new", sync=True)
        os.rename("new", "name")
        directory = os.open(".", os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    return rate(step)


def whole(command, clear):
    """How often a second a program runs from its start to its end."""
    if shutil.which(command[0]) is None:
        sys.exit(69)
    taken, count = 0.0, 0
    while taken < float(TIME) or count < 2:
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        taken += time.perf_counter() - start
        count += 1
        shutil.rmtree(clear)
    return count / taken


def stream():
    """Megabytes a second: a long file is written in order, and flushed once."""
    piece, pieces = bytes(1 << 20), 128
    taken, count = 0.0, 0
    while taken < float(TIME) or count < 2:
        start = time.perf_counter()
        fd = os.open("stream", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for _ in range(pieces):
            os.write(fd, piece)
        os.fsync(fd)
        os.close(fd)
        taken += time.perf_counter() - start
        count += pieces
    return count / taken


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
    if NAME in ("tar-x", "git-clone"):
        for number in range(700):
            os.makedirs(f"tree/{number % 40}", exist_ok=True)
            with open(f"tree/{number % 40}/{number}", "wb") as file:
                file.write(random.Random(number).randbytes(200 + number * 37 % 9000))
        if NAME == "tar-x":
            subprocess.run(["tar", "cf", "tree.tar", "--transform=s/^tree/out/", "tree"], check=True)
        elif shutil.which("git"):
            author = ["-c", "user.name=a", "-c", "user.email=a@b", "-C", "tree"]
            for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
                subprocess.run(["git", *author, *words], check=True)
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
    "sqlite-off": lambda: sqlite("off", "normal"),
    "rocksdb-fillsync": rocksdb,
    "fstat": status,
    "write": write_only,
    "map-sync": store_and_sync,
    "open-close": open_and_close,
    "create-write-close": make_files,
    "unlink": remove_files,
    "replace-fsync": replace_and_sync,
    "stream-mib": stream,
    "tar-x": lambda: whole(["tar", "xf", "tree.tar"], "out"),
    "git-clone": lambda: whole(["git", "clone", "-q", "tree", "clone"], "clone"),
}

if TIME == "prepare":
    prepare()
else:
    print(MEASURED[NAME]())
