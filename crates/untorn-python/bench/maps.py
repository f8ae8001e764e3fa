"""Compares maps of untorn with ``numpy.memmap``, in turns: bandwidth of loads and stores, and what a commit takes.

    python bench/maps.py [--dir DIR] [--rounds N] [--mib N] [--json]

Each row has the medians of both in microseconds, and the ratio of untorn's to numpy's: above 1, untorn takes longer.
Loads and stores also have the limit: a private mapping of the kernel (``MAP_PRIVATE``) without untorn. A commit can be
atomic only if no store reaches the file before, so each page that is stored to has a copy.
"""

import argparse
import json
import mmap
import os
import statistics
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import untorn

Arm = Tuple[np.ndarray, Callable[[], Any]]


def timed(act: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    act()
    return (time.perf_counter() - begin) * 1e6


def fill(arm: Arm, n: int) -> float:
    array = arm[0]
    took = timed(lambda: array.fill(n))
    arm[1]()
    return took


def first_fill(arm: Arm, n: int) -> float:
    return timed(lambda: arm[0].fill(n))


def load(arm: Arm, n: int) -> float:
    return timed(lambda: arm[0].sum())


def one_page(arm: Arm, n: int) -> float:
    arm[0][n % 1000 * 512 % len(arm[0])] = n
    return timed(arm[1])


def all_pages(arm: Arm, n: int) -> float:
    arm[0].fill(n)
    return timed(arm[1])


def nothing(arm: Arm, n: int) -> float:
    return timed(arm[1])


def scattered(arm: Arm, n: int) -> float:
    """A thousand stores of eight bytes, and the commit of them."""
    places = np.random.default_rng(n).integers(0, len(arm[0]), 1000)

    def act() -> None:
        arm[0][places] = n
        arm[1]()

    return timed(act)


ROWS: Dict[str, Tuple[Callable[[Arm, int], float], int]] = {
    "first stores to all": (first_fill, 1),
    "stores to all": (fill, 5),
    "loads of all": (load, 5),
    "commit of one page": (one_page, 200),
    "commit of nothing": (nothing, 200),
    "commit of all": (all_pages, 3),
    "1000 stores and commit": (scattered, 10),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dir", help="where the files are [default: the directory of temporary files]")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--mib", type=int, default=1024, help="length of the arrays")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    arms = ("untorn", "numpy", "private")
    taken: Dict[str, Dict[str, List[float]]] = {row: {name: [] for name in arms} for row in ROWS}
    with tempfile.TemporaryDirectory(dir=chosen.dir) as directory:
        for round in range(chosen.rounds):
            for name in arms if round % 2 else arms[::-1]:
                path = os.path.join(directory, name)
                length = chosen.mib << 17
                # Both files have their blocks, as a file that is in use for long has.
                with open(path, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, length * 8)
                rows = ROWS
                if name == "untorn":
                    array = untorn.memmap(path, "u8", "r+")
                    arm: Arm = (array, array.base.commit)
                elif name == "numpy":
                    theirs = np.memmap(path, "u8", "r+")
                    arm = (theirs.view(np.ndarray), theirs.flush)
                else:
                    with open(path, "rb") as file:
                        private = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
                    arm = (np.frombuffer(private, "u8"), lambda: None)
                    rows = {row: ROWS[row] for row in ROWS if "commit" not in row}
                for row, (measure, times) in rows.items():
                    samples = [measure(arm, 1000 * round + n + 1) for n in range(times)]
                    taken[row][name].append(statistics.median(samples))
                if name == "untorn":
                    found = array.base
                    del array, arm
                    found.close()
                elif name == "numpy":
                    del theirs, arm
                else:
                    del arm
                    private.close()
                os.unlink(path)
    results: List[Dict[str, Any]] = []
    for row, all in taken.items():
        medians = {name: statistics.median(samples) for name, samples in all.items() if samples}
        ratio = medians["untorn"] / medians["numpy"]
        results.append({"row": row, "ratio": ratio, **{f"{name}_us": median for name, median in medians.items()}})
    if chosen.json:
        print(json.dumps({"bench": "maps", "mib": chosen.mib, "rounds": chosen.rounds, "rows": results}))
        return
    print(f"{chosen.mib} MiB; medians of {chosen.rounds} rounds in turns, in microseconds")
    print(f"{'':24}{'untorn':>14}{'numpy':>14}{'ratio':>8}{'limit':>14}")
    for found in results:
        limit = f"{found['private_us']:14.1f}" if "private_us" in found else ""
        print(f"{found['row']:24}{found['untorn_us']:14.1f}{found['numpy_us']:14.1f}{found['ratio']:8.2f}{limit}")


if __name__ == "__main__":
    main()
