"""Files and arrays that never tear: after any crash a file holds exactly its last commit.

- :func:`open`: a file with atomic writes and transactions.
- :func:`map`: a file as memory; stores commit together.
- :func:`memmap`, :func:`open_npy`, :func:`save_npy`: numpy arrays in files.
- :func:`snapshot`: a file as it was at one commit, also one that another process has open.
- :func:`commits`: the commits of a file, one after the other.
- :func:`replace`: the whole contents of a file, the old or the new ones.
- :func:`ref`: an array over a map, sent to another process without its data.
- :func:`inspect`, :func:`recover`: look at a file, or bring it to its last commit.

Adapters: :mod:`untorn.zarr`, :mod:`untorn.joblib`, :mod:`untorn.sqlite`.

>>> import untorn
>>> with untorn.map("counts", 8, mode="w+") as m:
...     m[0] = 1
"""

from __future__ import annotations

import os as _os
from typing import Optional as _Optional
from typing import Union as _Union

from ._arrays import ArrayRef, map_of, memmap, open_npy, ref, save_npy
from ._errors import (
    ChangedOutsideError,
    CommitsMissingError,
    ConsumerBehindError,
    CorruptError,
    Error,
    ForkedError,
    InUseError,
    InvalidError,
    IoError,
    ModifiedExternallyError,
    NeedsRecoveryError,
    NoAccessError,
    NoSuchCommitError,
    NotAcknowledgedError,
    NotAFileError,
    NotClosedError,
    OtherEngineError,
    OutOfRangeError,
    PoisonedError,
    ProtectionError,
    ReadOnlyError,
    ReplayIncompleteError,
    SidecarMismatchError,
    SidecarMissingError,
    SnapshotEndedError,
    UnsupportedError,
    UntrustedError,
    UntrustedLogError,
)
from ._files import File, open, replace
from ._maps import Map, map
from ._untorn import (
    Commit,
    Commits,
    Snapshot,
    SnapshotMap,
    Transaction,
    __version__,
    forget_consumer,
    inspect,
    recover,
)


def commits(
    path: "_Union[str, _os.PathLike[str]]",
    start: _Optional[int] = None,
    *,
    consumer: _Optional[str] = None,
    timeout: _Optional[float] = 0,
) -> Commits:
    """Iterates over the commits of a file with a commit log, each once and in order. Any process may have it open.

    ``start``: the commits after this one; by default all that the log has. ``timeout``: the iteration ends when there
    is no further commit within so many seconds, and can be taken up again; with None it waits for ever.

    ``consumer``: a registered consumer of this name, whose position outlives the process. It goes on after the last
    commit that it acknowledged (:meth:`Commits.acknowledge`), or after ``start``. :func:`forget_consumer` removes it.

    >>> import untorn
    >>> with untorn.open("ledger", "w+", 4096, commit_log=1 << 20) as f:
    ...     before = f.commit()
    ...     f.write_at(100, b"hello")
    ...     _ = f.commit()
    ...     [commit.changes for commit in untorn.commits("ledger", start=before)]
    [((100, b'hello'),)]
    """
    return Commits(_os.fspath(path), start, consumer, timeout)


def snapshot(path: "_Union[str, _os.PathLike[str]]") -> Snapshot:
    """Holds a file as it is at its last commit, for reading. Another process may have it open and go on writing."""
    return Snapshot._open(_os.fspath(path))


__all__ = [
    "ArrayRef",
    "ChangedOutsideError",
    "Commit",
    "Commits",
    "CommitsMissingError",
    "ConsumerBehindError",
    "CorruptError",
    "Error",
    "File",
    "ForkedError",
    "InUseError",
    "InvalidError",
    "IoError",
    "Map",
    "ModifiedExternallyError",
    "NeedsRecoveryError",
    "NoAccessError",
    "NoSuchCommitError",
    "NotAcknowledgedError",
    "NotAFileError",
    "NotClosedError",
    "OtherEngineError",
    "OutOfRangeError",
    "PoisonedError",
    "ProtectionError",
    "ReadOnlyError",
    "ReplayIncompleteError",
    "SidecarMismatchError",
    "SidecarMissingError",
    "Snapshot",
    "SnapshotEndedError",
    "SnapshotMap",
    "Transaction",
    "UnsupportedError",
    "UntrustedError",
    "UntrustedLogError",
    "__version__",
    "commits",
    "forget_consumer",
    "inspect",
    "map",
    "map_of",
    "memmap",
    "open",
    "open_npy",
    "recover",
    "ref",
    "replace",
    "save_npy",
    "snapshot",
]
