"""Files: :func:`open` and :func:`replace`."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tempfile
from typing import Any, BinaryIO, Iterator, Optional, Union

from . import _untorn

Path = Union[str, "os.PathLike[str]"]


class File(_untorn.File):
    """A file whose changes commit together. :func:`untorn.open` makes one.

    A ``with`` block commits and closes at its end. On an exception it discards what was written since the last commit.
    Any number of threads may use a file. Reads and writes are whole, over any number of pages.

    >>> import untorn
    >>> with untorn.open("accounts", "w+", 8192) as f:
    ...     with f.transaction() as tx:
    ...         tx.write_at(0, b"a: 100")
    ...         tx.write_at(4096, b"b: 900")
    ...     f.read_at(4096, 6)
    b'b: 900'
    """

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled; open the path in the other process")


def open(
    path: Path,
    mode: str = "r+",
    size: Optional[int] = None,
    *,
    engine: Optional[str] = None,
    durability: Optional[str] = None,
    shared: bool = False,
    commit_log: Optional[int] = None,
    commit_log_block: Optional[float] = None,
    commit_log_await: bool = False,
) -> File:
    """Opens a file for atomic reads and writes.

    ``mode``:

    - ``"r+"``: for reading and writing. With a ``size`` that is larger than the file, it grows.
    - ``"r"``: for reading.
    - ``"w+"``: creates the file, or gives it ``size`` zeros. What it had before stays until the first commit.
    - ``"x+"``: creates the file, which must not exist.
    - ``"a+"``: opens the file, or creates it with ``size`` zeros.

    ``engine``: ``"reflection"`` for small commits, ``"hybrid-log"`` for many or large writes to one commit,
    ``"shadow"`` to compare with copies of whole pages. By default untorn chooses, and ``"w+"`` takes ``"hybrid-log"``:
    with the other two a change of the length commits at once.

    ``durability``: with ``"commit"``, the default, writes become durable together at :meth:`File.commit`, at the end of
    a transaction, or at the close. With ``"write"`` each write is durable when it returns.

    ``shared=True`` lets other processes that say so too have the file open.

    ``commit_log``: gives the file a log of its commits of at most so many bytes, for :func:`untorn.commits`. The file
    keeps it through later openings; 0 gives it up. With ``commit_log_block`` it keeps each commit until all registered
    consumers have acknowledged it: a commit for which the full log has no room waits so many seconds, and then raises
    :class:`untorn.ConsumerBehindError`. Without, the oldest commits go, and the consumer is told. With
    ``commit_log_await=True`` a commit returns once all registered consumers have acknowledged it, or raises
    :class:`untorn.NotAcknowledgedError` after ``commit_log_block`` seconds; it is made all the same. Without, a log that
    is there stays as it is in this respect.
    """
    hows = {"r+": "open", "r": "open", "w+": "truncate", "x+": "create", "a+": "either"}
    if mode not in hows:
        raise ValueError(f"mode is {mode!r}; it may be one of {', '.join(repr(word) for word in hows)}")
    if size is not None and size < 0:
        raise ValueError(f"size is {size}; it may not be negative")
    words = (engine, durability or "commit", shared, commit_log, commit_log_block, commit_log_await)
    return File(os.fspath(path), hows[mode], size, mode == "r", *words)


def flush_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Gives a file its name, in place of the one that had it, durably."""
    descriptor = os.open(temporary, os.O_RDWR)
    try:
        # Before the name: a crash must not leave the name with a file that has less.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    flush_directory(os.path.dirname(os.path.abspath(path)))


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    path = os.path.realpath(path)
    directory = os.path.dirname(path)
    try:
        mode: Optional[int] = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mode = None
    descriptor, name = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:200]}.", suffix=".untorn-new", dir=directory)
    try:
        with io.open(descriptor, "w+b") as file:
            if mode is None:
                mask = os.umask(0)
                os.umask(mask)
                mode = 0o666 & ~mask
            os.fchmod(file.fileno(), mode)
            yield file
        publish(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def replace(path: Path, data: Any = None) -> Any:
    """Replaces the whole contents of a file: after a crash it has the old ones or the new ones.

    It writes a temporary file beside it, flushes it, gives it the name, and flushes the directory. The mode of the file
    stays. With ``data`` it does so at once. Without, it is a context manager of a binary file:

    >>> import untorn
    >>> untorn.replace("settings", b"a = 1")
    >>> with untorn.replace("settings") as file:
    ...     _ = file.write(b"a = 2")
    """
    if data is None:
        return _replacing(path)
    with _replacing(path) as file:
        file.write(data)
    return None
