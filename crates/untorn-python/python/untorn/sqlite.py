"""SQLite without a journal: connections by the VFS ``untorn``, in which each transaction is one atomic commit.

>>> import untorn.sqlite
>>> db = untorn.sqlite.connect("app.db")
>>> with db:
...     _ = db.execute("CREATE TABLE t (a)")
...     _ = db.execute("INSERT INTO t VALUES (1)")
>>> db.execute("SELECT a FROM t").fetchall()
[(1,)]
>>> db.close()
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import urllib.parse
from typing import Any, Literal, Optional, Union

from . import _untorn

__all__ = ["connect", "load"]

_lock = threading.Lock()
_loaded = False


def load() -> None:
    """Loads the VFS into this process's SQLite, once. :func:`connect` does so itself.

    Afterwards any connection can use it: ``sqlite3.connect("file:app.db?vfs=untorn", uri=True)``, and so can other
    packages that take a URI. With ``SQLITE_UNTORN_DEFAULT=1`` in the environment it is then the default VFS.

    Raises :class:`sqlite3.NotSupportedError` if this Python's SQLite is older than 3.32 or takes no extensions.
    """
    global _loaded
    with _lock:
        if not _loaded:
            _load()
            _loaded = True


def _load() -> None:
    loader = sqlite3.connect(":memory:")
    try:
        if hasattr(loader, "enable_load_extension"):
            loader.enable_load_extension(True)
            # By the name of the module SQLite finds the entry `sqlite3_untorn_init`.
            loader.load_extension(_untorn.__file__)
            return
    except sqlite3.OperationalError as error:
        raise sqlite3.NotSupportedError(f"SQLite cannot load the VFS untorn: {error}") from error
    finally:
        loader.close()
    # This Python was built without extensions. Its SQLite knows them all the same, and calls the entry for the next
    # connection.
    import _sqlite3

    try:
        sqlite = ctypes.CDLL(_sqlite3.__file__)
        entry = ctypes.CDLL(_untorn.__file__).sqlite3_untorn_init
        register, cancel = sqlite.sqlite3_auto_extension, sqlite.sqlite3_cancel_auto_extension
    except (AttributeError, OSError) as error:
        raise sqlite3.NotSupportedError(f"this Python's SQLite takes no extensions: {error}") from error
    register.argtypes = cancel.argtypes = [ctypes.c_void_p]
    address = ctypes.cast(entry, ctypes.c_void_p)
    if register(address):
        raise MemoryError
    try:
        sqlite3.connect(":memory:").close()
    except sqlite3.Error as error:
        raise sqlite3.NotSupportedError(f"SQLite cannot load the VFS untorn: {error}") from error
    finally:
        cancel(address)


def connect(
    path: "Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]",
    *,
    mode: Literal["ro", "rw", "rwc"] = "rwc",
    engine: Optional[Literal["reflection", "hybrid-log"]] = None,
    snapshot: bool = True,
    redundancy: bool = False,
    **arguments: Any,
) -> sqlite3.Connection:
    """Opens a database by the VFS ``untorn``, and creates it if it does not exist.

    ``mode``: ``"rw"`` does not create it, ``"ro"`` does not write to it. ``engine``: the engine of untorn.
    ``snapshot``: whether readers hold snapshots, so that no writer waits for them; without, they lock as SQLite does.
    ``redundancy``: whether the database gets checksums and parity if it has none; a damaged page is then repaired when
    it is read.
    All other arguments are those of :func:`sqlite3.connect`, for example ``timeout`` and ``isolation_level``.

    Raises :class:`sqlite3.OperationalError` if the database cannot be opened, also while a program with another VFS
    uses it.

    >>> import untorn.sqlite
    >>> db = untorn.sqlite.connect("readings.db", isolation_level=None, snapshot=False, redundancy=True)
    >>> db.execute("PRAGMA untorn_info").fetchone()[0].split()[-2:]
    ['snapshots=off', 'redundancy=on']
    >>> db.close()
    """
    if "uri" in arguments:
        raise TypeError("connect() takes a path, and makes the URI itself")
    load()
    parameters = {"vfs": "untorn", "mode": mode, "snapshot": "on" if snapshot else "off"}
    if engine is not None:
        parameters["engine"] = engine
    if redundancy:
        parameters["redundancy"] = "on"
    name = urllib.parse.quote(os.path.abspath(os.fsencode(path)))
    uri = f"file:{name}?{urllib.parse.urlencode(parameters)}"
    connection: sqlite3.Connection = sqlite3.connect(uri, uri=True, **arguments)
    return connection
