"""A store for zarr 3 in one file, whose chunk writes commit together.

>>> import zarr, untorn.zarr
>>> store = untorn.zarr.UntornStore("weather.zarr")
>>> with store.transaction():
...     root = zarr.create_group(store)
...     heat = root.create_array("heat", shape=(100, 100), chunks=(10, 10), dtype="f4")
...     heat[:] = 20
>>> store.close()

After a crash the file has all chunks and all metadata of the last commit, and nothing of a later one. One process has
the store open for writing, and all of its stores of that path are one. Other processes read it meanwhile with
``read_only=True``: at its last commit when they first use it, held for as long as they have it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from typing import Any, AsyncIterator, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from ._container import Container

_OPEN: "weakref.WeakValueDictionary[Tuple[int, str], Container]" = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


class UntornStore(Store):
    """A store in the file ``path``. :meth:`commit` makes everything since the last commit durable, all or nothing.

    Closing commits. What is neither committed nor closed is gone with the process.
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(self, path: Union[str, "os.PathLike[str]"], *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.path = os.fspath(path)
        self._container: Optional[Container] = None
        #: Whether a store for reading sees what the process's store for writing has, rather than the last commit.
        self._live = False

    @property
    def _opened(self) -> Container:
        with _OPENING:
            if self._container is None:
                key = (os.getpid(), os.path.realpath(self.path))
                found = None if self.read_only and not self._live else _OPEN.get(key)
                if found is None:
                    found = Container(self.path, self.read_only)
                    if not self.read_only:
                        _OPEN[key] = found
                found.users += 1
                self._container, self._is_open = found, True
            return self._container

    async def _open(self) -> None:
        await super()._open()
        self._is_open = False
        await asyncio.to_thread(lambda: self._opened)

    def commit(self) -> int:
        """Makes all that was set and deleted durable, and returns the number of the commit."""
        self._check_writable()
        return self._opened.commit()

    def rollback(self) -> None:
        """Discards all that was set and deleted since the last commit."""
        self._check_writable()
        self._opened.rollback()

    @contextlib.contextmanager
    def transaction(self) -> Iterator["UntornStore"]:
        """Commits at the end of the block, and rolls back on an exception."""
        try:
            yield self
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def close(self) -> None:
        """Commits. The last store of its path in the process closes the file."""
        with _OPENING:
            container, self._container = self._container, None
            if container is not None:
                container.users -= 1
                if not self.read_only:
                    container.commit()
                if container.users == 0:
                    container.close()
                    _OPEN.pop((os.getpid(), os.path.realpath(self.path)), None)
        super().close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntornStore) and (self.path, self.read_only) == (other.path, other.read_only)

    def __repr__(self) -> str:
        return f"UntornStore({self.path!r})"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_container": None, "_is_open": False}

    def with_read_only(self, read_only: bool = False) -> "UntornStore":
        store = UntornStore(self.path, read_only=read_only)
        store._live = True
        return store

    def _get(self, key: str, wanted: Optional[ByteRequest]) -> Optional[bytes]:
        if isinstance(wanted, RangeByteRequest):
            return self._opened.get(key, wanted.start, wanted.end)
        if isinstance(wanted, OffsetByteRequest):
            return self._opened.get(key, wanted.offset)
        if isinstance(wanted, SuffixByteRequest):
            return self._opened.get(key, -wanted.suffix) if wanted.suffix else b""
        if wanted is not None:
            raise ValueError(f"Unexpected byte_range, got {wanted}.")
        return self._opened.get(key)

    async def get(
        self, key: str, prototype: Optional[BufferPrototype] = None, byte_range: Optional[ByteRequest] = None
    ) -> Optional[Buffer]:
        found = await asyncio.to_thread(self._get, key, byte_range)
        return None if found is None else (prototype or default_buffer_prototype()).buffer.from_bytes(found)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[Tuple[str, Optional[ByteRequest]]]
    ) -> List[Optional[Buffer]]:
        return list(await asyncio.gather(*(self.get(key, prototype, wanted) for key, wanted in key_ranges)))

    async def exists(self, key: str) -> bool:
        return key in self._opened.index

    async def set(self, key: str, value: Buffer) -> None:
        await self._change(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await self._change(key, value, missing=True)

    async def _change(self, key: str, value: Buffer, missing: bool = False) -> None:
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"UntornStore.set(): `value` must be a Buffer instance, and is a {type(value)}")
        await asyncio.to_thread(lambda: self._opened.set(key, value.to_bytes(), missing))

    async def delete(self, key: str) -> None:
        self._check_writable()
        if key in self._opened.index:
            await asyncio.to_thread(lambda: self._opened.set(key, None))

    async def list(self) -> AsyncIterator[str]:
        for key in list(self._opened.index):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in list(self._opened.index):
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        within = prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""
        names = (key[len(within) :].split("/")[0] for key in list(self._opened.index) if key.startswith(within))
        for name in dict.fromkeys(names):
            yield name
