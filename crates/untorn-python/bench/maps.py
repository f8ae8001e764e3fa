"""Compares maps of untorn with ``numpy.memmap``, in turns: bandwidth of loads and stores, and what a commit takes.

    python bench/maps.py [--dir DIR] [--rounds N] [--mib N] [--json]

Each row has the medians of both in microseconds, and the ratio of untorn's to numpy's: above 1, untorn takes longer.
"""

import argparse
import json
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
    "1000 stores and commit": (scattered, 10),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dir", help="where the files are [default: the directory of temporary files]")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--mib", type=int, default=1024, help="length of the arrays")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    taken: Dict[str, Dict[str, List[float]]] = {row: {"untorn": [], "numpy": []} for row in ROWS}
    with tempfile.TemporaryDirectory(dir=chosen.dir) as directory:
        for round in range(chosen.rounds):
            for name in ("untorn", "numpy") if round % 2 else ("numpy", "untorn"):
                path = os.path.join(directory, name)
                length = chosen.mib << 17
                # Both files have their blocks, as a file that is in use for long has.
                with open(path, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, length * 8)
                if name == "untorn":
                    array = untorn.memmap(path, "u8", "r+")
                    arm: Arm = (array, array.base.commit)
                else:
                    theirs = np.memmap(path, "u8", "r+")
                    arm = (theirs.view(np.ndarray), theirs.flush)
                for row, (measure, times) in ROWS.items():
                    samples = [measure(arm, 1000 * round + n + 1) for n in range(times)]
                    taken[row][name].append(statistics.median(samples))
                if name == "untorn":
                    found = array.base
                    del array, arm
                    found.close()
                else:
                    del theirs, arm
                os.unlink(path)
    rows = []
    for row, both in taken.items():
        ours, numpys = (statistics.median(both[name]) for name in ("untorn", "numpy"))
        rows.append({"row": row, "untorn_us": ours, "numpy_us": numpys, "ratio": ours / numpys})
    if chosen.json:
        print(json.dumps({"bench": "maps", "mib": chosen.mib, "rounds": chosen.rounds, "rows": rows}))
        return
    print(f"{chosen.mib} MiB; medians of {chosen.rounds} rounds in turns, in microseconds")
    for found in rows:
        print(f"{found['row']:24} untorn {found['untorn_us']:12.1f}  numpy {found['numpy_us']:12.1f}  {found['ratio']:.2f}")


if __name__ == "__main__":
    main()
