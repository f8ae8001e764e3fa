"""Values by key in one file, which commit together: what a store for zarr needs.

The file has a head of ``_MAGIC`` and the places of the buckets, then extents of values and of buckets in any order. A
bucket is the JSON object of its keys, each with the place of its value. What is in no place is free: values may take
the places of old ones at once, since nothing reaches the file before the commit.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from typing import Any, Dict, List, Optional, Set, Tuple

from . import _untorn
from ._files import open as _open

_MAGIC = b"untorn zarr 1\n\0\0"
_BUCKETS = 1024
_PLACE = struct.Struct("<QQ")
_HEAD = len(_MAGIC) + _BUCKETS * _PLACE.size
_ALIGN = 64

Place = Tuple[int, int]


def _rounded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _bucket(key: str) -> int:
    return zlib.crc32(key.encode()) % _BUCKETS


class _Nothing:
    def close(self) -> None:
        pass


class Container:
    """An open container. Any number of threads may use it."""

    def __init__(self, path: str, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.lock = threading.RLock()
        self._file: Any = None
        self.index: Dict[str, Place] = {}
        #: Stores that use it.
        self.users = 0
        self._load()

    def _load(self) -> None:
        is_new = not os.path.exists(self.path) or os.path.getsize(self.path) == 0
        if self.read_only and is_new:
            # Nothing yet, as in an empty directory.
            self._file = _Nothing()
            return
        if self.read_only:
            self._file = _untorn.Snapshot._open(self.path)
        else:
            self._file = _open(self.path, "a+", _HEAD if is_new else None, engine="hybrid-log")
        head = self._file.read_at(0, min(_HEAD, len(self._file)))
        if head == bytes(_HEAD) and not self.read_only:
            self._file.write_at(0, _MAGIC)
        elif len(head) != _HEAD or not head.startswith(_MAGIC):
            self._file.close()
            raise ValueError(f"{self.path}: not a zarr store of untorn")
        self._buckets: List[Place] = list(_PLACE.iter_unpack(head[len(_MAGIC) :]))
        self.index = {}
        for offset, size in self._buckets:
            if size:
                bucket = json.loads(self._file.read_at(offset, size))
                self.index.update((key, tuple(place)) for key, place in bucket.items())
        self._changed: Set[int] = set()
        self._free = self._gaps()

    def _gaps(self) -> List[Place]:
        """The extents between the places, in order."""
        gaps, at = [], _HEAD
        for offset, size in sorted(place for place in [*self.index.values(), *self._buckets] if place[1]):
            if offset > at:
                gaps.append((at, offset - at))
            at = offset + _rounded(size)
        if len(self._file) > at:
            gaps.append((at, len(self._file) - at))
        return gaps

    def get(self, key: str, start: int = 0, end: Optional[int] = None) -> Optional[bytes]:
        """The bytes of a value from ``start`` on, counted from its end if negative."""
        with self.lock:
            if key not in self.index:
                return None
            offset, size = self.index[key]
            start, end, _ = slice(start, end).indices(size)
            return bytes(self._file.read_at(offset + start, max(0, end - start)))

    def set(self, key: str, value: Optional[bytes], missing: bool = False) -> None:
        """Sets a value, or deletes it. With ``missing`` a value that is there stays."""
        with self.lock:
            if missing and key in self.index:
                return
            self._forget(self.index.pop(key, (0, 0)))
            if value is not None:
                self.index[key] = self._write(value)
            self._changed.add(_bucket(key))

    def _write(self, data: bytes) -> Place:
        if not data:
            return (_HEAD, 0)
        size = _rounded(len(data))
        for n, (offset, free) in enumerate(self._free):
            if free >= size:
                self._free[n : n + 1] = [(offset + size, free - size)] if free > size else []
                break
        else:
            offset = len(self._file)
            grown = max(size, offset // 4 // _ALIGN * _ALIGN)
            self._file.resize(offset + grown)
            if grown > size:
                self._free.append((offset + size, grown - size))
        self._file.write_at(offset, data)
        return (offset, len(data))

    def _forget(self, place: Place) -> None:
        if place[1]:
            self._free.append((place[0], _rounded(place[1])))

    def commit(self) -> int:
        with self.lock:
            buckets: Dict[int, Dict[str, Place]] = {n: {} for n in self._changed}
            for key, place in self.index.items() if buckets else ():
                if _bucket(key) in buckets:
                    buckets[_bucket(key)][key] = place
            for n, bucket in buckets.items():
                self._forget(self._buckets[n])
                self._buckets[n] = self._write(json.dumps(bucket).encode()) if bucket else (0, 0)
                self._file.write_at(len(_MAGIC) + n * _PLACE.size, _PLACE.pack(*self._buckets[n]))
            self._changed.clear()
            self._free = self._gaps()
            return int(self._file.commit())

    def rollback(self) -> None:
        with self.lock:
            self._file.discard()
            self._load()

    def close(self) -> None:
        with self.lock:
            if not self.read_only:
                self.commit()
            self._file.close()
