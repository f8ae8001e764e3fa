"""Files as memory: :func:`map`, and arrays over it."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any, Iterator, Literal, Optional, Sequence, Tuple, Union

from . import _untorn

if TYPE_CHECKING:
    import numpy

_USES = {"r": "read", "c": "copy", "r+": "write", "w+": "write"}
_ALIASES = {"readonly": "r", "copyonwrite": "c", "readwrite": "r+", "write": "w+"}

Shape = Union[int, Sequence[int]]
Order = Literal["C", "F"]


def _mode(mode: str) -> str:
    mode = _ALIASES.get(mode, mode)
    if mode not in _USES:
        raise ValueError(f"mode is {mode!r}; it may be one of {', '.join(map_repr(_USES))}")
    return mode


def map_repr(words: Any) -> Iterator[str]:
    return (repr(word) for word in words)


class Map(_untorn.Map):
    """A file as memory: the program loads and stores freely, and :meth:`commit` makes all stores durable together.

    After a crash at any instant the file holds exactly the last commit. :func:`untorn.map` makes a map. It has the
    buffer protocol, so ``memoryview(m)`` and ``numpy.asarray(m)`` take its memory as it is.

    The memory keeps its address while it grows, and lives until the map is closed. :meth:`close` raises ``BufferError``
    while an array or a memoryview of it exists. A map that is forgotten without a close discards what was stored since
    the last commit, as a crash would.

    Other threads may store while one commits. Their stores are in that commit whole, in part or not at all, and whole
    in the next one. While there are arrays of it, the map keeps each page that was ever stored to in memory; a commit
    at a moment without any gives those pages back.

    ``numpy.ndarray(buffer=m)`` and ``torch.frombuffer(m)`` hide from the map that they use it: it can be closed, and
    they see zeros then. Take :meth:`array` and ``torch.from_numpy(m.array("f4"))``.

    >>> import untorn
    >>> with untorn.map("counts", 4096, mode="w+") as m:
    ...     m[100:105] = b"hello"
    >>> with untorn.map("counts") as m:
    ...     m[100:105]
    b'hello'
    """

    def array(
        self,
        dtype: Any = "uint8",
        shape: Optional[Shape] = None,
        offset: int = 0,
        order: Order = "C",
        strides: Optional[Sequence[int]] = None,
    ) -> "numpy.ndarray":
        """An array over the map's memory, from the byte ``offset`` on. Its ``base`` is the map.

        Without a shape it has all whole elements to the end.

        >>> import untorn
        >>> m = untorn.map("numbers", 80, mode="w+")
        >>> m.array("f8")[3] = 1.5
        >>> m.commit() > 0
        True
        >>> m.close()
        """
        import numpy

        dtype = numpy.dtype(dtype)
        if shape is None:
            if dtype.itemsize == 0:
                raise ValueError("elements without a size need a shape")
            if not 0 <= offset <= len(self):
                raise ValueError(f"offset is {offset}; the map has {len(self)} bytes")
            shape = ((len(self) - offset) // dtype.itemsize,)
        if dtype.hasobject:
            raise ValueError("an array of Python objects cannot be in a file")
        # numpy gives the buffer back at once; the array itself keeps the map open.
        self._hold()
        try:
            with memoryview(self) as view:
                memory: Any = view
                array = numpy.ndarray(shape, dtype, buffer=memory, offset=offset, strides=strides, order=order)
            weakref.finalize(array, self._release).atexit = False
        except BaseException:
            self._release()
            raise
        return array

    def flush(self) -> None:
        """:meth:`commit`, for code that was written for ``numpy.memmap``."""
        if self.writable:
            self.commit()

    @contextlib.contextmanager
    def transaction(self) -> Iterator["Map"]:
        """Commits at the end of the block, and rolls back on an exception."""
        try:
            yield self
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def __exit__(self, exception: Any, value: Any, traceback: Any) -> None:
        """Commits and closes; on an exception it closes without a commit."""
        if exception is None:
            self.close()
            return
        try:
            self.discard()
        except BufferError:
            # The exception's own frames hold arrays: the stores go, and the map goes with the last array.
            if self.writable:
                self.rollback()

    def __getitem__(self, key: Any) -> Any:
        with memoryview(self) as view:
            found = view[key]
            if isinstance(found, memoryview):
                with found:
                    return bytes(found)
            return found

    def __setitem__(self, key: Any, value: Any) -> None:
        with memoryview(self) as view:
            view[key] = value

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} bytes"
        return f"<untorn.Map {os.fspath(self)}, {state}>"

    def __reduce__(self) -> Tuple[Any, ...]:
        if not self.shared and self.writable:
            raise TypeError(
                f"{self!r} belongs to this process alone; open it with shared=True to use it in several processes"
            )
        return _reopen, (os.path.abspath(self.name), "r+" if self.writable else "r", self.shared)


#: What a pickle finds again in its own process.
_OPEN: "weakref.WeakValueDictionary[Tuple[int, str, str, bool], Map]" = weakref.WeakValueDictionary()


def _key(path: Any, mode: str, shared: bool) -> Tuple[int, str, str, bool]:
    return os.getpid(), os.path.abspath(path), mode, shared


def _reopen(path: str, mode: str, shared: bool) -> Map:
    """The map of a pickle. All pickles of one file have one map in a process."""
    key = _key(path, mode, shared)
    found = _OPEN.get(key)
    if found is None or found.closed:
        found = map(path, mode=mode, shared=shared)
        _OPEN[key] = found
    return found


def map(
    path: Union[str, "os.PathLike[str]"],
    size: Optional[int] = None,
    mode: str = "r+",
    *,
    shared: bool = False,
    max_size: Optional[int] = None,
) -> Map:
    """Opens a file as memory.

    ``mode``:

    - ``"r+"``: for loads and stores. With a ``size`` that is larger than the file, it grows.
    - ``"r"``: for loads.
    - ``"w+"``: creates the file, or gives it ``size`` zeros. What it had before stays until the first commit.
    - ``"c"``: for loads and stores that never reach the file.

    With ``shared=True`` several processes may have the map and store at once; a commit of any makes the stores of all
    durable. Without it, one process has it for stores.

    ``max_size`` is the size in bytes up to which the map can grow while it is open; by default 64 MiB or twice its
    size, whichever is larger.

    >>> import untorn
    >>> m = untorn.map("data", 8192, mode="w+")
    >>> m[0:2] = b"hi"
    >>> m.commit() > 0
    True
    >>> m.close()
    """
    mode = _mode(mode)
    if size is not None and size < 0:
        raise ValueError(f"size is {size}; it may not be negative")
    if mode == "w+" and size is None:
        raise ValueError('mode "w+" needs a size')
    if mode in ("r", "c") and shared:
        raise ValueError('a shared map has the mode "r+" or "w+"')
    how = "open"
    if mode == "w+":
        how = "truncate"
        if shared:
            if os.path.exists(path):
                # Zeros for all processes would take a commit that none of them asked for.
                raise FileExistsError(17, "a shared map is not made anew while the file exists", os.fspath(path))
            how = "create"
    made = Map(os.fspath(path), how, size, _USES[mode], shared, max_size)
    if shared:
        _OPEN[_key(path, "r+", shared)] = made
    return made
