"""``untorn.memmap``, ``.npy`` files, and what users of numpy and joblib have asked for."""

import gc
import io
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import cases, python, run

import untorn


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "<i2", "c16", "S5", np.dtype([("a", "u1"), ("b", "f4", (2, 3))])])
@pytest.mark.parametrize("offset", [0, 64, 4096 + 8])
def test_it_is_numpys_memmap(order: str, dtype: object, offset: int) -> None:
    theirs = np.memmap("theirs", dtype, "w+", offset, (3, 4), order)
    ours = untorn.memmap("ours", dtype, "w+", offset, (3, 4), order)
    for a in (theirs, ours):
        a.view(np.ndarray).reshape(-1, order="A")[:] = np.zeros(12, dtype)
        a[1, 2] = np.ones((), dtype)
    theirs.flush()
    ours.base.flush()
    assert ours.strides == theirs.strides and ours.dtype == theirs.dtype
    del theirs, ours, a
    gc.collect()
    assert open("ours", "rb").read() == open("theirs", "rb").read()
    again = untorn.memmap("ours", dtype, "r", offset, (3, 4), order)
    assert (again == np.memmap("theirs", dtype, "r", offset, (3, 4), order)).all()
    flat = untorn.memmap("ours", dtype, "c", offset)
    assert flat.shape == np.memmap("theirs", dtype, "c", offset).shape


def test_what_numpy_refuses_is_refused() -> None:
    open("f", "wb").write(bytes(100))
    for arguments in (
        dict(dtype="f8"),
        dict(mode="w+"),
        dict(mode="x"),
        dict(offset=-1),
        dict(mode="r", shape=101),
        dict(shape=(-1, 2)),
        dict(dtype="O", shape=2),
    ):
        with pytest.raises(ValueError):
            untorn.memmap("f", **arguments)
    with pytest.raises(FileNotFoundError):
        untorn.memmap("missing")
    a = untorn.memmap("f", "f8", shape=20)
    assert a.shape == (20,), "mode r+ makes the file longer"
    a.base.commit()
    assert os.path.getsize("f") == 160


def test_npy_files_are_those_of_numpy() -> None:
    for dtype, shape, fortran in [("f8", (10, 3), False), ("<u2", (7,), True), ([("x", "f4"), ("y", "i8")], (), False)]:
        a = untorn.open_npy("f.npy", "w+", dtype, shape, fortran)
        a[...] = np.ones(shape, dtype)
        a.base.commit()
        del a
        gc.collect()
        assert (np.load("f.npy") == np.ones(shape, dtype)).all()
        a = untorn.open_npy("f.npy")
        assert a.shape == shape and a.dtype == np.dtype(dtype) and a.flags.f_contiguous == (fortran or a.ndim < 2)
        del a
        gc.collect()
    untorn.save_npy("f.npy", np.arange(12).reshape(3, 4).T)
    a = untorn.open_npy("f.npy", "r")
    assert (a == np.arange(12).reshape(3, 4).T).all()
    with pytest.raises(ValueError):
        untorn.save_npy("f.npy", np.array([object()]))
    assert (np.load("f.npy") == a).all(), "a refused save leaves the file"
    assert os.listdir(".") == ["f.npy"]
    np.savez("z.npz", a=1)
    for wrong in (b"", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00" + bytes(100), open("z.npz", "rb").read()):
        open("wrong.npy", "wb").write(wrong)
        with pytest.raises(ValueError):
            untorn.open_npy("wrong.npy", "r")
    whole = open("f.npy", "rb").read()
    open("wrong.npy", "wb").write(whole[:-1])
    with pytest.raises(ValueError, match="shorter"):
        untorn.open_npy("wrong.npy")


def test_a_failed_save_leaves_the_old_array(monkeypatch: pytest.MonkeyPatch) -> None:
    untorn.save_npy("f.npy", np.arange(3))

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(os, "fsync", full)
        untorn.save_npy("f.npy", np.arange(4))
    assert len(np.load("f.npy")) == 3 and os.listdir(".") == ["f.npy"]


def test_replace_keeps_the_mode_and_follows_links() -> None:
    untorn.replace("f", b"one")
    os.chmod("f", 0o640)
    os.symlink("f", "link")
    untorn.replace("link", memoryview(b"two"))
    assert open("f", "rb").read() == b"two" and os.path.islink("link")
    assert os.stat("f").st_mode & 0o777 == 0o640
    with pytest.raises(RuntimeError):
        with untorn.replace("f") as file:
            file.write(b"three")
            raise RuntimeError
    assert open("f", "rb").read() == b"two" and sorted(os.listdir(".")) == ["f", "link"]


# What users have asked for.


def test_numpy_13510_a_result_is_a_plain_array() -> None:
    """A reduction or a ufunc of ``numpy.memmap`` is a memmap that holds the file open."""
    a = untorn.memmap("f", "f8", "w+", shape=(3, 4))
    assert type(a) is np.ndarray and type(a.sum()) is np.float64
    assert type(a + 1) is np.ndarray and (a + 1).base is None


def test_numpy_13510_a_map_can_be_closed() -> None:
    a = untorn.memmap("f", "f8", "w+", shape=1000)
    found = a.base
    with pytest.raises(BufferError):
        found.close()
    a[:] = 1
    del a
    found.close()
    assert "f" not in open("/proc/self/maps").read().split("/")


def test_numpy_2049_an_empty_array_is_no_error() -> None:
    a = untorn.memmap("f", "f8", "w+", shape=(0, 5))
    assert a.shape == (0, 5) and a.base.commit() >= 0


def test_numpy_30635_the_views_know_their_file() -> None:
    """Where a view of a view lies can be told, and sent to another process."""
    a = untorn.memmap("f", "f4", "w+", shape=(100, 100))
    view = a[10:20, 5:50:3].T
    found = untorn.ref(view)
    assert found.map is a.base and found.offset == 4 * (10 * 100 + 5) and found.strides == view.strides
    found.array()[0, 0] = 9
    assert a[10, 5] == 9
    with pytest.raises(ValueError, match="no untorn map"):
        untorn.ref(np.zeros(3))


def test_numpy_18494_no_descriptor_is_used_up() -> None:
    """Many arrays of one map need no descriptor each, and a forgotten one leaves none."""
    m = untorn.map("f", 1 << 20, "w+")
    before = len(os.listdir("/proc/self/fd"))
    arrays = [m.array("u1", 16, 16 * n) for n in range(5000)]
    assert len(os.listdir("/proc/self/fd")) == before
    del arrays
    m.close()
    # The one socket that serves snapshots to other processes stays with the process.
    assert len(os.listdir("/proc/self/fd")) <= before


def test_joblib_38_a_pickle_has_no_data() -> None:
    """The pickle of a ``numpy.memmap`` has all its bytes; that of a reference has none."""
    np.memmap("theirs", "f8", "w+", shape=100_000).flush()
    assert len(pickle.dumps(np.memmap("theirs", "f8", "r"))) > 800_000
    untorn.memmap("ours", "f8", "w+", shape=100_000).base.commit()
    gc.collect()
    a = untorn.memmap("ours", "f8", "r")
    pickled = pickle.dumps(untorn.ref(a[500:]))
    assert len(pickled) < 500
    said = run("import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).array().shape)", pickled.hex())
    assert said == "(99500,)\n"


def test_an_array_file_reads_as_a_stream() -> None:
    a = untorn.memmap("f", "u1", "w+", shape=100)
    assert io.BytesIO(a).getvalue() == bytes(100)


# A loop that trains: it changes all of its arrays in each step, and is killed at any time.

TRAINING = """
import sys, numpy as np, untorn
kind, path = sys.argv[1:]
shape = (64, 1024)
if kind == "untorn":
    weights = untorn.memmap(path, "f8", "w+", shape=shape)
    flush = weights.base.commit
else:
    weights = np.memmap(path, "f8", "w+", shape=shape)
    flush = weights.flush
flush()
print("ready", flush=True)
while True:
    weights += 1
    flush()
"""


def test_a_training_loop_that_is_killed_leaves_no_torn_array() -> None:
    """``numpy.memmap`` beside it tears, and how often is printed."""
    torn = {"untorn": 0, "numpy": 0}
    rounds = cases(3, 200)
    for kind in torn:
        for n in range(rounds):
            child = python(TRAINING, kind, "weights")
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            time.sleep(0.01 + 0.003 * (n % 7))
            os.kill(child.pid, signal.SIGKILL)
            child.communicate()
            if kind == "untorn":
                with untorn.map("weights") as m:
                    found = m.array("f8").copy()
            else:
                found = np.fromfile("weights", "f8")
            torn[kind] += int(len(set(found.tolist())) != 1)
            os.unlink("weights")
    print(f"torn after {rounds} kills each: {torn}")
    assert torn["untorn"] == 0
    # So often that none at all would say that the loop is not killed in the middle of a step.
    assert torn["numpy"] > 0 or rounds < 50


def test_the_example_runs() -> None:
    here = pathlib.Path(__file__).resolve()
    example = here.parents[3] / "examples/python/embeddings.py"
    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, env={**os.environ, "KILLS": str(cases(1, 20))}
    )
    assert done.returncode == 0 and "untorn  torn batches after each kill: [0" in done.stdout, done.stdout + done.stderr
