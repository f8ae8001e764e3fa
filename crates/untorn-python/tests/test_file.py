"""``untorn.open``: transactions, rollback, errors, snapshots, backup."""

import errno
import os
import pickle
import threading
import time

import pytest
from conftest import cases, examples, run
from hypothesis import given, settings
from hypothesis import strategies as st

import untorn
import untorn._arrays
import untorn._files
import untorn._maps

ENGINES = ["reflection", "hybrid-log", "shadow"]


def test_the_examples_of_the_docstrings() -> None:
    assert sum(examples(module) for module in (untorn, untorn._files, untorn._maps, untorn._arrays)) > 20


@pytest.mark.parametrize("engine", ENGINES)
def test_a_transaction_commits_or_rolls_back(engine: str) -> None:
    with untorn.open("f", "w+", 8192, engine=engine) as f:
        with f.transaction() as tx:
            tx.write_at(0, b"one")
            tx.write_at(4094, b"across")
            assert tx.read_at(4094, 6) == b"across"
            assert f.read_at(4094, 6) == bytes(6)
        assert f.read_at(4094, 6) == b"across"
        with pytest.raises(RuntimeError):
            with f.transaction() as tx:
                tx.write_at(0, b"two")
                raise RuntimeError
        assert f.read_at(0, 3) == b"one"
        with pytest.raises(ValueError, match="ended"):
            tx.commit()
        assert f.info()["engine"] == engine
        assert abs(f.info()["committed"].timestamp() - time.time()) < 60
    with open("f", "rb") as plain:
        assert plain.read(3) == b"one"
    number = untorn.inspect("f")["commit"]
    with untorn.open("f", engine=engine) as f:
        f.write_at(0, b"three")
        assert f.commit() > number, "numbers go on through a close"


def test_an_exception_in_a_block_discards_what_no_commit_has() -> None:
    with untorn.open("f", "w+", 4096) as f:
        f.write_at(0, b"kept")
    with pytest.raises(KeyError):
        with untorn.open("f") as f:
            f.write_at(0, b"lost")
            raise KeyError
    assert open("f", "rb").read(4) == b"kept"


def test_the_old_contents_stay_until_the_first_commit() -> None:
    with untorn.open("f", "w+", 100) as f:
        f.write_at(0, b"old")
    untorn.open("f", "w+", 50).discard()
    assert open("f", "rb").read(3) == b"old" and os.path.getsize("f") == 100
    untorn.open("f", "w+", 50).close()
    assert open("f", "rb").read() == bytes(50)


@pytest.mark.parametrize("mode", ["r", "r+", "w+", "x+", "a+"])
def test_modes_do_what_those_of_open_do(mode: str) -> None:
    if mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError) as caught:
            untorn.open("f", mode)
        assert caught.value.errno == errno.ENOENT and caught.value.filename == "f"
        assert "f" in str(caught.value) and isinstance(caught.value, untorn.Error)
    else:
        untorn.open("f", mode, 10).close()
        assert os.path.getsize("f") == 10
    if mode == "x+":
        with pytest.raises(FileExistsError):
            untorn.open("f", mode)
    if mode == "r":
        open("f", "wb").write(b"bytes")
        with untorn.open("f", mode) as f:
            assert f.read_at(0, 5) == b"bytes"
            with pytest.raises(untorn.ReadOnlyError):
                f.write_at(0, b"x")


def test_errors_are_of_the_classes_that_python_has() -> None:
    with untorn.open("f", "w+", 100) as f:
        with pytest.raises(IndexError, match="10 bytes at offset 95"):
            f.read_at(95, 10)
        with pytest.raises(untorn.OutOfRangeError):
            f.read_at(0, 1 << 60)
        with pytest.raises(untorn.OutOfRangeError):
            f.write_at(99, b"two")
        with pytest.raises(BufferError):
            f.write_at(0, memoryview(b"every second")[::2])
        with pytest.raises(TypeError):
            f.write_at(0, "text")
        with pytest.raises(OverflowError):
            f.read_at(-1, 1)
        with pytest.raises(TypeError):
            pickle.dumps(f)
    with pytest.raises(ValueError, match="closed"):
        f.read_at(0, 1)
    f.close()
    assert f.closed and "closed" in repr(f) and os.fspath(f) == "f"
    for wrong in ({"mode": "w"}, {"engine": "fast"}, {"durability": "never"}, {"size": -1}):
        with pytest.raises(ValueError):
            untorn.open("f", **wrong)
    with pytest.raises(untorn.NotAFileError):
        untorn.open(".")


def test_an_error_survives_a_pickle() -> None:
    with pytest.raises(untorn.Error) as caught:
        untorn.open("missing")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value) and str(again) == str(caught.value) and again.errno == errno.ENOENT


def test_a_file_in_use_says_by_whom() -> None:
    with untorn.open("f", "w+", 100):
        said = run(
            """
            import untorn
            try:
                untorn.open("f")
            except untorn.InUseError as error:
                print(error.errno, error)
            """
        )
    assert said.startswith(str(errno.EBUSY)) and str(os.getpid()) in said


@pytest.mark.parametrize("engine", ENGINES)
def test_a_snapshot_stays_while_writers_go_on(engine: str) -> None:
    with untorn.open("f", "w+", 10000, engine=engine) as f:
        f.write_at(0, b"a" * 10000)
        f.commit()
        with f.snapshot() as held:
            f.write_at(0, b"b" * 10000)
            f.commit()
            assert held.read_at(0, 10000) == b"a" * 10000 and len(held) == 10000
            # Another process sees the last commit.
            assert run("import untorn; print(untorn.snapshot('f').read_at(9999, 1))") == "b'b'\n"
            memory = memoryview(held.map())
        with pytest.raises(ValueError, match="closed"):
            held.read_at(0, 1)
        assert memory == b"a" * 10000 and memory.readonly, "what is mapped outlives the snapshot"
        told = f.backup("copy", verify=True)
        assert told["len"] == 10000 and told["since"] is None
        with pytest.raises(untorn.CommitsMissingError, match="no commit log"):
            f.backup("increment", since=told["commit"])
    assert open("copy", "rb").read() == b"b" * 10000


def test_threads_write_while_one_commits() -> None:
    with untorn.open("f", "w+", 8 * 4096) as f:

        def write(n: int) -> None:
            for round in range(200):
                f.write_at(n * 4096, bytes([round]) * 4096)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        [thread.start() for thread in threads]
        commits = [f.commit() for _ in range(20)]
        [thread.join() for thread in threads]
        assert commits == sorted(commits)
        assert f.read_at(0, 8 * 4096) == bytes([199]) * 8 * 4096


def test_a_write_takes_the_bytes_of_any_buffer() -> None:
    import array

    import numpy

    with untorn.open("f", "w+", 100) as f:
        f.write_at(0, bytearray(b"one"))
        f.write_at(3, memoryview(b"two"))
        f.write_at(6, numpy.array([1, 2], "<u2"))
        f.write_at(10, array.array("d", [1.5]))
        assert f.read_at(0, 10) == b"onetwo\x01\x00\x02\x00"
        into = numpy.zeros(1)
        assert f.readinto_at(into, 10) == 8 and into[0] == 1.5
        with pytest.raises(BufferError):
            f.readinto_at(b"constant", 0)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 9000), st.binary(max_size=5000)),
        st.tuples(st.just("transaction"), st.lists(st.tuples(st.integers(0, 9000), st.binary(max_size=300)))),
        st.tuples(st.just("resize"), st.integers(0, 20000)),
        st.tuples(st.sampled_from(["commit", "crash", "reopen", "rollback"])),
    ),
    max_size=20,
)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=cases(25, 1000), deadline=None)
@given(operations=OPERATIONS)
def test_a_file_is_a_byte_array_that_commits(engine: str, operations: list) -> None:
    if os.path.exists("model"):
        os.unlink("model")
    f = untorn.open("model", "x+", 5000, engine=engine)
    f.commit()
    committed = current = bytes(5000)

    def written(old: bytes, at: int, data: bytes) -> bytes:
        return old[:at] + data + old[at + len(data) :]

    for operation, *arguments in operations:
        if operation == "write":
            at, data = arguments
            if at + len(data) > len(current):
                with pytest.raises(untorn.OutOfRangeError):
                    f.write_at(at, data)
            else:
                f.write_at(at, data)
                current = written(current, at, data)
        elif operation == "transaction":
            writes = [(at, data) for at, data in arguments[0] if at + len(data) <= len(current)]
            with f.transaction() as tx:
                for at, data in writes:
                    tx.write_at(at, data)
                    current = written(current, at, data)
            committed = current
        elif operation == "resize":
            f.resize(arguments[0])
            current = current[: arguments[0]].ljust(arguments[0], b"\0")
            committed = committed if engine == "hybrid-log" else current
        elif operation == "commit":
            f.commit()
            committed = current
        else:
            f.close() if operation == "reopen" else f.discard()
            committed = current = current if operation == "reopen" else committed
            f = untorn.open("model", engine=engine)
        assert f.read_at(0, len(f)) == current
    f.discard()
    assert open("model", "rb").read() == committed
