"""A backend for ``joblib.Memory`` whose cache never has a torn or an empty result.

>>> import joblib, untorn.joblib
>>> untorn.joblib.register()
>>> memory = joblib.Memory("cache", backend="untorn", verbose=0)
>>> square = memory.cache(lambda x: x * x, ignore=[])

joblib's own backend gives a result its name without flushing it: after a power cut the name may lead to a file that is
empty or has a part. Here a result, its metadata and their directories are durable before the call returns.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, Callable

import joblib
from joblib._store_backends import FileSystemStoreBackend

from ._files import flush_directory, publish


class UntornStoreBackend(FileSystemStoreBackend):  # type: ignore[misc]  # joblib has no types
    """A store of results in a directory, each whole or absent after a crash."""

    def create_location(self, location: str) -> None:
        """Makes a directory and those above it, durably."""
        missing = []
        at = os.path.abspath(location)
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        super().create_location(location)
        for made in reversed(missing):
            flush_directory(os.path.dirname(made))

    def _concurrency_safe_write(self, to_write: Any, filename: str, write_func: Callable[[Any, str], None]) -> None:
        temporary = f"{filename}.{uuid.uuid4().hex}.untorn-new"
        try:
            write_func(to_write, temporary)
            publish(temporary, filename)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise


def register(name: str = "untorn") -> None:
    """Makes the backend known to ``joblib.Memory`` by this name."""
    joblib.register_store_backend(name, UntornStoreBackend)
