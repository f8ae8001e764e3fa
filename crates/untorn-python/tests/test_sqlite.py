"""SQLite by the VFS of the package."""

import os
import sqlite3
import sys

import pytest

from conftest import examples, run

import untorn.sqlite


def test_a_database_is_atomic_and_then_plain(tmp_path):
    path = tmp_path / "a b%20#?.db"
    with pytest.raises(sqlite3.OperationalError):
        untorn.sqlite.connect(path, mode="rw")
    db = untorn.sqlite.connect(path, isolation_level=None)
    assert db.execute("PRAGMA untorn_info").fetchone()[0].startswith("engine=reflection")
    db.execute("CREATE TABLE t (a)")
    db.execute("BEGIN")
    db.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
    db.execute("ROLLBACK")
    db.execute("INSERT INTO t VALUES (7)")
    # A stock SQLite is refused meanwhile.
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(path, timeout=0).execute("SELECT * FROM t")
    db.close()
    assert sorted(name for name in os.listdir(tmp_path) if name != ".untorn") == [path.name]
    plain = sqlite3.connect(path)
    assert plain.execute("SELECT a FROM t").fetchall() == [(7,)]
    plain.close()
    reader = untorn.sqlite.connect(os.fsencode(path), mode="ro")
    with pytest.raises(sqlite3.OperationalError):
        reader.execute("INSERT INTO t VALUES (8)")
    reader.close()


def test_arguments_choose_the_engine_and_snapshots(tmp_path):
    db = untorn.sqlite.connect("b.db", engine="hybrid-log", snapshot=False, timeout=0.1)
    info = db.execute("PRAGMA untorn_info").fetchone()[0]
    assert "engine=hybrid-log" in info and "snapshots=off redundancy=off" in info
    db.close()
    db = untorn.sqlite.connect("c.db", redundancy=True)
    assert db.execute("PRAGMA untorn_info").fetchone()[0].endswith("redundancy=on")
    db.close()
    with pytest.raises(TypeError):
        untorn.sqlite.connect("b.db", uri=True)
    with pytest.raises(sqlite3.OperationalError):
        untorn.sqlite.connect("b.db", engine="none")  # type: ignore[arg-type]


def test_a_reader_and_a_writer_do_not_wait(tmp_path):
    writer = untorn.sqlite.connect("c.db", isolation_level=None, timeout=0)
    writer.execute("CREATE TABLE t (a)")
    reader = untorn.sqlite.connect("c.db", isolation_level=None, timeout=0)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    writer.execute("INSERT INTO t VALUES (1)")
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (1,)
    reader.close()
    writer.close()


def test_a_killed_writer_leaves_its_last_commit(tmp_path):
    program = """
        import os, signal, untorn.sqlite
        db = untorn.sqlite.connect("d.db", isolation_level=None)
        db.execute("CREATE TABLE t (a)")
        db.execute("INSERT INTO t VALUES (1)")
        db.execute("BEGIN")
        db.execute("INSERT INTO t VALUES (2)")
        print("written", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with pytest.raises(AssertionError, match="-9"):
        run(program)
    db = untorn.sqlite.connect("d.db")
    assert db.execute("SELECT a FROM t").fetchall() == [(1,)]
    db.close()


def test_a_python_without_extensions_loads_it_too():
    program = """
        import sqlite3, sys, untorn.sqlite

        class Bare(sqlite3.Connection):
            def __getattribute__(self, name):
                if name == "enable_load_extension":
                    raise AttributeError(name)
                return super().__getattribute__(name)

        connect = sqlite3.connect
        sqlite3.connect = lambda *a, **k: connect(*a, **{"factory": Bare, **k})
        db = untorn.sqlite.connect("e.db")
        print(db.execute("PRAGMA untorn_snapshot").fetchone()[0])
    """
    assert int(run(program)) >= 0


def test_the_examples_of_the_docstrings():
    assert examples(sys.modules["untorn.sqlite"]) > 5
