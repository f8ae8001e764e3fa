# %% [markdown]
# # An index of embeddings that survives a kill
#
# An index holds a vector for each document, and how often each was updated. A worker updates vectors in place, in
# batches. It is killed in the middle of its work again and again. After each kill the index is opened, checked and
# worked on. The same worker with `numpy.memmap` leaves batches half done.
#
# Run it as a program (`python embeddings.py`), or cell by cell in an editor that knows `# %%`. It needs `untorn` and
# `numpy`; with `matplotlib` it draws a plot.

# %%
import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

import untorn

DOCUMENTS, DIMENSIONS, BATCH = 20_000, 64, 2_000
ENTRY = np.dtype([("vector", "f4", DIMENSIONS), ("updates", "u4")])


# %% [markdown]
# ## The worker
#
# It normalizes a batch of vectors after a step, and counts the update of each. Both belong together: a vector whose
# count is wrong is a torn batch.


# %%
def work(kind: str, path: str) -> None:
    if kind == "untorn":
        index = untorn.memmap(path, ENTRY, "r+")
        save = index.base.commit
    else:
        index = np.memmap(path, ENTRY, "r+")
        save = index.flush
    while True:
        for start in range(0, DOCUMENTS, BATCH):
            batch = index[start : start + BATCH]
            batch["vector"] += 1.0
            batch["updates"] += 1
            save()


if len(sys.argv) == 4 and sys.argv[1] == "work":
    work(sys.argv[2], sys.argv[3])


# %% [markdown]
# ## Kill it, and look


# %%
def torn_batches(index: np.ndarray) -> int:
    """Batches that are not as one commit left them: each of their entries must have had the same updates."""
    wrong = 0
    for start in range(0, DOCUMENTS, BATCH):
        batch = index[start : start + BATCH]
        whole = (batch["updates"] == batch["updates"][0]).all() and (
            batch["vector"] == batch["updates"][0].astype("f4")
        ).all()
        wrong += not whole
    return wrong


def killed(kind: str, path: str, kills: int) -> list:
    np.zeros(DOCUMENTS, ENTRY).tofile(path)
    history = []
    for n in range(kills):
        worker = subprocess.Popen([sys.executable, os.path.abspath(__file__), "work", kind, path])
        time.sleep(0.4 + 0.011 * (n % 9))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        if kind == "untorn":
            with untorn.map(path) as found:  # opening it recovers the last commit
                history.append(torn_batches(found.array(ENTRY).copy()))
        else:
            history.append(torn_batches(np.fromfile(path, ENTRY)))
    return history


KILLS = int(os.environ.get("KILLS", "5"))
with tempfile.TemporaryDirectory() as directory:
    torn = {kind: killed(kind, os.path.join(directory, kind), KILLS) for kind in ("untorn", "numpy")}
for kind, history in torn.items():
    print(f"{kind:7} torn batches after each kill: {history}")
assert not any(torn["untorn"]), "untorn tears nothing"

# %% [markdown]
# ## The plot

# %%
try:
    import matplotlib.pyplot as plt
except ImportError:
    print("without matplotlib there is no plot")
else:
    for kind, history in torn.items():
        plt.step(range(1, KILLS + 1), history, where="mid", label=kind)
    plt.xlabel("kill")
    plt.ylabel("torn batches in the index")
    plt.legend()
    plt.savefig("embeddings.png")
    print("the plot is in embeddings.png")
