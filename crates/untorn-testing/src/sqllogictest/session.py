"""One connection of SQLite for sqllogictest. A request is a line of JSON, and so is its answer.

The arguments are the extension's library, or nothing for a stock SQLite, the VFS and the database.
"""

import hashlib
import json
import sqlite3
import sys
import urllib.parse

library, vfs, path = sys.argv[1:]
if library:
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(library)
    loader.close()
connection = sqlite3.connect(f"file:{urllib.parse.quote(path)}?vfs={vfs}", uri=True, timeout=5, isolation_level=None)
connection.text_factory = bytes
# SQLite itself turns a value into another type.
memory = sqlite3.connect(":memory:")
memory.text_factory = bytes

PRINTABLE = bytes(byte if 32 <= byte <= 126 else ord("@") for byte in range(256))


def convert(expression, value):
    return memory.execute(f"SELECT {expression}", (value,)).fetchone()[0]


def shown(value, type):
    """A value as SQLite's own program sqllogictest shows it."""
    if value is None:
        return "NULL"
    if type == "I":
        return str(value if isinstance(value, int) else convert("CAST(? AS INTEGER)", value))
    if type == "R":
        return convert("printf('%.3f', CAST(? AS REAL))", value).decode()
    text = value if isinstance(value, bytes) else convert("CAST(? AS TEXT)", value)
    return text.split(b"\0")[0].translate(PRINTABLE).decode() or "(empty)"


def statements(sql):
    """Python runs one statement at a time."""
    start = 0
    for at, letter in enumerate(sql):
        if letter == ";" and sqlite3.complete_statement(sql[start : at + 1]):
            yield sql[start : at + 1]
            start = at + 1
    if sql[start:].strip():
        yield sql[start:]


def run(types, sql):
    several = ";" in sql.rstrip().rstrip(";")
    for statement in statements(sql) if several else [sql]:
        cursor = connection.execute(statement)
    columns = len(cursor.description or ())
    rows = cursor.fetchall()
    if types is None:
        return {"count": len(rows) if columns else max(cursor.rowcount, 0)}
    if columns != len(types):
        return {"error": f"{columns} columns, not {len(types)}"}
    return {"rows": [[shown(value, type) for value, type in zip(row, types)] for row in rows]}


def end():
    """Closes the database. The answer is what its check says, and a sum of what is in it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    said = [row[0].decode() for row in connection.execute("PRAGMA integrity_check")]
    names = [row[0].decode() for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    content = hashlib.sha256()
    for name in sorted(names):
        quoted = name.replace('"', '""')
        for row in connection.execute(f'SELECT * FROM main."{quoted}"'):
            content.update(repr((name, row)).encode())
    connection.close()
    return {"check": "\n".join(said), "content": content.hexdigest()}


for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = run(*request) if request else end()
    except (sqlite3.Error, sqlite3.Warning) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
