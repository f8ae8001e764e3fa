"""Files and arrays that never tear: after any crash a file holds exactly its last commit.

- :func:`open`: a file with atomic writes and transactions.
- :func:`map`: a file as memory; stores commit together.
- :func:`memmap`, :func:`open_npy`, :func:`save_npy`: numpy arrays in files.
- :func:`snapshot`: a file as it was at one commit, also one that another process has open.
- :func:`replace`: the whole contents of a file, the old or the new ones.
- :func:`ref`: an array over a map, sent to another process without its data.
- :func:`inspect`, :func:`recover`: look at a file, or bring it to its last commit.

Adapters: :mod:`untorn.zarr`, :mod:`untorn.joblib`.

>>> import untorn
>>> with untorn.map("counts", 8, mode="w+") as m:
...     m[0] = 1
"""

from __future__ import annotations

import os as _os
from typing import Union as _Union

from ._arrays import ArrayRef, map_of, memmap, open_npy, ref, save_npy
from ._errors import (
    ChangedOutsideError,
    CommitsMissingError,
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
from ._untorn import Snapshot, SnapshotMap, Transaction, __version__, inspect, recover


def snapshot(path: "_Union[str, _os.PathLike[str]]") -> Snapshot:
    """Holds a file as it is at its last commit, for reading. Another process may have it open and go on writing."""
    return Snapshot._open(_os.fspath(path))


__all__ = [
    "ArrayRef",
    "ChangedOutsideError",
    "CommitsMissingError",
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
