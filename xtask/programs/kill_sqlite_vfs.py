"""Commits transactions by SQLite's VFS `untorn` in numbered steps, and says each number.

The arguments are the journal mode (or DEFAULT), and the number of processes that commit at once, each with a connection. It
goes on where an earlier one was killed. With a third argument it says the last number, after a check that each transaction is
there whole and that a stock SQLite opens what a close leaves. UNTORN_SQLITE is the library. With FLUSHES=none the kernel
answers every flush of this process without doing one: a VFS without flushes."""

import collections
import ctypes
import os
import platform
import random
import signal
import sqlite3
import struct
import sys
import time


# The transactions that stay in the database.
KEPT = 100


def without_flushes():
    """Has the kernel answer fsync, fdatasync, msync, syncfs and sync_file_range with success, io_uring with an error."""
    numbers = {"x86_64": ((74, 75, 26, 306, 277), 425), "aarch64": ((82, 83, 227, 267, 84), 425)}
    flushes, ring = numbers[platform.machine()]
    steps = [(0x20, 0, 0, 0)]  # the number of the call
    for number in flushes:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000)]
    steps += [(0x15, 0, 1, ring), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


# The last lines of SQLite's error log.
LOG = collections.deque(maxlen=10)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
def note(_, code, text):
    LOG.append(f"({code}) {text.decode(errors='replace')}")


def keep_log():
    """Has SQLite's error log kept in memory, if Python uses the system's library or a preloaded one. That is chosen
    before SQLite starts, so it starts anew."""
    for name in None, "libsqlite3.so.0":
        try:
            library = ctypes.CDLL(name)
            library.sqlite3_shutdown()
            # The number is that of SQLITE_CONFIG_LOG.
            library.sqlite3_config(16, note, None)
            library.sqlite3_initialize()
            return
        except (AttributeError, OSError):
            continue


def load():
    keep_log()
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(os.environ["UNTORN_SQLITE"])


def connect(mode):
    db = sqlite3.connect("file:data.db?vfs=untorn", uri=True, timeout=100, isolation_level=None)
    if mode != "DEFAULT":
        db.execute(f"PRAGMA journal_mode = {mode}")
    # The log begins anew often.
    db.execute("PRAGMA wal_autocheckpoint = 10")
    db.execute(f"PRAGMA synchronous = {os.environ.get('SYNCHRONOUS', 'FULL')}")
    return db


def rows(number):
    """The rows of a transaction."""
    draw = random.Random(number)
    return [(number, draw.randbytes(draw.randrange(1, 3000))) for _ in range(draw.randrange(1, 6))]


# What this process is about to do, for the words about an error.
doing = "starting"


def write(mode):
    global doing
    doing = "opening the database"
    db = connect(mode)
    while True:
        doing = "beginning"
        db.execute("BEGIN IMMEDIATE")
        doing = "changing rows"
        last = 1 + (db.execute("SELECT max(number) FROM step").fetchone()[0] or 0)
        db.executemany("INSERT INTO step VALUES (?, ?)", rows(last))
        gone = db.execute("DELETE FROM step WHERE number <= ?", (last - KEPT,)).rowcount
        db.execute("UPDATE total SET rows = rows + ?", (len(rows(last)) - gone,))
        doing = "committing"
        db.execute("COMMIT")
        os.write(1, b"%d\n" % last)


def is_killed():
    """Whether the first process was killed, and the others are about to be. It may have served them."""
    time.sleep(0.2)
    try:
        with open(f"/proc/{os.getpgrp()}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def judge(mode):
    failed = os.path.join(os.environ["ASIDE"], "failed")
    assert not os.path.exists(failed), open(failed).read()
    db = connect("DEFAULT")
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the database is not whole"
    made = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'total'").fetchone()[0]
    last = (db.execute("SELECT max(number) FROM step").fetchone()[0] or 0) if made else 0
    count = 0
    for number in range(max(1, last - KEPT + 1), last + 1):
        found = db.execute("SELECT number, data FROM step WHERE number = ? ORDER BY rowid", (number,)).fetchall()
        assert found == rows(number), f"transaction {number} is not whole"
        count += len(found)
    assert not made or db.execute("SELECT rows FROM total").fetchall() == [(count,)], "the total is of another transaction"
    db.close()
    stock = sqlite3.connect("data.db")
    assert stock.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the plain file is not whole"
    assert not made or stock.execute("SELECT rows FROM total").fetchall() == [(count,)], "the plain file is another one"
    print(last)


mode, processes = sys.argv[1], int(sys.argv[2])
if len(sys.argv) > 3:
    load()
    try:
        judge(mode)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)
    sys.exit()
print(os.getpid(), flush=True)
if os.environ.get("FLUSHES") == "none":
    without_flushes()
load()
try:
    db = connect(mode)
    db.execute("BEGIN IMMEDIATE")
    db.execute("CREATE TABLE IF NOT EXISTS step (number INTEGER, data BLOB)")
    db.execute("CREATE INDEX IF NOT EXISTS numbers ON step (number)")
    db.execute("CREATE TABLE IF NOT EXISTS total (id INTEGER PRIMARY KEY, rows)")
    db.execute("INSERT OR IGNORE INTO total VALUES (1, 0)")
    db.execute("COMMIT")
    db.close()
    # A process that has no database open has no locks to lose.
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    write(mode)
except Exception as error:
    # First what SQLite says: looking whether all were killed takes a while, within which they may be.
    code = getattr(error, "sqlite_errorname", "no code of SQLite")
    words = f"{doing}: {type(error).__name__}: {error} ({code}); log: {'; '.join(LOG)}"
    failed = os.path.join(os.environ["ASIDE"], "failed")
    if is_killed():
        signal.pause()
    # Whole or not at all: the file counts once it has its name.
    with open(f"{failed}.{os.getpid()}", "w") as made:
        made.write(words)
    os.rename(made.name, failed)
    # All end, so that the end is seen.
    os.killpg(0, signal.SIGKILL)
