"""``untorn.map``: the buffer protocol, growth, closing, other threads, processes and programs."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import cases, python, run
from hypothesis import given, settings
from hypothesis import strategies as st

import untorn


def can_share() -> bool:
    """Whether this machine lets a process share stores: it needs userfaultfd."""
    try:
        untorn.map("probe", 4096, "w+", shared=True).close()
    except PermissionError:
        return False
    return True


@pytest.fixture
def shared() -> None:
    if not can_share():
        pytest.skip("userfaultfd is not allowed here (untorn doctor)")


def test_stores_commit_together() -> None:
    m = untorn.map("f", 8192, "w+")
    a = np.asarray(m)
    a[:10] = 1
    m[4096:4099] = b"two"
    assert open("f", "rb").read() == bytes(8192), "nothing is in the file before the commit"
    first = m.commit()
    a[:10] = 9
    m.rollback()
    assert (a[:10] == 1).all() and m[4096:4099] == b"two" and m[0] == 1
    assert m.commit() == first
    del a
    m.close()
    assert open("f", "rb").read(2) == b"\x01\x01"


def test_closing_is_refused_while_there_are_views() -> None:
    m = untorn.map("f", 8192, "w+")
    views = [memoryview(m), np.asarray(m), m.array("f8"), m.array("f8")[3:5], np.frombuffer(m, "u1", 10)]
    while views:
        with pytest.raises(BufferError, match="exist"):
            m.close()
        assert not m.closed
        views.pop()
        gc.collect()
    m.close()
    m.close()
    assert m.closed
    for use in (m.commit, m.array, lambda: memoryview(m), lambda: len(m), lambda: m[0]):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_commits_beside_an_array_that_numpy_does_not_tell_of_are_recovered() -> None:
    """A store beside a commit that does not allow for it makes the log's checksum wrong."""
    for _ in range(cases(3, 100)):
        child = python(
            """
            import os, signal, threading, numpy as np, untorn
            m = untorn.map("f", 1 << 20, "w+")
            a = np.ndarray(1 << 17, "u8", buffer=m)
            assert m.info()["buffers"] == 0
            def store():
                while True:
                    np.add(a, 1, out=a)
            threading.Thread(target=store, daemon=True).start()
            for n in range(60):
                m.commit()
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
        _, err = child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL, err
        with untorn.map("f") as m:
            assert len(m) == 1 << 20
        os.unlink("f")


def test_an_array_that_numpy_does_not_tell_of_dangles_nowhere() -> None:
    m = untorn.map("f", 1 << 20, "w+")
    a = np.ndarray(1 << 20, "u1", buffer=m)
    a[5] = 7
    m.close()
    assert a.sum() == 0
    a[:] = 1
    assert open("f", "rb").read()[5] == 7
    gone = weakref.ref(m)
    del m
    assert gone() is not None, "the array holds the map"
    del a
    assert gone() is None


def test_views_stay_valid_while_the_map_grows() -> None:
    with untorn.map("f", 4096, "w+", max_size=1 << 30) as m:
        a = m.array("u4")
        a[7] = 7
        m.resize(1 << 28)
        assert a[7] == 7 and len(a) == 1024
        b = m.array("u4")
        b[-1] = 9
        with pytest.raises(BufferError, match="shrink"):
            m.resize(4096)
        m.rollback()
        assert b[-1] == 0, "it is zeros again, and still there"
        b[-1] = 9
        m.commit()
        del a, b
        with pytest.raises(ValueError, match="max_len|reserved"):
            m.resize(1 << 31)
        m.resize(8192)
    assert os.path.getsize("f") == 8192


def test_modes() -> None:
    with pytest.raises(FileNotFoundError):
        untorn.map("f")
    with pytest.raises(ValueError, match="size"):
        untorn.map("f", mode="w+")
    with pytest.raises(ValueError, match="mode"):
        untorn.map("f", mode="rw")
    with untorn.map("f", 100, "w+") as m:
        m[0:3] = b"abc"
    with untorn.map("f", mode="r") as m:
        assert m[0:3] == b"abc" and memoryview(m).readonly and not m.array().flags.writeable
        with pytest.raises(TypeError):
            m[0:3] = b"xyz"
        with pytest.raises(untorn.ReadOnlyError):
            m.commit()
        m.flush()
    with untorn.map("f", mode="c") as m:
        m[0:3] = b"xyz"
        assert m[0:3] == b"xyz"
        with pytest.raises(untorn.ReadOnlyError):
            m.commit()
    m = untorn.map("f", 50, "w+")
    assert bytes(m) == bytes(50) and open("f", "rb").read(3) == b"abc", "until the first commit"
    m.close()
    assert open("f", "rb").read() == bytes(50)
    with untorn.map("f", 60) as m:
        assert len(m) == 60


def test_an_exception_discards_the_stores_of_a_block() -> None:
    untorn.map("f", 4096, "w+").close()
    with pytest.raises(KeyError):
        with untorn.map("f") as m:
            a = m.array()
            a[0] = 1
            raise KeyError
    assert a[0] == 0, "the array is there, and its stores are not"
    del a, m
    gc.collect()
    assert open("f", "rb").read(1) == b"\0"
    with untorn.map("f") as m:
        with pytest.raises(KeyError):
            with m.transaction():
                m[0] = 5
                raise KeyError
        with m.transaction():
            m[1] = 6
    assert open("f", "rb").read(2) == b"\0\x06"


def test_a_map_without_a_close_discards_as_a_crash_does() -> None:
    m = untorn.map("f", 4096, "w+")
    m[0] = 1
    m.commit()
    m[0] = 2
    del m
    gc.collect()
    assert open("f", "rb").read(1) == b"\x01"


def test_threads_store_while_others_commit() -> None:
    """numpy lets go of the interpreter's lock in large operations, and so does a commit."""
    m = untorn.map("f", 1 << 20, "w+")
    a = m.array("u8")
    ends = threading.Event()

    def store() -> None:
        n = 0
        while not ends.is_set():
            n += 1
            np.copyto(a, n)

    thread = threading.Thread(target=store)
    thread.start()
    for _ in range(cases(50, 2000)):
        before = int(a[-1])
        m.commit()
        with m.snapshot() as held:
            last = np.frombuffer(held.read_at((1 << 20) - 8, 8), "u8")[0]
        assert last >= before
    ends.set()
    thread.join()
    m.commit()
    now = int(a[0])
    assert (a == now).all(), "no commit took a store back"
    del a
    m.close()
    assert (np.fromfile("f", "u8") == now).all()


def test_a_file_that_is_cut_short_is_an_error_and_no_crash() -> None:
    said = run(
        """
        import untorn
        m = untorn.map("f", 1 << 20, "w+")
        m.array()[:] = 1
        m.commit()
        m.close()
        m = untorn.map("f")
        a = m.array()
        open("f", "r+b").truncate(0)
        print(int(a[1 << 19]))
        try:
            m.commit()
            a[:] = 2
            m.commit()
        except untorn.Error as error:
            print(type(error).__name__)
        """
    )
    assert said.split()[0] == "0" and said.split()[1].endswith("Error")


def test_a_forked_child_has_the_stores_and_may_not_commit() -> None:
    said = run(
        """
        import os, warnings, untorn
        m = untorn.map("f", 4096, "w+")
        a = m.array()
        a[0] = 3
        child = os.fork()
        if child == 0:
            a[0] += 1
            try:
                m.commit()
            except untorn.ForkedError:
                os._exit(int(a[0]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), a[0])
        m.commit()
        """
    )
    assert said == "4 3\n"
    assert open("f", "rb").read(1) == b"\x03"


def test_a_map_of_one_process_is_in_no_pickle() -> None:
    with untorn.map("f", 4096, "w+") as m:
        with pytest.raises(TypeError, match="shared=True"):
            pickle.dumps(m)
    with untorn.map("f", mode="r") as m:
        again = pickle.loads(pickle.dumps(m))
        assert bytes(again) == bytes(m) and not again.writable


def test_arrays_go_to_other_processes_without_their_data(shared: None) -> None:
    with untorn.map("f", 1 << 20, "w+", shared=True) as m:
        a = m.array("f4", (100, 200), offset=4096)
        a[10, 20] = 1.5
        pickled = pickle.dumps(untorn.ref(a[10:, ::2]))
        assert len(pickled) < 1000
        said = run(
            """
            import pickle, sys, untorn
            a = pickle.loads(bytes.fromhex(sys.argv[1])).array()
            print(a.shape, a[0, 10])
            a[0, 0] = 7
            untorn.map_of(a).commit()
            """,
            pickled.hex(),
        )
        assert said == "(90, 100) 1.5\n" and a[10, 0] == 7
        assert pickle.loads(pickle.dumps(m)) is m, "one map of a file in a process"
        del a
    assert np.fromfile("f", "f4", offset=4096)[10 * 200] == 7


def test_processes_of_multiprocessing_store_at_once(shared: None) -> None:
    open("work.py", "w").write("""
import multiprocessing, untorn

def work(ref, n):
    ref.array()[n] = n + 1
    ref.map.commit()

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with untorn.map(method, 4096, "w+", shared=True) as m:
            a = m.array("u4", 8)
            context = multiprocessing.get_context(method)
            children = [context.Process(target=work, args=(untorn.ref(a), n)) for n in range(4)]
            [child.start() for child in children]
            [child.join() for child in children]
            print([child.exitcode for child in children], a.tolist())
            del a
""")
    done = subprocess.run([sys.executable, "work.py"], capture_output=True, text=True)
    assert done.stdout == "[0, 0, 0, 0] [1, 2, 3, 4, 0, 0, 0, 0]\n" * 2, done.stdout + done.stderr


def test_a_kill_leaves_the_last_commit() -> None:
    for _ in range(cases(3, 200)):
        child = python(
            """
            import numpy as np, untorn
            m = untorn.map("f", 64 * 4096, "w+")
            a = m.array("u4")
            print("ready", flush=True)
            n = 0
            while True:
                n += 1
                a[:] = n
                m.commit()
                print(n, flush=True)
            """
        )
        acknowledged = 0
        for line in child.stdout:
            if line != "ready\n":
                acknowledged = int(line)
            if acknowledged >= 20:
                os.kill(child.pid, signal.SIGKILL)
                break
        rest = [int(line) for line in child.stdout.read().split("\n")[:-1]]
        child.wait()
        acknowledged = max([acknowledged, *rest])
        assert untorn.inspect("f")["state"] == "needs-recovery"
        with untorn.map("f") as m:
            a = m.array("u4")
            found = int(a[0])
            assert (a == found).all(), "torn"
            assert found in (acknowledged, acknowledged + 1)
            del a
        os.unlink("f")


STORES = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 30000), st.binary(min_size=1, max_size=9000)),
        st.tuples(st.just("resize"), st.integers(1, 40000)),
        st.tuples(st.sampled_from(["commit", "rollback", "reopen", "view", "forget"])),
    ),
    max_size=25,
)


@settings(max_examples=cases(40, 2000), deadline=None)
@given(operations=STORES)
def test_a_map_is_a_byte_array_that_commits(operations: list) -> None:
    if os.path.exists("model"):
        os.unlink("model")
    m = untorn.map("model", 10000, "w+")
    m.commit()
    committed = current = bytearray(10000)
    views: list = []
    for operation, *arguments in operations:
        if operation == "store":
            at, data = arguments
            data = data[: max(0, len(current) - at)]
            if data:
                m[at : at + len(data)] = data
                current = current[:at] + data + current[at + len(data) :]
        elif operation == "resize":
            size = arguments[0]
            if views and size < len(current):
                with pytest.raises(BufferError):
                    m.resize(size)
            else:
                m.resize(size)
                current = current[:size].ljust(size, b"\0")
        elif operation == "commit":
            m.commit()
            committed = current
        elif operation == "rollback":
            grown = len(current) if views else 0
            m.rollback()
            current = committed[:].ljust(max(grown, len(committed)), b"\0")
        elif operation == "view":
            views.append(m.array())
        elif operation == "forget":
            views.clear()
        elif not views:
            m.close()
            committed = current
            m = untorn.map("model")
        assert bytes(m) == current
    views.clear()
    m.discard()
    assert open("model", "rb").read() == committed


def test_no_import_of_numpy_is_needed() -> None:
    command = [sys.executable, "-c", "import sys, untorn; assert 'numpy' not in sys.modules"]
    assert subprocess.run(command).returncode == 0
