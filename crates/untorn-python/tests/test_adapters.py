"""The adapters, against the packages that they are for."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import cases, examples, python


def test_zarr_chunks_commit_together() -> None:
    zarr = pytest.importorskip("zarr")
    import untorn.zarr

    assert examples(untorn.zarr) > 3
    store = untorn.zarr.UntornStore("w")
    with store.transaction():
        root = zarr.create_group(store)
        heat = root.create_array("heat", shape=(64, 64), chunks=(16, 16), dtype="f4")
        heat[:] = 1
        root.attrs["unit"] = "K"
    with pytest.raises(KeyError):
        with store.transaction():
            heat[:40] = 2
            root.create_array("new", shape=3, dtype="u1")
            raise KeyError
    assert (heat[:] == 1).all() and list(root.array_keys()) == ["heat"]
    reader = untorn.zarr.UntornStore("w", read_only=True)
    assert list(zarr.open_group(reader, mode="r").array_keys()) == ["heat"]
    for n in range(30):
        heat[:] = n
        store.commit()
    size = os.path.getsize("w")
    assert size < 10 * heat.nbytes, "places of old chunks are used again"
    then = zarr.open_group(reader, mode="r")
    assert (then["heat"][:] == 1).all() and then.attrs["unit"] == "K", "the reader is at its commit"
    reader.close()
    del root["heat"]
    store.close()
    assert list(zarr.open_group(untorn.zarr.UntornStore("w", read_only=True), mode="r").array_keys()) == []
    open("text", "w").write("no store")
    for read_only in (False, True):
        with pytest.raises(ValueError, match="not a zarr store"):
            zarr.open_group(untorn.zarr.UntornStore("text", read_only=read_only), mode="r")
    assert open("text").read() == "no store"


def test_zarrs_own_tests_of_stores_pass() -> None:
    pytest.importorskip("zarr")
    pytest.importorskip("pytest_asyncio")
    program = """
import pytest
from zarr.core.buffer import Buffer, cpu
from zarr.testing.store import StoreTests
from untorn.zarr import UntornStore

class TestUntornStore(StoreTests[UntornStore, cpu.Buffer]):
    store_cls = UntornStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        return {"path": str(tmp_path / "store")}

    async def set(self, store, key, value):
        store._opened.set(key, value.to_bytes())

    async def get(self, store, key):
        return self.buffer_cls.from_bytes(store._get(key, None))

    def test_store_repr(self, store):
        assert repr(store) == f"UntornStore({store.path!r})"

    def test_store_supports_writes(self, store):
        assert store.supports_writes

    def test_store_supports_listing(self, store):
        assert store.supports_listing

    @pytest.fixture
    async def store(self, open_kwargs):
        store = await self.store_cls.open(**open_kwargs)
        yield store
        store.close()
"""
    open("test_store.py", "w").write(program)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", "asyncio_mode=auto", "test_store.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]


def test_a_kill_leaves_a_zarr_store_at_a_commit() -> None:
    zarr = pytest.importorskip("zarr")
    import untorn.zarr

    for _ in range(cases(2, 100)):
        child = python(
            """
            import zarr, untorn.zarr
            store = untorn.zarr.UntornStore("w")
            with store.transaction():
                a = zarr.create_array(store, shape=(64, 64), chunks=(8, 8), dtype="u4")
            n = 0
            while True:
                n += 1
                with store.transaction():
                    a[:] = n
                    a.attrs["n"] = n
                print(n, flush=True)
            """
        )
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= 3:
                os.kill(child.pid, signal.SIGKILL)
                break
        acknowledged = max([3, *(int(line) for line in child.stdout.read().split("\n")[:-1])])
        child.wait()
        a = zarr.open_array(untorn.zarr.UntornStore("w"), mode="r+")
        n = a.attrs["n"]
        assert n in (acknowledged, acknowledged + 1) and (a[:] == n).all()
        a.store.close()
        os.unlink("w")


def test_joblib_results_are_durable_before_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    joblib = pytest.importorskip("joblib")
    import untorn.joblib

    assert examples(untorn.joblib) > 2
    flushed, order = [], []
    fsync, replace = os.fsync, os.replace

    def noting(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renaming(old: str, new: str) -> None:
        order.append((os.path.basename(new), any(os.path.abspath(old) == path for path in flushed)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "replace", renaming)
    memory = joblib.Memory("cache", backend="untorn", verbose=0)
    calls = []

    def grid(n: int) -> np.ndarray:
        calls.append(n)
        return np.arange(n)

    cached = memory.cache(grid)
    assert (cached(100) == cached(100)).all() and calls == [100]
    assert {name for name, _ in order} >= {"output.pkl", "metadata.json"} and all(first for _, first in order)
    result = [os.path.join(at, name) for at, _, names in os.walk("cache") for name in names if name == "output.pkl"]
    assert os.path.abspath(os.path.dirname(result[0])) in flushed
    assert not [name for _, _, names in os.walk("cache") for name in names if name.endswith("-new")]


def test_torch_tensors_lie_in_a_map() -> None:
    torch = pytest.importorskip("torch", reason="pip install torch, or apt-get install python3-torch")
    import untorn

    with untorn.map("f", 4000, "w+") as m:
        t = torch.from_numpy(m.array("f4"))
        t[5] = 2
        m.commit()
        with pytest.raises(BufferError):
            m.close()
        del t
    assert np.fromfile("f", "f4")[5] == 2


def test_torch_tensors_of_a_buffer_commit_and_reopen() -> None:
    torch = pytest.importorskip("torch", reason="pip install torch, or apt-get install python3-torch")
    import untorn

    m = untorn.map("f", 8192, "w+")
    t = torch.frombuffer(m, dtype=torch.float32)
    t += 1
    m.commit()
    t[:100] = 7
    # A step that was not committed is gone, as after a crash, and the tensor is still memory.
    m.discard()
    assert (t == 0).all()
    with untorn.map("f") as m:
        again = torch.frombuffer(m, dtype=torch.float32)
        assert len(again) == 2048 and (again == 1).all()
        again[5] = 2
        # The close commits although the map does not see the tensor.
    found = np.fromfile("f", "f4")
    assert found[5] == 2 and (np.delete(found, 5) == 1).all()


def test_torch_steps_are_whole_after_a_kill() -> None:
    pytest.importorskip("torch", reason="pip install torch, or apt-get install python3-torch")
    import untorn

    program = """
        import torch, untorn
        m = untorn.map("weights", 1 << 16, "w+")
        weights = torch.frombuffer(m, dtype=torch.float32)
        while True:
            weights += 1
            print(m.commit(), flush=True)
        """
    child = python(program)
    for _ in range(20):
        assert child.stdout.readline()  # type: ignore[union-attr]
    child.kill()
    child.communicate()
    with untorn.map("weights") as m:
        found = m.array("f4").copy()
    assert found[0] >= 20 and (found == found[0]).all()
