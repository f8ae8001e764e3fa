"""Threads that share a map or a file. With a free-threaded interpreter they run at the same time."""

import sysconfig
import threading
from typing import Callable, List

import numpy as np
import pytest
from conftest import cases, run

import untorn

PAGE = 4096


def together(*works: Callable[[], None]) -> None:
    """Runs each in a thread of its own, from one moment on; an exception of one is an exception here."""
    failures: List[BaseException] = []
    start = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_the_module_does_not_bring_the_lock_back() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this interpreter always has its lock")
    # Only untorn is imported: another module may want the lock. A warning about it is an error.
    said = run(
        """
        import sys, warnings
        warnings.simplefilter("error")
        import untorn
        assert not sys._is_gil_enabled()
        print("free")
        """
    )
    assert said == "free\n"


def test_each_thread_finds_its_stores_in_its_commits() -> None:
    rounds, count = cases(40, 1000), 4
    m = untorn.map("f", count * PAGE, "w+")
    numbers: List[List[int]] = [[] for _ in range(count)]

    def work(own: int) -> None:
        array = m.array("u8", (PAGE // 8,), own * PAGE)
        for n in range(1, rounds + 1):
            array[:] = n
            numbers[own].append(m.commit())
            with m.snapshot() as held:
                # No other thread stores there: what this one has stored is committed, whole.
                assert (np.frombuffer(held.read_at(own * PAGE, PAGE), "u8") == n).all()

    together(*(lambda own=own: work(own) for own in range(count)))  # type: ignore[misc]
    for own in numbers:
        assert own == sorted(own)
    m.close()
    assert (np.fromfile("f", "u8").reshape(count, -1) == rounds).all()


def test_buffers_and_changes_of_the_length_exclude_each_other() -> None:
    """A map never gets shorter than a buffer of it: stores to what is not there any more would be lost in silence."""
    said = run(
        """
        import sys, threading, time
        import untorn

        ends = time.monotonic() + float(sys.argv[1])
        m = untorn.map("f", 1 << 20, "w+")
        m.commit()
        taken = refused = shorter = 0

        def look():
            global taken, shorter
            while time.monotonic() < ends:
                with memoryview(m) as view:
                    time.sleep(1e-5)  # the other thread goes on
                    shorter += len(m) < len(view)
                    taken += 1
                time.sleep(1e-5)

        def change():
            global refused
            while time.monotonic() < ends:
                for act in (lambda: m.resize(4096), lambda: m.resize(1 << 20), m.rollback):
                    try:
                        act()
                    except BufferError:
                        refused += 1

        threads = [threading.Thread(target=work) for work in (look, change)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        m.resize(4096)
        m.close()
        assert taken > 0 and shorter == 0, (taken, refused, shorter)
        print("ok")
        """,
        str(cases(2, 20)),
    )
    assert said == "ok\n"


def test_one_thread_closes_while_others_use_the_map() -> None:
    for _ in range(cases(20, 500)):
        m = untorn.map("f", 8 * PAGE, "w+")

        def use() -> None:
            try:
                for n in range(1000):
                    m[n % len(m)] = 1
                    m.commit()
            except ValueError as failure:
                assert "the map is closed" in str(failure)

        def close() -> None:
            while not m.closed:
                try:
                    m.close()
                except BufferError:
                    continue

        together(use, use, close, close)


def test_transactions_of_threads_lose_nothing() -> None:
    rounds, count = cases(30, 1000), 4
    with untorn.open("f", "w+", PAGE) as file:

        def work(own: int) -> None:
            for _ in range(rounds):
                with file.transaction() as both:
                    n = int.from_bytes(both.read_at(8 * own, 8), "little") + 1
                    both.write_at(8 * own, n.to_bytes(8, "little"))
                    both.write_at(PAGE // 2 + 8 * own, n.to_bytes(8, "little"))

        together(*(lambda own=own: work(own) for own in range(count)))  # type: ignore[misc]
    words = np.fromfile("f", "u8")
    assert (words[:count] == rounds).all() and (words[PAGE // 16 : PAGE // 16 + count] == rounds).all()
