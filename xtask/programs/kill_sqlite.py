"""Commits transactions of several rows each and says their numbers, with the journal that is the first argument. Goes on where an
earlier one was killed. With a second argument: says the last number, after a check that each transaction is there whole. SYNCHRONOUS is
SQLite's own setting: FULL, which is what there is without it, lets a power cut bring back a journal that ended a transaction when it was
removed, and EXTRA does not."""

import os
import random
import sqlite3
import sys


def rows(number):
    """The rows of a transaction."""
    draw = random.Random(number)
    return [(number, draw.randbytes(draw.randrange(1, 3000))) for _ in range(draw.randrange(1, 6))]


if len(sys.argv) == 2:
    print(os.getpid(), flush=True)
db = sqlite3.connect("data.db", isolation_level=None)
if len(sys.argv) > 2:
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the database is not whole"
    made = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'step'").fetchone()[0]
    last = (db.execute("SELECT max(number) FROM step").fetchone()[0] or 0) if made else 0
    for number in range(1, last + 1):
        found = db.execute("SELECT number, data FROM step WHERE number = ? ORDER BY rowid", (number,)).fetchall()
        assert found == rows(number), f"transaction {number} is not whole"
    print(last)
    sys.exit()
db.execute(f"PRAGMA journal_mode = {sys.argv[1]}")
db.execute(f"PRAGMA synchronous = {os.environ.get('SYNCHRONOUS', 'FULL')}")
db.execute("CREATE TABLE IF NOT EXISTS step (number INTEGER, data BLOB)")
db.execute("CREATE INDEX IF NOT EXISTS numbers ON step (number)")
last = db.execute("SELECT max(number) FROM step").fetchone()[0] or 0
while True:
    last += 1
    db.execute("BEGIN")
    db.executemany("INSERT INTO step VALUES (?, ?)", rows(last))
    db.execute("COMMIT")
    print(last, flush=True)
